/* Init, process 1 of a sandbox: starts commands by request, reaps everything, reports. It never execs.
 *
 * It is a forked copy of the launcher, runs as the slot's warden outside the sandbox's user namespace, and reads nothing
 * but its control socket. Its end is the end of every process of the sandbox (pid_namespaces(7)).
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

struct run {
	pid_t pid; /* 0: free */
	uint32_t id;
};

struct init {
	struct sandbox *sandbox;
	struct run runs[RUNS_MAX];
	struct message message;
};

static void on_child(int signal)
{
	(void)signal; /* only to interrupt ppoll(2) */
}

static void report(const struct init *init, struct record record)
{
	/* nobody listens any more: the supervisor is gone, and so are we */
	if (record_send(init->sandbox->control_fd, record, -1) < 0)
		_exit(0);
}

static void report_failure(const struct init *init, uint32_t id, enum stage stage, int item, int error)
{
	report(init, (struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage, .id = id, .error = error,
	                              .item = item });
}

static struct run *find_run(struct init *init, pid_t pid)
{
	for (size_t i = 0; i < RUNS_MAX; i++)
		if (init->runs[i].pid == pid)
			return &init->runs[i];
	return NULL;
}

static void report_exit(struct init *init, struct run *run, int status)
{
	struct statfs disk;
	int64_t time = now_ns();
	if (!init->sandbox->shared && fstatfs(init->sandbox->disk_fd, &disk) == 0)
		report(init, (struct record){ .kind = RECORD_DISK, .id = run->id,
		                              .item = (int32_t)(disk.f_files - disk.f_ffree),
		                              .value = (int64_t)(disk.f_blocks - disk.f_bfree) * disk.f_bsize });
	report(init, (struct record){ .kind = RECORD_EXIT, .id = run->id, .value = status, .time_ns = time });
	*run = (struct run){ 0 };
}

/* Reap whoever ended: commands are reported, the orphans of the sandbox just go. */
static void reap(struct init *init)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
		struct run *run = find_run(init, pid);
		if (run)
			report_exit(init, run, status);
	}
}

/* Not inlined: no variable of a caller can be in a register or slot that the child of vfork changes. */
static __attribute__((noinline)) void start_command(struct init *init, const struct request *req)
{
	struct run *run = find_run(init, 0);
	if (!run) {
		report_failure(init, (uint32_t)req->id, STAGE_REQUEST, -1, EAGAIN);
		return;
	}
	struct clone_args args = { .exit_signal = SIGCHLD };
	if (req->cgroup.count) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)req->cgroup.fd[0];
	}
	/* The child shares our memory until it execs: half the cost of a copy. It is not dumpable and its memory is of the
	 * host's user namespace, so the sandbox cannot look into it; the out-of-memory killer leaves it alone (in_vfork in
	 * mm/oom_kill.c), so it does not take us with it. A transfer never execs, and what it writes is charged to the owner
	 * of its memory (mm->owner in mm/memcontrol.c): so it gets a copy of its own, and the sandbox pays. Who shares our
	 * memory shares our clock too (time_namespaces(7)), before Linux 6.3 even beyond its exec. */
	struct record failure = { 0 };
	bool shared = req->verb == VERB_RUN && !init->sandbox->deterministic;
	long pid = shared ? sys_clone3_vfork(&args) : sys_clone3_plain(&args);
	if (pid == 0)
		command_child(init->sandbox, req, shared ? &failure : NULL);
	if (pid < 0) {
		report_failure(init, (uint32_t)req->id, STAGE_COMMAND_CLONE, -1, (int)-pid);
		return;
	}
	*run = (struct run){ .pid = (pid_t)pid, .id = (uint32_t)req->id };
	if (failure.kind == RECORD_FAILED)
		report(init, failure);
}

