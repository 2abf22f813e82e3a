/* What the parts of the launcher share. See launcher.c for the theory of operation. */
#ifndef MINISANDBOX_LAUNCHER_H
#define MINISANDBOX_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"

/* ---- words.c: a request as values. Pointers point into the request's own bytes. */

struct fd_list {
	uint32_t count;
	int fd[FDS_MAX];
};

struct text_list {
	uint32_t count;
	char *text[BINDS_MAX];
};

struct request {
	enum verb verb;
	uint64_t id;   /* of a command, or of a sandbox; never used twice */
	uint64_t slot; /* number in the launcher's table */
	/* configure */
	struct fd_list inits; /* files to write "0" to: cgroup.procs (v2), tasks (v1) of the group of all inits; of a copy */
	/* slot */
	uint64_t uid_base; /* first of SLOT_IDS host ids */
	/* listen */
	uint64_t port;
	/* seal */
	struct fd_list disk;
	/* start */
	struct fd_list control;
	struct fd_list layers; /* top first */
	struct fd_list namespaces; /* in which some of them are attached */
	struct fd_list bind_fds;
	struct text_list binds; /* "ro:/target" or "rw:/target" */
	struct fd_list filters; /* sealed memfds with struct sock_filter arrays */
	struct fd_list nsjail;  /* the program, and where its log goes; none: we make the container ourselves */
	struct fd_list nsjail_log;
	char *hostname;
	uint64_t warden_gid;
	uint64_t disk_bytes;  /* 0: the kernel's default for tmpfs */
	uint64_t disk_inodes; /* 0: likewise */
	uint64_t lifetime_ms; /* 0: none */
	bool deterministic, fixed_addresses, host_network, pid_proc, terminal, trace, taints, by_path, pod;
	/* run, get, put */
	struct fd_list stdio; /* stdin, stdout, stderr and more */
	bool null_stdin;
	struct fd_list cgroup;
	struct fd_list tasks;
	struct fd_list template, payload; /* fork */
	bool ahead;
	struct text_list rlimits; /* "nofile:1024" */
	struct text_list groups;
	char *cwd;
	char *path; /* get, put: the file */
	uint64_t uid, gid, capabilities, mode;
	uint64_t signal;
	bool signal_group, signal_all;
	bool new_terminal; /* stdin is a terminal to be made the controlling one */
	char **env;        /* NULL-terminated */
	char **argv;       /* NULL-terminated */
	size_t env_count, argv_count;
};

/* Parse the words of a request. `pointers` takes env and argv (a word count plus two is enough).
 * Returns 0, or an errno with *ret_item the index of the word concerned. Never keeps or closes a descriptor. */
int words_parse(struct request *req, char *words, size_t length, const int *fds, size_t fd_count, char **pointers,
                size_t pointer_count, int *ret_item);
size_t words_count(const char *words, size_t length);
void words_print_options(void);

/* ---- print.c */
void print_protocol(void);

/* ---- wire.c: datagrams */

struct message {
	char *words; /* into `bytes`, or a private mapping of a memfd */
	size_t length;
	char **pointers;
	size_t pointer_count;
	int fds[FDS_MAX];
	size_t fd_count;
	size_t mapped;          /* length of the mapping of words, 0 if none */
	size_t pointers_mapped; /* likewise of pointers */
	char *small_pointers[512];
	char bytes[REQUEST_INLINE_MAX + 1];
};

int64_t now_ns(void);
int record_send(int socket, struct record record, int fd);
ssize_t message_receive(int socket, struct message *message);
void message_release(struct message *message);
int message_parse(struct message *message, struct request *req, int *ret_item);

/* ---- failure: every start stage reports through one place */

struct reporter {
	int socket;
	uint32_t id;
	bool trace;
	struct record *leave; /* leave a failure here, for one who can send it */
};
_Noreturn void fail(const struct reporter *to, enum stage stage, int item, int error);
void stage_done(const struct reporter *to, enum stage stage);

