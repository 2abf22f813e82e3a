/* The part of a warm Python that Python cannot do by itself: wait for orders, fork into a sandbox, give everything up there.
 *
 * A shared object that is loaded into a Python of whatever version and C library: it needs of the one only what is stable from
 * 3.8 on (the limited API), of the other only functions that every one has, by names without a version (Makefile).
 *
 *     warm process    waits in serve(); for an order it sets where its next child's pid namespace is, and clones
 *       middle        one that shares its memory, joins the sandbox's namespaces, clones
 *         fork        a copy of the memory, in the command's control group from birth, and ends;
 *                     so that the fork is the child of the sandbox's init, which reaps it as any command
 *
 * The fork returns from serve() when it has given up all that a command gives up, by the same code: with its payload, or when it
 * was made ahead of that, with the descriptor to read it from.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* ---- of Python's C API (https://docs.python.org/3/c-api/stable.html), since no header of it is needed to build this */
typedef struct object object;
extern void PyOS_BeforeFork(void);
extern void PyOS_AfterFork_Child(void);
extern void PyOS_AfterFork_Parent(void);
extern object *PyBytes_FromStringAndSize(const char *bytes, ssize_t size);
extern char *PyBytes_AsString(object *bytes);
extern object *PyErr_SetFromErrno(object *kind);
extern object *PyLong_FromLong(long value);
extern long PyLong_AsLong(object *number);
extern object *PyModule_Create2(void *definition, int version);
extern object *PyExc_OSError;
enum { METHOD_ONE_ARGUMENT = 0x0008, LIMITED_API = 3 };

struct method {
	const char *name;
	object *(*call)(object *self, object *argument);
	int flags;
	const char *doc;
};

struct module {
	struct {
		ssize_t references;
		void *type, *init;
		ssize_t index;
		void *copy;
	} base;
	const char *name, *doc;
	ssize_t size;
	struct method *methods;
	void *slots, *traverse, *clear, *free;
};

/* ---- of glibc 2.35 and newer: where a thread's area for restartable sequences is (its manual, "Restartable Sequences") */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

/* ---- state, of a process that has one thread */
static struct {
	struct message message;
	struct request req;
	struct clone_args middle, fork;
	int more[FORK_FDS];
	long middle_pid;
	int *tid; /* where the C library keeps the number of this thread */
	void *robust_list;
	size_t robust_size;
} warm;

enum { RSEQ_BYTES = 32 };
#if defined(__x86_64__)
static const uint32_t RSEQ_SIGNATURE = 0x53053053;
#elif defined(__aarch64__)
static const uint32_t RSEQ_SIGNATURE = 0xd428bc00;
#endif

/* setns(2); see warm.c */
static const uint64_t RIGHTS = 1ull << CAP_SYS_ADMIN | 1ull << CAP_SYS_CHROOT;

enum { PID_NS, MNT_NS, NET_NS, IPC_NS, UTS_NS, USER_NS, REPLY };

