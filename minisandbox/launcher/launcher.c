/* The launcher: starts sandboxes, and is the only privileged process.
 *
 * Theory of operation
 *
 *     supervisor ---- SOCK_SEQPACKET (fd 3) ---- launcher ---- clone3 ---- init (pid 1 of a sandbox) ---- command
 *          \________________________ control socket of each sandbox ________/
 *
 * The supervisor sends requests (words and descriptors, see protocol.h); the launcher answers with records. For a start
 * the supervisor makes a socket pair and passes one end: the child of clone3 sets itself up, reports READY or the stage
 * that failed on it, and serves commands from then on. The launcher is out of the way: it handles one request after the
 * other, waits for no child but to reap it, and reports GONE when a sandbox's init is reaped, which is when every
 * process of that pid namespace is dead.
 *
 * Rights: the launcher is root and stays so. It runs from a sealed memory file in a mount namespace of its own with
 * two mounts, so that a start copies two and not the host's. Each init gives all its rights up before it reports READY.
 * It decides nothing: which layers, limits, ids and filters comes from the supervisor; it reads no bytes of a workload.
 *
 * An ordinary user's is root of a user namespace that he owns: rootless.c says what is different then.
 *
 * Ends: the end of the supervisor's socket is the end of the launcher and of all sandboxes (their inits die with it by
 * PR_SET_PDEATHSIG, and by the end of their control sockets).
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

enum {
	SOCKET_FD = 3,
	LOCK_FD = 4, /* the instance's lock, shared with the supervisor: held until both are gone; may be absent */
	PIDS_MAX = 1 << 22, /* PID_MAX_LIMIT of the kernel */
	LOST_SIGNAL_MS = 500,
};

/* The slot of each init, so that reaping one does not look at all slots. Only pages that are used cost memory. */
static uint32_t slot_of_pid[PIDS_MAX];

struct launcher {
	struct host host;
	struct slot *slots;
	size_t slot_count;
	struct message message;
	int ended_fd;  /* signalfd(2): tells which inits ended */
	size_t ending; /* inits that were killed and not reaped yet */
};

static void report(struct record record)
{
	if (record_send(SOCKET_FD, record, -1) < 0)
		exit(0);
}

static void report_failure(uint32_t slot, enum stage stage, int item, int error)
{
	report((struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage, .id = slot, .error = error,
	                        .item = item });
}

static void serve_configure(struct launcher *launcher, struct request *req)
{
	struct host *host = &launcher->host;
	/* we live where the inits shall live, so that none of them has to be moved at its start (20 us each) */
	for (uint32_t i = 0; i < req->inits.count; i++)
		if (write(req->inits.fd[i], "0", 1) != 1) {
			report_failure(0, STAGE_CGROUP, (int)i, errno);
			return;
		}
	struct reporter to = { .socket = SOCKET_FD };
	if (req->by_path)
		host_use_paths(host, &to);
	host->warden_gid = (uint32_t)req->warden_gid;
	if (req->pod)
		pod_enter(host, req, &to);
	report((struct record){ .kind = RECORD_HELLO, .value = PROTOCOL_VERSION });
}

static void serve_slot(struct launcher *launcher, const struct request *req)
{
	struct slot *slot = &launcher->slots[req->slot];
	enum stage stage;
	int unfit = slot->user_ns_inode ? EEXIST : !req->uid_base != launcher->host.rootless ? EINVAL : 0;
	if (unfit) {
		report_failure((uint32_t)req->slot, STAGE_REQUEST, -1, unfit);
		return;
	}
	slot->uid_base = launcher->host.rootless ? 0 : (uint32_t)req->uid_base;
	int error = slot_make(&launcher->host, slot, true, &stage);
	if (error) {
		close_fd(&slot->net_ns_fd);
		report_failure((uint32_t)req->slot, stage, -1, error);
	} else {
		report((struct record){ .kind = RECORD_SLOT, .id = (uint32_t)req->slot });
	}
}

/* Make anew what the last sandbox of the slot may have left marks on. */
static int renew_slot(struct launcher *launcher, struct slot *slot, enum stage *ret_stage)
{
	bool user_ns = slot->tainted || slot->user_ns_fd < 0;
	if (user_ns || (slot->used && !slot_network_is_clean(&launcher->host, slot)))
		close_fd(&slot->net_ns_fd);
	if (user_ns)
		close_fd(&slot->user_ns_fd);
	slot->used = slot->tainted = false;
	return slot->net_ns_fd < 0 ? slot_make(&launcher->host, slot, user_ns, ret_stage) : 0;
}

