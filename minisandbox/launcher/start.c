/* From a start request to an init that serves: clone, namespaces, mounts, warden. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* Layers must be idmapped, or files of the sandbox's root would not be its own. A read-only bind from a file system that
 * cannot be idmapped (overlayfs: a container's own root) shows its files as nobody's: less, never more. */
static int restrict_tree(const struct host *host, int tree, bool read_only, bool layer, int user_ns_fd)
{
	uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (read_only ? MOUNT_ATTR_RDONLY : 0);
	if (host->rootless) /* every id is what it is outside already, and may be mounted with others below it */
		return mount_set_all(tree, attributes);
	if (mount_set(tree, attributes, user_ns_fd) == 0)
		return 0;
	if (errno != EINVAL || layer || !read_only)
		return -1;
	return mount_set(tree, attributes, -1);
}

/* As one mount; where others lie on it that the host has locked to it, with them: an ordinary user cannot part them
 * (mount_namespaces(7)). */
static int clone_tree(const struct host *host, int fd)
{
	if (!host->rootless)
		return mount_clone(fd, "", 0);
	cleanup_fd int own = rootless_reopen(host->proc_fd, fd);
	int tree = own < 0 ? -1 : mount_clone(own, "", 0);
	return tree < 0 && own >= 0 && errno == EINVAL ? mount_clone(own, "", AT_RECURSIVE) : tree;
}

/* One that was sealed where detached mounts cannot be cloned is attached in a namespace of its own (disk.c). */
static int clone_layer(const struct host *host, const struct request *req, int fd)
{
	int tree = -1;
	for (uint32_t i = 0; i < req->namespaces.count && tree < 0; i++)
		if (setns(req->namespaces.fd[i], CLONE_NEWNS) == 0)
			tree = mount_clone(fd, "", 0);
	if (req->namespaces.count && setns(host->mount_ns_fd, CLONE_NEWNS) < 0)
		_exit(125); /* never look for a path elsewhere */
	return tree < 0 ? clone_tree(host, fd) : tree;
}

static int clone_trees(const struct host *host, const struct slot *slot, const struct request *req, struct trees *trees, enum stage *ret_stage,
                       int *ret_item)
{
	*ret_stage = STAGE_LAYER;
	for (uint32_t i = 0; i < req->layers.count; i++) {
		*ret_item = (int)i;
		int tree = clone_layer(host, req, req->layers.fd[i]);
		if (tree < 0)
			return errno;
		trees->layer[trees->layer_count++] = tree;
		if (restrict_tree(host, tree, true, true, slot->user_ns_fd) < 0)
			return errno;
	}
	if (req->disk.count) {
		*ret_stage = STAGE_UPPER;
		*ret_item = -1;
		trees->disk = mount_clone(req->disk.fd[0], "", 0);
		if (trees->disk < 0)
			return errno;
		trees->disk_count = 1;
		if (mount_set(trees->disk, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, -1) < 0)
			return errno;
	}
	*ret_stage = STAGE_BIND_SOURCE;
	for (uint32_t i = 0; i < req->binds.count; i++) {
		*ret_item = (int)i;
		int tree = clone_tree(host, req->bind_fds.fd[i]);
		if (tree < 0)
			return errno;
		trees->bind[trees->bind_count++] = tree;
		if (restrict_tree(host, tree, req->binds.text[i][1] == 'o', false, slot->user_ns_fd) < 0)
			return errno;
	}
	return 0;
}

/* Paths of layers and binds live in the host's mount namespace: clone them there, and come back. */
int gather_trees(const struct host *host, const struct slot *slot, const struct request *req, struct trees *trees,
                 enum stage *ret_stage, int *ret_item)
{
	if (host->pod)
		return pod_trees(host, trees, ret_stage, ret_item);
	*ret_stage = STAGE_LAYER;
	*ret_item = -1;
	if (setns(host->mount_ns_fd, CLONE_NEWNS) < 0)
		return errno;
	int error = clone_trees(host, slot, req, trees, ret_stage, ret_item);
	if (setns(host->own_mount_ns_fd, CLONE_NEWNS) < 0)
		_exit(125); /* never start a sandbox from the host's mounts */
	return error;
}