int __attribute__((visibility("hidden"))) fstat(int fd, struct stat *st)
{
#ifdef SYS_newfstatat /* a library before glibc 2.33 has no function of this name */
	return (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
#else
	return (int)syscall(SYS_fstat, fd, st);
#endif
}

static void reply(struct record record)
{
	(void)record_send(warm.more[REPLY], record, -1);
}

static void reply_failure(enum stage stage, int item, int error)
{
	reply((struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage, .error = error, .item = item });
}

/* Take the descriptors that init added off the end. */
static int take_order(int socket)
{
	struct message *message = &warm.message;
	int item;
	for (int i = 0; i < FORK_FDS; i++)
		warm.more[i] = -1;
	struct pollfd order = { .fd = socket, .events = POLLIN };
	if (poll(&order, 1, -1) < 0)
		return EINTR;
	ssize_t length = message_receive(socket, message);
	if (length == 0 || length == -ECONNRESET)
		_exit(0); /* nobody can ask any more */
	if (length < 0 || message->fd_count < FORK_FDS)
		return EPROTO;
	message->fd_count -= FORK_FDS;
	memcpy(warm.more, message->fds + message->fd_count, sizeof warm.more);
	int error = message_parse(message, &warm.req, &item);
	return error ? error : warm.req.verb != VERB_FORK ? EINVAL : 0;
}

static void close_order(void)
{
	for (int i = 0; i < FORK_FDS; i++)
		close_fd(&warm.more[i]);
	message_release(&warm.message);
}

/* ---- the one in the middle, which shares the memory of the warm process: it writes to `warm` and its own stack only */
static void join_sandbox(void)
{
	static const int kinds[] = { [MNT_NS] = CLONE_NEWNS, [NET_NS] = CLONE_NEWNET, [IPC_NS] = CLONE_NEWIPC,
		                     [UTS_NS] = CLONE_NEWUTS };
	for (int i = MNT_NS; i <= UTS_NS; i++)
		if (setns(warm.more[i], kinds[i]) < 0) {
			reply_failure(STAGE_COMMAND_WARM, i, errno);
			_exit(127);
		}
}

static long clone_fork(void)
{
	join_sandbox();
	warm.fork = (struct clone_args){ .exit_signal = SIGCHLD };
	if (warm.req.cgroup.count) {
		warm.fork.flags = CLONE_INTO_CGROUP;
		warm.fork.cgroup = (uint64_t)warm.req.cgroup.fd[0];
	}
	long pid = sys_clone3_plain(&warm.fork);
	if (pid == 0)
		return 0;
	if (pid < 0)
		reply_failure(STAGE_COMMAND_CLONE, -1, (int)-pid);
	else
		reply((struct record){ .kind = RECORD_READY, .value = pid });
	_exit(0);
}

/* Not inlined and no tail call, as in start_command of init.c: the middle one's calls lie below this frame. */
static __attribute__((noinline)) long clone_middle(void)
{
	long pid = sys_clone3_vfork(&warm.middle);
	if (pid == 0)
		pid = clone_fork();
	__asm__ volatile("" ::: "memory");
	return pid;
}

/* ---- the fork */

/* What fork(3) of the C library would have done: the number of the thread, and what the kernel keeps of it. */
static void renew_thread(void)
{
	if (warm.tid)
		*warm.tid = (int)syscall(SYS_gettid);
	(void)syscall(SYS_set_tid_address, warm.tid);
	(void)syscall(SYS_set_robust_list, warm.robust_list, warm.robust_size);
	/* whoever shares memory has none, and the one in the middle did */
	if (&__rseq_size && __rseq_size)
		(void)syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, RSEQ_BYTES, 0, RSEQ_SIGNATURE);
}

static object *read_payload(void)
{
	struct stat st;
	int fd = warm.req.payload.fd[0];
	object *bytes = fstat(fd, &st) < 0 ? NULL : PyBytes_FromStringAndSize(NULL, st.st_size);
	if (!bytes)
		return NULL;
	for (off_t done = 0; done < st.st_size;) {
		ssize_t length = pread(fd, PyBytes_AsString(bytes) + done, (size_t)(st.st_size - done), done);
		if (length <= 0)
			return NULL;
		done += length;
	}
	return bytes;
}

/* Bytes of the filters come from descriptors, which must be closed before one of them applies. */
static void map_filters(struct sandbox *sandbox, const struct reporter *to)
{
	for (uint32_t i = 0; i < warm.req.filters.count; i++) {
		struct stat st;
		int fd = warm.req.filters.fd[i];
		if (fstat(fd, &st) < 0)
			fail(to, STAGE_COMMAND_SECCOMP, (int)i, errno);
		void *program = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (program == MAP_FAILED)
			fail(to, STAGE_COMMAND_SECCOMP, (int)i, errno);
		sandbox->filter[i] = (struct filter){ program, (uint16_t)((size_t)st.st_size / sizeof(struct sock_filter)) };
		sandbox->filter_count++;
	}
}

/* Until the one in the middle is gone, and init is the parent: getppid(2) shall not change under a program. */
static void wait_for_parent(void)
{
	pid_t middle = getppid();
	if (middle == 1)
		return;
	cleanup_fd int pidfd = (int)syscall(SYS_pidfd_open, middle, 0);
	struct pollfd ended = { .fd = pidfd, .events = POLLIN };
	while (pidfd >= 0 && getppid() == middle && poll(&ended, 1, -1) < 0)
		;
}

