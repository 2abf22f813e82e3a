/* The other engine: nsjail makes the container, and executes our init in it as its payload.
 *
 *     launcher -- clone3 --> child: namespaces of pids and mounts, the sandbox's root --- execveat --> nsjail:
 *         namespaces of mounts, IPC and host name, pivot_root(2), descriptors, no_new_privs --- execveat --> init
 *
 * All of that is one process: nsjail's mode `execve` leaves nothing behind, so that its pid is that of init, whose end is
 * the end of the sandbox, as with the engine of our own. nsjail gets no user namespace to make: those of the container
 * belong to the host's, out of reach from inside, and each command joins the slot's. It gets a private copy of the host's
 * mount table, where its libraries are, with a tmpfs on /run, where it makes directories of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* What the payload finds, by number. */
enum {
	CONTROL_FD = 3,
	USER_NS_FD,
	DISK_FD,
	FILTER_FD,
	/* and for nsjail itself */
	SELF_FD = FILTER_FD + FILTERS_MAX,
	PROGRAM_FD,
	PLACED_END,
};

#define SELF_PATH "/proc/self/fd/14"
_Static_assert(SELF_FD == 14, "SELF_PATH names it");

enum { ARGV_MAX = 80, NUMBER_SIZE = 21 };

/* The words of a payload's command line, all numbers but the first two. */
enum { WORD_INIT, WORD_PAYLOAD, WORD_ID, WORD_TRACE, WORD_LIFETIME, WORD_UID_BASE, WORD_GID, WORD_FILTERS, WORD_SEALABLE,
       WORDS };

static void attach_root(const struct host *host, const struct reporter *to)
{
	static const char *const options[][2] = { { "size", "1m" }, { "mode", "755" }, { NULL, NULL } };
	cleanup_fd int tree = mount_clone(AT_FDCWD, "/root", AT_RECURSIVE);
	if (tree < 0 || setns(host->mount_ns_fd, CLONE_NEWNS) < 0)
		fail(to, STAGE_NSJAIL_MOUNTS, 0, errno);
	/* before anything is attached: the host must not see it */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		fail(to, STAGE_NSJAIL_MOUNTS, 1, errno);
	cleanup_fd int run = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	if (run < 0 || mkdirat(run, "root", 0755) < 0 || mount_attach(run, AT_FDCWD, "/run") < 0 ||
	    mount_attach(tree, AT_FDCWD, "/run/root") < 0)
		fail(to, STAGE_NSJAIL_MOUNTS, 2, errno);
	stage_done(to, STAGE_NSJAIL_MOUNTS);
}

/* Give each descriptor its number, and close all others. Copies first, far up, so that none is overwritten. */
static void place(const int *fds, const int *numbers, size_t count, const struct reporter *to)
{
	int high[PLACED_END];
	for (size_t i = 0; i < count; i++) {
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, PLACED_END);
		if (high[i] < 0)
			fail(to, STAGE_NSJAIL_EXEC, (int)i, errno);
	}
	if (sys_close_range(STDERR_FILENO + 1, PLACED_END - 1, 0) < 0)
		fail(to, STAGE_NSJAIL_EXEC, -1, errno);
	for (size_t i = 0; i < count; i++)
		if (dup2(high[i], numbers[i]) < 0)
			_exit(127);
	(void)sys_close_range(PLACED_END, ~0u, 0);
}

static void place_descriptors(const struct host *host, const struct request *req, const struct sandbox *sandbox,
                              const struct reporter *to)
{
	int fds[PLACED_END], numbers[PLACED_END];
	size_t count = 0;
	int self = openat(host->proc_fd, "self/exe", O_PATH | O_CLOEXEC);
	if (self < 0)
		fail(to, STAGE_NSJAIL_EXEC, -1, errno);
#define PLACE(fd, number) (fds[count] = (fd), numbers[count++] = (number))
	PLACE(sandbox->control_fd, CONTROL_FD);
	PLACE(sandbox->user_ns_fd, USER_NS_FD);
	PLACE(sandbox->disk_fd, DISK_FD);
	for (uint32_t i = 0; i < req->filters.count; i++)
		PLACE(req->filters.fd[i], FILTER_FD + (int)i);
	PLACE(self, SELF_FD);
	PLACE(req->nsjail.fd[0], PROGRAM_FD);
	PLACE(req->nsjail_log.fd[0], STDERR_FILENO); /* the dynamic loader's complaints too */
#undef PLACE
	place(fds, numbers, count, to);
}