void release_trees(struct trees *trees)
{
	for (uint32_t i = 0; i < trees->layer_count; i++)
		(void)close(trees->layer[i]);
	for (uint32_t i = 0; i < trees->bind_count; i++)
		(void)close(trees->bind[i]);
	if (trees->disk_count)
		(void)close(trees->disk);
}

static void load_filters(const struct request *req, struct sandbox *sandbox, const struct reporter *to)
{
	for (uint32_t i = 0; i < req->filters.count; i++) {
		struct stat st;
		int fd = req->filters.fd[i];
		if (fstat(fd, &st) < 0)
			fail(to, STAGE_FILTER, (int)i, errno);
		if (st.st_size <= 0 || st.st_size % (off_t)sizeof(struct sock_filter) ||
		    st.st_size / (off_t)sizeof(struct sock_filter) > BPF_MAXINSNS)
			fail(to, STAGE_FILTER, (int)i, EINVAL);
		void *program = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (program == MAP_FAILED)
			fail(to, STAGE_FILTER, (int)i, errno);
		sandbox->filter[i] = (struct filter){ program, (uint16_t)(st.st_size / (off_t)sizeof(struct sock_filter)) };
		sandbox->filter_count++;
	}
}

/* From here on an ordinary user of the host without a single capability there. It owns the sandbox's user namespace,
 * so that it can join it for a command; the commands' users can neither signal nor trace it. */
static void become_warden(const struct host *host, const struct slot *slot, const struct reporter *to)
{
	uid_t warden = slot_warden(host, slot);
	gid_t group = host->warden_gid;
	/* who has one id alone may not leave his groups; in a pod the group is there already, and has no number */
	bool keeps_groups = host->single_id || host->pod;
	if ((!keeps_groups && setgroups(1, &group) < 0) || setresgid(warden, warden, warden) < 0 ||
	    setresuid(warden, warden, warden) < 0)
		fail(to, STAGE_WARDEN, -1, errno);
	/* changing ids leaves the inheritable ones, which nsjail raises, and all of them to who stays root */
	if (sys_capset(0, 0) < 0)
		fail(to, STAGE_WARDEN, -1, errno);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		fail(to, STAGE_WARDEN, -1, errno);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing ids has cleared it */
	stage_done(to, STAGE_WARDEN);
}

/* Close everything but what init needs. That goes to the last numbers of the smallest descriptor table (64), so that
 * the descriptors of a request get numbers from 3 on, in order, and never those that a command's streams will have. */
static void keep_only(struct sandbox *sandbox, const struct reporter *to)
{
	enum { KEPT_MAX = 3 + NAMESPACES, END = INIT_FDS_END };
	int *const kept[KEPT_MAX] = { &sandbox->control_fd, &sandbox->user_ns_fd, &sandbox->disk_fd,
		                      &sandbox->namespace_fd[0], &sandbox->namespace_fd[1],
		                      &sandbox->namespace_fd[2], &sandbox->namespace_fd[3],
		                      &sandbox->namespace_fd[4] };
	const int count = sandbox->namespace_fd[0] <= 0 ? 3 : KEPT_MAX, first = END - count;
	int high[KEPT_MAX];
	for (int i = 0; i < count; i++)
		high[i] = fcntl(*kept[i], F_DUPFD_CLOEXEC, END);
	for (int i = 0; i < count; i++)
		if (high[i] < 0 || dup3(high[i], first + i, O_CLOEXEC) < 0)
			fail(to, STAGE_WARDEN, i, errno);
	for (int i = 0; i < count; i++)
		*kept[i] = first + i;
	if (sys_close_range(STDERR_FILENO + 1, (unsigned int)first - 1, 0) < 0 || sys_close_range(END, ~0u, 0) < 0)
		_exit(127);
	/* descriptors that requests bring must never land on a command's stdin, stdout or stderr */
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (null < 0 || dup2(null, fd) < 0)
			_exit(127);
	(void)close(null);
}

