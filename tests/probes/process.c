/* What one process can do to another one that is none of its business, above all to the init of its sandbox. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char scratch[4096];

static long act_ptrace(long pid, long request)
{
	long result = syscall(SYS_ptrace, request, pid, 0, 0);
	if (result == 0)
		(void)waitpid((pid_t)pid, NULL, WNOHANG);
	return result;
}

static long act_pidfd_getfd(long pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd < 0 ? -1 : syscall(SYS_pidfd_getfd, pidfd, 0, 0);
}

static long act_pidfd_signal(long pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd < 0 ? -1 : syscall(SYS_pidfd_send_signal, pidfd, SIGURG, 0, 0);
}

static long act_process_madvise(long pid)
{
	struct iovec area = { 0 };
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd < 0 ? -1 : syscall(SYS_process_madvise, pidfd, &area, 1, 20 /* MADV_COLD */, 0);
}

/* An address where nothing is: EFAULT says that one might. */
static long act_vm(long pid, long number)
{
	struct iovec here = { scratch, 1 }, there = { NULL, 1 };
	return syscall(number, pid, &here, 1, &there, 1, 0);
}

static long act_setrlimit(long pid)
{
	struct rlimit limit;
	if (syscall(SYS_prlimit64, pid, RLIMIT_NPROC, NULL, &limit) < 0)
		return -1;
	return syscall(SYS_prlimit64, pid, RLIMIT_NPROC, &limit, NULL);
}

static long act_perf(long pid)
{
	struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE, .size = sizeof event,
		                         .config = PERF_COUNT_SW_DUMMY, .exclude_kernel = 1, .exclude_hv = 1 };
	return syscall(SYS_perf_event_open, &event, pid, -1, -1, 0);
}

static long act_affinity(long pid)
{
	if (syscall(SYS_sched_getaffinity, pid, sizeof scratch, scratch) < 0)
		return -1;
	return syscall(SYS_sched_setaffinity, pid, 8, scratch);
}

static long act_scheduler(long pid, long policy)
{
	struct {
		int priority;
	} parameter = { 0 };
	return syscall(SYS_sched_setscheduler, pid, policy, &parameter);
}

static const struct {
	const char *name;
	long number;
	long after_pid[3];
	int pid_second; /* behind a first argument that says what a pid is */
	long first;
} CALLS[] = {
	{ "kill-0", SYS_kill, { 0 }, 0, 0 },
	{ "kill-stop", SYS_kill, { SIGSTOP }, 0, 0 },
	{ "kill-term", SYS_kill, { SIGTERM }, 0, 0 },
	{ "kill-kill", SYS_kill, { SIGKILL }, 0, 0 },
	{ "tkill", SYS_tkill, { SIGURG }, 0, 0 },
	{ "get_robust_list", SYS_get_robust_list, { (long)scratch, (long)scratch + 64 }, 0, 0 },
	{ "migrate_pages", SYS_migrate_pages, { 8, (long)scratch, (long)scratch }, 0, 0 },
	{ "move_pages", SYS_move_pages, { 0 }, 0, 0 },
	{ "setpriority", SYS_setpriority, { 1 }, 1, PRIO_PROCESS },
	{ "ioprio_set", SYS_ioprio_set, { 3 << 13 }, 1, 1 },
};

static const struct {
	const char *path;
	int flags;
} FILES[] = {
	{ "mem", O_RDONLY }, { "mem", O_RDWR }, { "environ", O_RDONLY }, { "maps", O_RDONLY }, { "smaps", O_RDONLY },
	{ "pagemap", O_RDONLY }, { "auxv", O_RDONLY }, { "stack", O_RDONLY }, { "syscall", O_RDONLY },
	{ "io", O_RDONLY }, { "personality", O_RDONLY }, { "fd", O_RDONLY }, { "fdinfo", O_RDONLY }, { "fd/3", O_RDONLY },
	{ "map_files", O_RDONLY }, { "root", O_PATH }, { "root/usr", O_PATH }, { "cwd", O_PATH }, { "exe", O_PATH },
	{ "exe", O_WRONLY }, { "task/%d/mem", O_RDWR }, { "ns/mnt", O_RDONLY }, { "ns/pid", O_RDONLY },
	{ "ns/user", O_RDONLY }, { "ns/net", O_RDONLY }, { "ns/ipc", O_RDONLY }, { "ns/uts", O_RDONLY },
	{ "ns/cgroup", O_RDONLY }, { "clear_refs", O_WRONLY }, { "oom_score_adj", O_WRONLY }, { "comm", O_WRONLY },
	{ "coredump_filter", O_WRONLY }, { "uid_map", O_WRONLY }, { "gid_map", O_WRONLY }, { "setgroups", O_WRONLY },
	{ "autogroup", O_WRONLY }, { "timerslack_ns", O_WRONLY },
};