static const char *number(char *buffer, uint64_t value)
{
	(void)snprintf(buffer, NUMBER_SIZE, "%llu", (unsigned long long)value);
	return buffer;
}

/* Become nsjail, which becomes init. A failure of its own is told by its log, and by the end of the control socket. */
_Noreturn void nsjail_exec(const struct host *host, const struct slot *slot, const struct request *req,
                           const struct sandbox *sandbox, const struct reporter *to)
{
	static const char *const options[] = {
		"nsjail", "--mode", "e", "--quiet", "--chroot", "/run/root", "--rw", "--disable_proc",
		/* the slot's, or the host's where no other shall be; a cgroup namespace has each command */
		"--disable_clone_newuser", "--disable_clone_newnet", "--disable_clone_newpid", "--disable_clone_newcgroup",
		"--disable_rlimits", "--nice_level", "0", "--time_limit", "0",
		"--keep_caps", /* init gives them up when it becomes the warden */
		"--execute_fd", "--exec_file", SELF_PATH,
	};
	char numbers[PLACED_END + WORDS][NUMBER_SIZE];
	const char *argv[ARGV_MAX] = { NULL };
	size_t count = sizeof options / sizeof *options;
	memcpy(argv, options, sizeof options);
	argv[count++] = "--hostname";
	argv[count++] = req->hostname;
	for (int fd = CONTROL_FD; fd < FILTER_FD + (int)req->filters.count; fd++) {
		argv[count++] = "--pass_fd";
		argv[count++] = number(numbers[fd], (uint64_t)fd);
	}
	const uint64_t words[WORDS] = {
		[WORD_ID] = req->id,           [WORD_TRACE] = req->trace,       [WORD_LIFETIME] = req->lifetime_ms,
		[WORD_UID_BASE] = slot->uid_base, [WORD_GID] = host->warden_gid, [WORD_FILTERS] = req->filters.count,
		[WORD_SEALABLE] = sandbox->sealable,
	};
	argv[count++] = "--";
	argv[count++] = "init";
	argv[count++] = "payload";
	for (int word = WORD_ID; word < WORDS; word++)
		argv[count++] = number(numbers[PLACED_END + word], words[word]);
	attach_root(host, to);
	place_descriptors(host, req, sandbox, to);
	const struct reporter placed = { .socket = CONTROL_FD, .id = to->id, .trace = to->trace };
	stage_done(&placed, STAGE_NSJAIL_EXEC);
	char *const environment[] = { NULL };
	(void)syscall(SYS_execveat, PROGRAM_FD, "", argv, environment, AT_EMPTY_PATH);
	fail(&placed, STAGE_NSJAIL_EXEC, -1, errno);
}

bool nsjail_is_payload(int argc, char **argv)
{
	return argc == WORDS && strcmp(argv[WORD_INIT], "init") == 0 && strcmp(argv[WORD_PAYLOAD], "payload") == 0;
}

/* Init, as nsjail starts it: root of the host still, in the sandbox's namespaces but the one of users. */
_Noreturn void nsjail_payload(int argc, char **argv)
{
	uint64_t words[WORDS] = { 0 };
	for (int word = WORD_ID; word < WORDS; word++)
		words[word] = strtoull(argv[word], NULL, 10);
	const struct host host = { .warden_gid = (uint32_t)words[WORD_GID], .id_count = WARDEN_ID };
	const struct slot slot = { .uid_base = (uint32_t)words[WORD_UID_BASE] };
	struct request req = { .id = words[WORD_ID], .trace = words[WORD_TRACE] != 0,
		               .lifetime_ms = words[WORD_LIFETIME] };
	struct sandbox sandbox = { .control_fd = CONTROL_FD, .user_ns_fd = USER_NS_FD, .disk_fd = DISK_FD,
		                   .sealable = words[WORD_SEALABLE] != 0 };
	const struct reporter to = { .socket = CONTROL_FD, .id = (uint32_t)req.id, .trace = req.trace };
	for (; req.filters.count < words[WORD_FILTERS] && req.filters.count < FILTERS_MAX; req.filters.count++)
		req.filters.fd[req.filters.count] = FILTER_FD + (int)req.filters.count;
	(void)prctl(PR_SET_NAME, "init");
	/* everybody inside can read it: no number of the host. Arguments lie one after the other (proc_pid_cmdline(5)). */
	size_t title_size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) - argv[0]);
	memset(argv[0] + strlen("init"), 0, title_size - strlen("init"));
	stage_done(&to, STAGE_NSJAIL);
	start_serving(&host, &slot, &req, &sandbox, &to);
}