/* What is left to do once the root is the sandbox's. */
_Noreturn void start_serving(const struct host *host, const struct slot *slot, const struct request *req,
                             struct sandbox *sandbox, const struct reporter *to)
{
	load_filters(req, sandbox, to);
	become_warden(host, slot, to);
	keep_only(sandbox, to);
	if (req->lifetime_ms)
		sandbox->deadline_ns = now_ns() + (int64_t)req->lifetime_ms * 1000000;
	init_serve(sandbox);
}

/* A warm process has rights over them but none over an init, so it cannot take them by itself. */
static void open_namespaces(const struct host *host, struct sandbox *sandbox, const struct reporter *to)
{
	static const char *const names[NAMESPACES] = { "self/ns/pid", "self/ns/mnt", "self/ns/net", "self/ns/ipc",
		                                       "self/ns/uts" };
	for (int i = 0; i < NAMESPACES; i++) {
		sandbox->namespace_fd[i] = host->pod ? openat(host->proc_fd, names[i], O_RDONLY | O_CLOEXEC) : -1;
		if (host->pod && sandbox->namespace_fd[i] < 0)
			fail(to, STAGE_NETNS, i, errno);
	}
}

static _Noreturn void child_start(const struct host *host, const struct slot *slot, const struct request *req,
                                  const struct trees *trees)
{
	struct reporter to = { .socket = req->control.fd[0], .id = (uint32_t)req->id, .trace = req->trace };
	struct sandbox sandbox = { .control_fd = req->control.fd[0], .user_ns_fd = slot->user_ns_fd,
		                   .single_id = host->single_id };
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)prctl(PR_SET_NAME, "init");
	host_offer(host);
	memset(host->title, 0, host->title_size); /* everybody inside can read it: no path of the host */
	(void)strncpy(host->title, "init", host->title_size);
	/* a session keyring of its own, not that of whoever started the supervisor; a kernel without keys has none to leak */
	(void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
	stage_done(&to, STAGE_CLONE);
	if (req->deterministic)
		pin_start(host, &to);
	else if (req->fixed_addresses)
		pin_addresses(&to);
	if (!req->host_network && setns(slot->net_ns_fd, CLONE_NEWNET) < 0)
		fail(&to, STAGE_NETNS, -1, errno);
	open_namespaces(host, &sandbox, &to);
	stage_done(&to, STAGE_NETNS);
	/* nsjail names its own */
	if (!req->nsjail.count && sethostname(req->hostname, strlen(req->hostname)) < 0)
		fail(&to, STAGE_HOSTNAME, -1, errno);
	struct disk disk = root_build(host, slot, req, trees, &to);
	sandbox.disk_fd = disk.fd;
	sandbox.sealable = disk.sealable;
	sandbox.shared = req->disk.count > 0;
	sandbox.deterministic = req->deterministic;
	if (req->nsjail.count)
		nsjail_exec(host, slot, req, &sandbox, &to);
	root_switch(trees, &to);
	start_serving(host, slot, req, &sandbox, &to);
}

/* Start a sandbox in a slot. Returns the pid of its init, or -1 after the failure was reported. */
pid_t start_sandbox(const struct host *host, const struct slot *slot, const struct request *req,
                    const struct reporter *to)
{
	struct trees trees = { .by_fd = host->overlay_by_fd };
	enum stage stage;
	int item;
	pid_t pid = -1;
	int error = gather_trees(host, slot, req, &trees, &stage, &item);
	if (!error) {
		struct clone_args args = { .flags = CLONE_NEWNS | CLONE_NEWPID,
			                   .exit_signal = (uint64_t)SIGNAL_ENDED };
		if (!req->nsjail.count)
			args.flags |= CLONE_NEWIPC | CLONE_NEWUTS;
		stage = STAGE_CLONE;
		item = -1;
		pid = sys_clone3(&args);
		if (pid == 0)
			child_start(host, slot, req, &trees);
		error = pid < 0 ? errno : 0;
	}
	release_trees(&trees);
	if (error)
		(void)record_send(to->socket, (struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage,
		                                               .id = to->id, .error = error, .item = item }, -1);
	return pid;
}