/* Failures go to the control socket, where the supervisor waits for READY. */
static void serve_start(struct launcher *launcher, struct request *req)
{
	struct slot *slot = &launcher->slots[req->slot];
	struct reporter to = { .socket = req->control.fd[0], .id = (uint32_t)req->id };
	enum stage stage = STAGE_REQUEST;
	bool complete = launcher->host.pod || req->layers.count; /* a pod has its layers */
	int error = slot->pid ? EBUSY : !slot->user_ns_inode ? ENXIO : complete ? 0 : EINVAL;
	if (!error)
		error = renew_slot(launcher, slot, &stage);
	slot->tainted = req->taints;
	if (launcher->host.pod)
		req->binds = launcher->host.pod_binds;
	if (error) {
		(void)record_send(to.socket, (struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage,
		                                              .id = to.id, .error = error, .item = -1 }, -1);
	} else {
		pid_t pid = req->verb == VERB_START ? start_sandbox(&launcher->host, slot, req, &to) :
		                                      warm_start(&launcher->host, slot, req, &to);
		if (pid > 0) {
			slot->pid = pid;
			slot->id = (uint32_t)req->id;
			slot_of_pid[pid] = (uint32_t)req->slot;
			slot_lend(&launcher->host, slot, req);
		}
	}
}

/* Killing init kills its pid namespace. The pid cannot be another's: only we reap it. What is gone already, or never
 * started, is gone: whoever asks gets an answer. */
static void serve_end(struct launcher *launcher, const struct request *req)
{
	struct slot *slot = &launcher->slots[req->slot];
	if (slot->pid && slot->id == req->id) {
		launcher->ending += !slot->ending;
		slot->ending = true;
		slot_borrow(&launcher->host, slot);
		(void)kill(slot->pid, SIGKILL);
	} else {
		report((struct record){ .kind = RECORD_GONE, .id = (uint32_t)req->id });
	}
}

/* A listening socket in the network of a sandbox that runs, for the supervisor to serve. Failures carry the stage LISTEN
 * and the id of the sandbox. */
static void serve_listen(struct launcher *launcher, const struct request *req)
{
	struct slot *slot = &launcher->slots[req->slot];
	bool runs = slot->pid && slot->id == req->id;
	if (runs)
		slot_borrow_network(&launcher->host, slot);
	runs = runs && slot->net_ns_fd >= 0;
	cleanup_fd int fd = runs ? slot_listen(&launcher->host, slot, (uint16_t)req->port) : -ESRCH;
	if (fd < 0)
		report_failure((uint32_t)req->id, STAGE_LISTEN, -1, -fd);
	else if (record_send(SOCKET_FD, (struct record){ .kind = RECORD_OPENED, .id = (uint32_t)req->id,
	                                                 .value = (int64_t)req->port }, fd) < 0)
		exit(0);
}

static void dispatch(struct launcher *launcher, struct request *req)
{
	const struct reporter to = { .socket = SOCKET_FD, .id = (uint32_t)req->id };
	const struct slot *slot = &launcher->slots[req->slot];
	switch (req->verb) {
	case VERB_CONFIGURE:
		serve_configure(launcher, req);
		return;
	case VERB_SLOT:
		serve_slot(launcher, req);
		return;
	case VERB_START:
	case VERB_WARM:
		serve_start(launcher, req);
		return;
	case VERB_END:
		serve_end(launcher, req);
		return;
	case VERB_LISTEN:
		serve_listen(launcher, req);
		return;
	case VERB_SEAL:
		disk_seal(&launcher->host, slot->id == req->id ? slot->pid : 0, req, &to);
		return;
	case VERB_COPY:
		copy_start(req, &to);
		return;
	case VERB_RUN:
	case VERB_GET:
	case VERB_PUT:
	case VERB_PACK:
	case VERB_UNPACK:
	case VERB_FORK:
	case VERB_SIGNAL:
	case VERB_DISK:
		report_failure((uint32_t)req->slot, STAGE_REQUEST, 0, EINVAL);
	}
}

static void serve_request(struct launcher *launcher)
{
	struct request req = { 0 };
	int item = -1;
	ssize_t length = message_receive(SOCKET_FD, &launcher->message);
	if (length == 0 || length == -ECONNRESET)
		exit(0);
	if (length == -EAGAIN || length == -EINTR)
		return;
	int error = length < 0 ? (int)-length : message_parse(&launcher->message, &req, &item);
	if (!error && req.slot >= launcher->slot_count)
		error = ERANGE;
	if (error)
		report_failure((uint32_t)req.slot, STAGE_REQUEST, item, error);
	else
		dispatch(launcher, &req);
	message_release(&launcher->message);
}

static void take_ended(struct launcher *launcher, pid_t pid, int status)
{
	struct slot *slot = &launcher->slots[slot_of_pid[pid]];
	if (slot->pid != pid)
		return;
	if (slot->ending)
		launcher->ending--;
	slot->pid = 0;
	slot->ending = false;
	slot->used = true;
	report((struct record){ .kind = RECORD_GONE, .id = slot->id, .value = status });
}