/* For most of these files the right is asked for not at open but at the first read; "no data" is an answer, too. */
static long open_file(long pid, size_t index)
{
	char name[64], path[128];
	(void)snprintf(name, sizeof name, FILES[index].path, (int)pid);
	(void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	int fd = open(path, FILES[index].flags | O_CLOEXEC);
	if (fd >= 0 && strcmp(name, "timerslack_ns") == 0) /* anybody may open it */
		return write(fd, "50000", 5);
	if (fd < 0 || (FILES[index].flags & (O_PATH | O_WRONLY)) || strncmp(name, "ns/", 3) == 0)
		return fd;
	long got = strncmp(name, "fd", 2) == 0 || strcmp(name, "map_files") == 0 ?
	                   syscall(SYS_getdents64, fd, scratch, sizeof scratch) :
	                   read(fd, scratch, sizeof scratch);
	int nothing_there = got < 0 && errno == EIO && strcmp(FILES[index].path + strlen(FILES[index].path) - 3, "mem") == 0;
	if (nothing_there || (got < 0 && (errno == ENOTDIR || errno == EISDIR || errno == EINVAL)))
		return 0;
	return got;
}

enum { PTRACE_ATTACH_, PTRACE_SEIZE_, GETFD, SIGNAL, MADVISE, READV, WRITEV, RLIMIT, PERF, AFFINITY, BATCH, IDLE };

static const char *const ACTS[] = {
	"ptrace-attach", "ptrace-seize", "pidfd_getfd", "pidfd_send_signal", "process_madvise", "process_vm_readv",
	"process_vm_writev", "prlimit64", "perf_event_open", "sched_setaffinity", "sched-batch", "sched-idle",
};

static long act(long pid, size_t index)
{
	switch (index) {
	case PTRACE_ATTACH_: return act_ptrace(pid, PTRACE_ATTACH);
	case PTRACE_SEIZE_: return act_ptrace(pid, PTRACE_SEIZE);
	case GETFD: return act_pidfd_getfd(pid);
	case SIGNAL: return act_pidfd_signal(pid);
	case MADVISE: return act_process_madvise(pid);
	case READV: return act_vm(pid, SYS_process_vm_readv);
	case WRITEV: return act_vm(pid, SYS_process_vm_writev);
	case RLIMIT: return act_setrlimit(pid);
	case PERF: return act_perf(pid);
	case AFFINITY: return act_affinity(pid);
	case BATCH: return act_scheduler(pid, SCHED_BATCH);
	default: return act_scheduler(pid, SCHED_IDLE);
	}
}

static long make_call(long pid, size_t index)
{
	const long *a = CALLS[index].after_pid;
	return CALLS[index].pid_second ? syscall(CALLS[index].number, CALLS[index].first, pid, a[0], a[1], 0, 0) :
	                                 syscall(CALLS[index].number, pid, a[0], a[1], a[2], 0, 0);
}

struct task {
	pid_t pid; /* 0: a child of the attempt's own */
	long (*run)(long pid, size_t index);
	size_t index;
};

/* The victim of ptrace must be a child of the one who waits for it, so it is started by the attempt itself. */
static long run_task(long argument)
{
	const struct task *task = (const struct task *)argument;
	pid_t pid = task->pid ? task->pid : victim_start();
	long result = pid < 0 ? -1 : task->run(pid, task->index);
	int error = errno;
	if (!task->pid)
		(void)kill(pid, SIGKILL);
	errno = error;
	return result;
}

static void run_all(pid_t pid, char *const *names, long (*run)(long, size_t), size_t count,
                    void (*name_of)(char *ret_name, size_t size, size_t index))
{
	char name[64];
	for (size_t i = 0; i < count; i++) {
		struct task task = { pid, run, i };
		name_of(name, sizeof name, i);
		if (is_named(name, names))
			attempt_run(name, run_task, (long)&task);
	}
}

static void name_of_act(char *ret_name, size_t size, size_t index)
{
	(void)snprintf(ret_name, size, "%s", ACTS[index]);
}

static void name_of_call(char *ret_name, size_t size, size_t index)
{
	(void)snprintf(ret_name, size, "%s", CALLS[index].name);
}

static void name_of_file(char *ret_name, size_t size, size_t index)
{
	static const char *const modes[] = { "read", "write", "read-write" };
	int flags = FILES[index].flags;
	const char *mode = flags & O_PATH ? "path" : modes[flags & O_ACCMODE];
	(void)snprintf(ret_name, size, "%s:%s", strncmp(FILES[index].path, "task", 4) ? FILES[index].path : "task/mem", mode);
}

/* What would end the victim comes where it may: each attempt has a victim of its own, and init must not be one. */
void probe_process(pid_t pid, char *const *names)
{
	run_all(pid, names, act, COUNT(ACTS), name_of_act);
	run_all(pid, names, open_file, COUNT(FILES), name_of_file);
	run_all(pid, names, make_call, COUNT(CALLS), name_of_call);
}
