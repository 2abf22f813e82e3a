/* The outer user namespace: where an ordinary user of the host is root, and may do what the launcher does.
 *
 * Its root is the user himself, so files that are his are root's inside. Its other ids are the subordinate ones that the
 * host gave him, through newuidmap(1) and newgidmap(1), or there are none: a user maps nobody but himself by his own right
 * (user_namespaces(7)). Whatever is done in it, nobody gains a right that the user did not have.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

static int write_text(const char *path, const char *text)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

/* One id, oneself. A kernel that lets anybody map a group would let him drop one that denies him a file, so setgroups(2)
 * is given up for it. */
static void map_oneself(uid_t uid, gid_t gid, const struct reporter *to)
{
	char text[32];
	if (write_text("/proc/self/setgroups", "deny") < 0)
		fail(to, STAGE_OUTER_IDMAP, 0, errno);
	(void)snprintf(text, sizeof text, "0 %u 1", uid);
	if (write_text("/proc/self/uid_map", text) < 0)
		fail(to, STAGE_OUTER_IDMAP, 1, errno);
	(void)snprintf(text, sizeof text, "0 %u 1", gid);
	if (write_text("/proc/self/gid_map", text) < 0)
		fail(to, STAGE_OUTER_IDMAP, 2, errno);
}

/* A child that stays outside, and becomes the program that writes a map once `go` is closed at its other end. */
static pid_t start_mapper(int go[2], const char *program, uint32_t own, const char *first, const char *count)
{
	char pid[16], id[16];
	(void)snprintf(pid, sizeof pid, "%d", getpid());
	(void)snprintf(id, sizeof id, "%u", own);
	pid_t child = fork();
	if (child != 0)
		return child;
	char byte;
	(void)close(go[1]);
	if (read(go[0], &byte, 1) < 0)
		_exit(125);
	(void)execle(program, program, pid, "0", id, "1", "1", first, count, (char *)NULL, (char *const[]){ NULL });
	_exit(127);
}

static void await_mapper(pid_t child, int item, const struct reporter *to)
{
	int status = 0;
	if (waitpid(child, &status, 0) < 0)
		fail(to, STAGE_OUTER_IDMAP, item, errno);
	if (status != 0)
		fail(to, STAGE_OUTER_IDMAP, item, WIFEXITED(status) && WEXITSTATUS(status) == 127 ? ENOENT : EPERM);
}

/* The user and his subordinate ids: words are both programs, first uid and first gid, and how many of each. */
static void enter_with_range(char **words, const struct reporter *to)
{
	int go[2];
	if (pipe2(go, O_CLOEXEC) < 0)
		fail(to, STAGE_OUTER_USERNS, -1, errno);
	pid_t uids = start_mapper(go, words[0], geteuid(), words[2], words[4]);
	pid_t gids = start_mapper(go, words[1], getegid(), words[3], words[4]);
	if (uids < 0 || gids < 0 || unshare(CLONE_NEWUSER) < 0)
		fail(to, STAGE_OUTER_USERNS, -1, errno);
	(void)close(go[0]);
	(void)close(go[1]);
	await_mapper(uids, 1, to);
	await_mapper(gids, 2, to);
}

/* Enter the outer user namespace, with all capabilities in it: `single`, or the five words of a range. */
void rootless_enter(char **words, int count, const struct reporter *to)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	if (count == ROOTLESS_RANGE_WORDS) {
		enter_with_range(words, to);
		return;
	}
	if (unshare(CLONE_NEWUSER) < 0)
		fail(to, STAGE_OUTER_USERNS, -1, errno);
	map_oneself(uid, gid, to);
}

/* Take note of what was entered, in the process that was executed there. Without words, of nothing. */
void rootless_read(struct host *host, char **words, int count)
{
	host->id_count = WARDEN_ID;
	host->rootless = count > 0;
	host->single_id = count == 1;
	unsigned long given = host->single_id ? 1 : count ? strtoul(words[ROOTLESS_RANGE_WORDS - 1], NULL, 10) : WARDEN_ID;
	if (given < WARDEN_ID)
		host->id_count = (uint32_t)given;
}

/* A descriptor of another mount namespace's file or directory, as the same one of ours. Detached copies can be made only of
 * mounts of one's own namespace (open_tree(2)); the path is where the kernel says it is, and what is there must be it. */
int rootless_reopen(int proc_fd, int fd)
{
	char link[64], path[4096];
	struct stat wanted, found;
	(void)snprintf(link, sizeof link, "thread-self/fd/%d", fd);
	ssize_t length = readlinkat(proc_fd, link, path, sizeof path - 1);
	if (length < 0)
		return -1;
	path[length] = '\0';
	int own = open(path, O_PATH | O_CLOEXEC);
	if (own < 0 || fstat(fd, &wanted) < 0 || fstat(own, &found) < 0)
		goto failed;
	if (wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino)
		return own;
	errno = ESTALE;
failed:;
	int error = errno;
	close_fd(&own);
	errno = error;
	return -1;
}

/* Do something in the network of a slot in a short-lived child that shares our memory and descriptors: into the host's
 * network, which is not of our user namespace, there is no way back (setns(2)). */
__attribute__((noinline)) int rootless_in_network(const struct host *host, int net_ns_fd, network_action *act, uint16_t port)
{
	volatile int result = -ECHILD;
	struct clone_args args = { .flags = CLONE_FILES, .exit_signal = SIGCHLD };
	long pid = sys_clone3_vfork(&args);
	if (pid == 0) {
		result = setns(net_ns_fd, CLONE_NEWNET) < 0 ? -errno : act(host, port);
		_exit(0);
	}
	if (pid < 0)
		return (int)pid;
	(void)waitpid((pid_t)pid, NULL, 0);
	return result;
}