/* Each init ends with a real-time signal, which is queued with its pid: a waitpid(2) for any child looks at all of them.
 * signalfd(2) gives the pid of a signal other than SIGCHLD where SIGPOLL has its band (siginfo_layout, kernel/signal.c).
 * A full queue loses signals (RLIMIT_SIGPENDING), so whoever waits for long in vain looks at all nevertheless. An init that
 * was executed, as by nsjail, ends with SIGCHLD whatever it was cloned with (execve(2)), and that is not queued. */
static void reap(struct launcher *launcher, bool look_at_all)
{
	struct signalfd_siginfo ended[16];
	ssize_t length;
	int status;
	pid_t pid;
	while ((length = read(launcher->ended_fd, ended, sizeof ended)) > 0)
		for (size_t i = 0; i < (size_t)length / sizeof *ended; i++)
			if (ended[i].ssi_signo == SIGCHLD || !ended[i].ssi_band)
				look_at_all = true;
			else if ((pid = waitpid((pid_t)ended[i].ssi_band, &status, WNOHANG | __WALL)) > 0)
				take_ended(launcher, pid, status);
	while (look_at_all && (pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0)
		take_ended(launcher, pid, status);
}

/* Ignored signals would stay ignored inside. By system call, since posix_spawn(3) leaves the two signals that the C
 * library keeps for itself ignored, and signal(2) of the library does not touch those. */
static void reset_signals(void)
{
	const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} by_default = { .handler = SIG_DFL };
	for (int number = 1; number <= 64; number++)
		(void)syscall(SYS_rt_sigaction, number, &by_default, NULL, sizeof by_default.mask);
}

static _Noreturn void serve(struct launcher *launcher, size_t slot_count)
{
	struct reporter to = { .socket = SOCKET_FD };
	sigset_t blocked;
	reset_signals();
	(void)sigemptyset(&blocked);
	(void)sigaddset(&blocked, SIGNAL_ENDED);
	(void)sigaddset(&blocked, SIGCHLD);
	(void)sigprocmask(SIG_SETMASK, &blocked, NULL);
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	(void)prctl(PR_SET_NAME, "minisandbox-l");
	launcher->slot_count = slot_count;
	launcher->slots = calloc(slot_count, sizeof *launcher->slots);
	if (!launcher->slots)
		fail(&to, STAGE_REQUEST, -1, ENOMEM);
	for (size_t i = 0; i < slot_count; i++)
		launcher->slots[i] = (struct slot){ .user_ns_fd = -1, .net_ns_fd = -1 };
	if (sys_close_range(LOCK_FD + 1, ~0u, 0) < 0)
		fail(&to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
	host_open(&launcher->host, &to);
	launcher->ended_fd = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
	if (launcher->ended_fd < 0)
		fail(&to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
	for (;;) {
		struct pollfd polled[] = { { .fd = SOCKET_FD, .events = POLLIN },
			                   { .fd = launcher->ended_fd, .events = POLLIN } };
		int ready = poll(polled, 2, launcher->ending ? LOST_SIGNAL_MS : -1);
		reap(launcher, ready == 0);
		if (ready > 0 && polled[0].revents)
			serve_request(launcher);
	}
}

int main(int argc, char **argv)
{
	static struct launcher launcher; /* zeroed; its size is that of one message */
	if (argc == 2 && strcmp(argv[1], "--print-protocol") == 0) {
		print_protocol();
		return 0;
	}
	int words = argc - 3; /* of the outer user namespace, if any */
	bool fits = words == 0 || (words == 1 && strcmp(argv[3], "single") == 0) || words == ROOTLESS_RANGE_WORDS;
	if (argc >= 3 && strcmp(argv[1], "serve") == 0 && fits) {
		long slots = strtol(argv[2], NULL, 10);
		if (slots >= 1 && slots <= 1 << 20) {
			/* First the user namespace, then the sealed copy: whom /proc/PID belongs to and who may trace it is
			 * decided by the user namespace in which a process was executed. */
			if (words && !host_is_sealed())
				rootless_enter(argv + 3, words, &(struct reporter){ .socket = SOCKET_FD });
			host_seal_self(argv);
			rootless_read(&launcher.host, argv + 3, words);
			/* arguments lie one after the other, each ended by NUL (proc_pid_cmdline(5)) */
			launcher.host.title = argv[0];
			launcher.host.title_size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) - argv[0]);
			serve(&launcher, (size_t)slots);
		}
	}
	if (nsjail_is_payload(argc, argv))
		nsjail_payload(argc, argv);
	fprintf(stderr, "usage: minisandbox-launcher serve SLOTS    serve requests on descriptor 3\n"
	                "       (as an ordinary user: serve SLOTS single, or serve SLOTS NEWUIDMAP NEWGIDMAP UID GID COUNT)\n"
	                "       minisandbox-launcher --print-protocol\n");
	return 64;
}