static object *become_command(void)
{
	struct sandbox sandbox = { .user_ns_fd = warm.more[USER_NS] };
	struct reporter to = { .socket = warm.more[REPLY] };
	object *payload = warm.req.ahead ? PyLong_FromLong((long)(warm.req.stdio.count + warm.req.null_stdin)) : read_payload();
	if (!payload)
		fail(&to, STAGE_COMMAND_WARM, -1, ENOMEM);
	map_filters(&sandbox, &to);
	/* above all streams, so that none of them takes its place */
	to.socket = fcntl(warm.more[REPLY], F_DUPFD_CLOEXEC, STDIO_MAX);
	if (to.socket < 0)
		fail(&(struct reporter){ .socket = warm.more[REPLY] }, STAGE_COMMAND_WARM, -1, errno);
	command_enter(&sandbox, &warm.req, &to);
	if (chdir(warm.req.cwd) < 0)
		fail(&to, STAGE_COMMAND_CWD, -1, errno);
	wait_for_parent();
	(void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* as execve(2) makes it: whoever is inside may look at his own */
	(void)umask(022);
	/* all but the streams and the way to report a failure of the last step */
	unsigned int first = warm.req.stdio.count + warm.req.null_stdin;
	unsigned int last = (unsigned int)to.socket;
	if (warm.req.ahead && dup3(warm.req.payload.fd[0], (int)first++, O_CLOEXEC) < 0)
		fail(&to, STAGE_COMMAND_STDIO, -1, errno);
	if (sys_close_range(first, last - 1, 0) < 0 || sys_close_range(last + 1, ~0u, 0) < 0)
		fail(&to, STAGE_COMMAND_STDIO, -1, errno);
	command_load_filters(&sandbox, &to);
	if (close(to.socket) < 0)
		_exit(127); /* with that, it could still speak to init */
	for (uint32_t i = 0; i < sandbox.filter_count; i++)
		(void)munmap(sandbox.filter[i].program, sandbox.filter[i].length * sizeof(struct sock_filter));
	return payload;
}

/* ---- what Python calls */

/* Before the preload: it runs without the rights, which come back for an order alone, and what it executes gets none. */
static object *lower(object *self, object *argument)
{
	(void)self;
	(void)argument;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || sys_capset(0, RIGHTS) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	return PyLong_FromLong(0);
}

/* Wait for orders on a socket. Returns in forks only, each with its payload. */
static object *serve(object *self, object *argument)
{
	(void)self;
	int socket = (int)PyLong_AsLong(argument);
	for (;;) {
		int error = take_order(socket);
		if (!error && (sys_capset(RIGHTS, RIGHTS) < 0 || setns(warm.more[PID_NS], CLONE_NEWPID) < 0))
			error = errno;
		if (error) {
			if (warm.more[REPLY] >= 0)
				reply_failure(STAGE_COMMAND_WARM, -1, error);
			close_order();
			continue;
		}
		warm.middle = (struct clone_args){ .exit_signal = SIGCHLD };
		PyOS_BeforeFork();
		warm.middle_pid = clone_middle();
		if (warm.middle_pid == 0) {
			renew_thread();
			object *payload = become_command();
			PyOS_AfterFork_Child();
			return payload;
		}
		(void)sys_capset(0, RIGHTS);
		PyOS_AfterFork_Parent();
		if (warm.middle_pid > 0)
			(void)waitpid((pid_t)warm.middle_pid, NULL, __WALL);
		else
			reply_failure(STAGE_COMMAND_WARM, -1, (int)-warm.middle_pid);
		close_order();
	}
}

/* After the preload: nothing can be changed any more in the file system of the template, nor looked at in this process. */
static object *seal(object *self, object *argument)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	(void)self;
	(void)argument;
	if (sys_capset(RIGHTS, RIGHTS) < 0 || sys_mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &read_only) < 0 ||
	    sys_capset(0, RIGHTS) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || waiting_filter_load() < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	int *tid = NULL;
	/* glibc has it where the kernel is to clear it; elsewhere (musl) that is another word */
	if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid && *tid == (int)syscall(SYS_gettid))
		warm.tid = tid;
	(void)syscall(SYS_get_robust_list, 0, &warm.robust_list, &warm.robust_size);
	return PyLong_FromLong(0);
}

static struct method methods[] = {
	{ "lower", lower, METHOD_ONE_ARGUMENT, NULL },
	{ "seal", seal, METHOD_ONE_ARGUMENT, NULL },
	{ "serve", serve, METHOD_ONE_ARGUMENT, NULL },
	{ NULL, NULL, 0, NULL },
};

static struct module module = { .base = { .references = 1 }, .name = "minisandbox_warm", .size = -1, .methods = methods };

__attribute__((visibility("default"))) object *PyInit_minisandbox_warm(void);
object *PyInit_minisandbox_warm(void)
{
	return PyModule_Create2(&module, LIMITED_API);
}