/* A command that is a fork of a warm process: our child all the same, once the process that cloned it has ended. */
static void start_warm(struct init *init, const struct request *req)
{
	struct run *run = find_run(init, 0);
	struct record failure = { .kind = RECORD_FAILED, .stage = STAGE_REQUEST, .error = EAGAIN, .item = -1 };
	if (run) {
		pid_t pid = fork_warm(init->sandbox, &init->message, req, &failure);
		if (pid > 0)
			*run = (struct run){ .pid = pid, .id = (uint32_t)req->id };
	}
	failure.id = (uint32_t)req->id;
	if (failure.kind == RECORD_FAILED)
		report(init, failure);
}

/* The pid cannot have been used again: it is our child's, and only we reap it. */
static void signal_command(struct init *init, const struct request *req)
{
	if (req->signal_all) { /* no fork escapes: the kernel holds them up meanwhile, and takes no new child of who is dead */
		(void)kill(-1, (int)req->signal);
		return;
	}
	for (size_t i = 0; i < RUNS_MAX; i++)
		if (init->runs[i].pid && init->runs[i].id == req->id)
			(void)kill(req->signal_group ? -init->runs[i].pid : init->runs[i].pid, (int)req->signal);
}

/* Where the ids on the disk are not those seen inside, it could be read by no other sandbox. */
static void hand_out_disk(const struct init *init)
{
	const struct sandbox *sandbox = init->sandbox;
	if (!sandbox->sealable)
		report_failure(init, 0, STAGE_SEAL_DISK, -1, EOPNOTSUPP);
	else if (record_send(sandbox->control_fd, (struct record){ .kind = RECORD_OPENED }, sandbox->disk_fd) < 0)
		_exit(0);
}

static void serve_request(struct init *init)
{
	struct request req;
	int item = -1;
	ssize_t length = message_receive(init->sandbox->control_fd, &init->message);
	if (length == 0 || length == -ECONNRESET)
		_exit(0);
	if (length == -EAGAIN || length == -EINTR)
		return;
	int error = length < 0 ? (int)-length : message_parse(&init->message, &req, &item);
	if (error)
		report_failure(init, length < 0 ? 0 : (uint32_t)req.id, STAGE_REQUEST, item, error);
	else if (req.verb >= VERB_RUN && req.verb <= VERB_UNPACK)
		start_command(init, &req);
	else if (req.verb == VERB_FORK)
		start_warm(init, &req);
	else if (req.verb == VERB_SIGNAL)
		signal_command(init, &req);
	else if (req.verb == VERB_DISK)
		hand_out_disk(init);
	else
		report_failure(init, (uint32_t)req.id, STAGE_REQUEST, 0, EINVAL);
	message_release(&init->message);
}

static bool until_deadline(int64_t deadline_ns, struct timespec *ret_left)
{
	if (!deadline_ns)
		return false;
	int64_t left = deadline_ns - now_ns();
	if (left <= 0)
		_exit(0); /* the hard lifetime, whatever became of the owner */
	*ret_left = (struct timespec){ .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
	return true;
}

_Noreturn void init_serve(struct sandbox *sandbox)
{
	struct init init;
	sigset_t blocked, waiting;
	struct sigaction action = { .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP };
	init.sandbox = sandbox;
	memset(init.runs, 0, sizeof init.runs);
	(void)sigemptyset(&waiting);
	(void)sigemptyset(&blocked);
	(void)sigaddset(&blocked, SIGCHLD);
	(void)sigprocmask(SIG_SETMASK, &blocked, NULL);
	(void)sigaction(SIGCHLD, &action, NULL);
	report(&init, (struct record){ .kind = RECORD_READY });
	for (;;) {
		struct pollfd control = { .fd = sandbox->control_fd, .events = POLLIN };
		struct timespec left;
		bool bounded = until_deadline(sandbox->deadline_ns, &left);
		(void)ppoll(&control, 1, bounded ? &left : NULL, &waiting);
		reap(&init);
		if (control.revents)
			serve_request(&init);
	}
}