/* ---- host.c: what the launcher holds all its life */

struct host {
	int mount_ns_fd;    /* where the paths of layers and binds live */
	int net_ns_fd;      /* the host's, to come back to */
	int own_mount_ns_fd;
	int proc_fd;        /* the host's /proc */
	uint32_t warden_gid;
	uint32_t id_count; /* ids of a sandbox; the one after them is its warden's */
	bool rootless;     /* we are root of an outer user namespace alone, which all slots share with the ids in it */
	bool single_id;    /* and it has one id, which is the warden's too */
	bool pod;          /* or it is a template's: what all its sandboxes show is attached already (pod.c) */
	struct text_list pod_binds;
	bool overlay_by_fd;
	char *title; /* our arguments, as /proc/PID/cmdline shows them */
	size_t title_size;
};
bool host_is_sealed(void);
void host_seal_self(char **argv);
void host_open(struct host *host, const struct reporter *to);
void host_offer(const struct host *host);
void host_make_workplace(const struct reporter *to);
void host_use_paths(struct host *host, const struct reporter *to);

/* ---- rootless.c: the outer user namespace of an ordinary user */
enum { ROOTLESS_RANGE_WORDS = 5 };
typedef int network_action(const struct host *host, uint16_t port);
void rootless_enter(char **words, int count, const struct reporter *to);
void rootless_read(struct host *host, char **words, int count);
int rootless_reopen(int proc_fd, int fd);
int rootless_in_network(const struct host *host, int net_ns_fd, network_action *act, uint16_t port);

/* ---- mounts.c */
int mount_clone(int source_fd, const char *path, unsigned int flags);
int mount_set(int mount_fd, uint64_t attributes, int user_ns_fd);
int mount_set_all(int mount_fd, uint64_t attributes);
int mount_attach(int mount_fd, int target_fd, const char *path);
int mount_new(const char *type, const char *const options[][2], uint64_t attributes);
int mount_create(int context_fd, const char *const options[][2], uint64_t attributes);
int target_open(int root_fd, const char *path, bool file, bool make);

/* ---- slot.c */
#define SIGNAL_ENDED SIGRTMIN /* what the end of an init sends to the launcher; is queued, unlike SIGCHLD */
struct slot {
	int user_ns_fd; /* both -1 while a sandbox runs in it, mostly */
	int net_ns_fd;
	ino_t user_ns_inode, net_ns_inode; /* 0: never made */
	dev_t ns_device;
	uint32_t uid_base;
	pid_t pid;   /* init of the sandbox in it, 0 if free */
	uint32_t id; /* of that sandbox */
	bool ending; /* it was killed and is not reaped yet */
	bool used;   /* by a sandbox that is gone: its network is to be looked at */
	bool tainted; /* its user namespace is to be made anew */
};
uid_t slot_warden(const struct host *host, const struct slot *slot);
int slot_make(const struct host *host, struct slot *slot, bool with_user_ns, enum stage *ret_stage);
void slot_lend(const struct host *host, struct slot *slot, const struct request *req);
void slot_borrow(const struct host *host, struct slot *slot);
void slot_borrow_network(const struct host *host, struct slot *slot);
bool slot_network_is_clean(const struct host *host, const struct slot *slot);
int slot_listen(const struct host *host, const struct slot *slot, uint16_t port);

/* ---- start.c: from a request to an init that serves */
struct trees {
	int layer[LAYERS_MAX];
	int bind[BINDS_MAX];
	int disk;
	uint32_t layer_count, bind_count, disk_count; /* without a disk a tmpfs is made */
	bool by_fd; /* the overlay takes them by descriptor */
};
int gather_trees(const struct host *host, const struct slot *slot, const struct request *req, struct trees *trees,
                 enum stage *ret_stage, int *ret_item);
void release_trees(struct trees *trees);
pid_t start_sandbox(const struct host *host, const struct slot *slot, const struct request *req,
                    const struct reporter *to);

/* ---- root.c: the mounts of a sandbox */
struct disk {
	int fd; /* the tmpfs as it is, the ids on it those seen inside where it could be idmapped */
	bool sealable;
};
struct disk root_build(const struct host *host, const struct slot *slot, const struct request *req,
                       const struct trees *trees, const struct reporter *to);
void root_switch(const struct trees *trees, const struct reporter *to);

/* ---- disk.c: the writable file system of a sandbox, and its end as one */
int disk_map(int *disk_fd, int user_ns_fd, bool by_fd);
void disk_seal(const struct host *host, pid_t init, const struct request *req, const struct reporter *to);

/* ---- pin.c: what two deterministic sandboxes see alike */
int pin_times(int directory_fd, const char *path);
void pin_addresses(const struct reporter *to);
void pin_start(const struct host *host, const struct reporter *to);

/* ---- copy.c: layers copied into a disk of their own */
void copy_start(const struct request *req, const struct reporter *to);

/* ---- init.c, command.c: inside */
struct filter {
	void *program; /* struct sock_filter array */
	uint16_t length;
};

enum { NAMESPACES = 5 }; /* pid, mnt, net, ipc, uts */

enum { INIT_FDS_END = 64, INIT_USER_NS_FD = INIT_FDS_END - 2 }; /* of an init that is in no pod */

struct sandbox {
	int control_fd;
	int user_ns_fd;
	int disk_fd; /* the writable tmpfs */
	bool sealable; /* the ids on it are those seen inside */
	bool shared;   /* it is a directory of the host's: how full that is says nothing */
	bool deterministic;
	bool single_id;
	int namespace_fd[NAMESPACES]; /* its own, for a warm process to join; -1 where there is none */
	uint32_t filter_count;
	struct filter filter[FILTERS_MAX];
	int64_t deadline_ns; /* 0: none */
};
_Noreturn void init_serve(struct sandbox *sandbox);
_Noreturn void start_serving(const struct host *host, const struct slot *slot, const struct request *req,
                             struct sandbox *sandbox, const struct reporter *to);
void command_join_cgroups(const struct request *req, const struct reporter *to);
void command_set_rlimits(const struct request *req, const struct reporter *to);
_Noreturn void command_exec(const struct request *req, const struct reporter *to);
void command_enter(const struct sandbox *sandbox, const struct request *req, const struct reporter *to);
void command_load_filters(const struct sandbox *sandbox, const struct reporter *to);
_Noreturn void command_child(const struct sandbox *sandbox, const struct request *req, struct record *leave);
void file_put(const struct request *req, const struct reporter *to);
void file_get(const struct request *req, const struct reporter *to);
void tree_pack(const struct request *req, const struct reporter *to);
void tree_unpack(const struct request *req, const struct reporter *to);

/* ---- nsjail.c: the other engine */
_Noreturn void nsjail_exec(const struct host *host, const struct slot *slot, const struct request *req,
                           const struct sandbox *sandbox, const struct reporter *to);
bool nsjail_is_payload(int argc, char **argv);
_Noreturn void nsjail_payload(int argc, char **argv);
/* ---- pod.c, warm.c, fork.c: templates, a warm process that is forked into sandboxes */
enum { FORK_FDS = NAMESPACES + 2 }; /* beside those of the request: namespaces, user namespace, reply socket */
void pod_enter(struct host *host, const struct request *req, const struct reporter *to);
int pod_trees(const struct host *host, struct trees *trees, enum stage *ret_stage, int *ret_item);
pid_t warm_start(const struct host *host, const struct slot *slot, const struct request *req, const struct reporter *to);
int waiting_filter_load(void);
pid_t fork_warm(const struct sandbox *sandbox, const struct message *message, const struct request *req,
                struct record *ret_failure);

#define cleanup_fd __attribute__((cleanup(close_fd)))
void close_fd(int *fd);

#endif
