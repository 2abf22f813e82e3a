/* Ways out of a root directory, and to what lies beneath it. What is there afterwards is compared with what was there
 * before, and with what the attempt itself has mounted: anything else is "elsewhere".
 */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DETACH = MNT_DETACH, HEIGHT = 64, TREE_CLONE = 1 /* OPEN_TREE_CLONE */ };

static struct stat before;
static const char *const own_mark = "probe-mark";

static int is_before(int fd)
{
	struct stat now;
	return fstat(fd, &now) == 0 && now.st_dev == before.st_dev && now.st_ino == before.st_ino;
}

static int is_marked(int fd)
{
	return faccessat(fd, own_mark, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void print_names(int fd)
{
	struct dirent *entry;
	DIR *directory = fdopendir(fd);
	while (directory && (entry = readdir(directory)) != NULL)
		printf(" %s", entry->d_name);
}

/* Say what a descriptor of a directory shows. Returns only for an error. */
static int look(const char *name, int fd)
{
	int error = errno;
	if (fd < 0) {
		printf("%s %s\n", name, strerrorname_np(error));
		return -1;
	}
	if (is_before(fd))
		printf("%s own\n", name);
	else if (is_marked(fd))
		printf("%s marked\n", name);
	else {
		printf("%s elsewhere", name);
		print_names(fd);
		printf("\n");
	}
	return 0;
}

static int climb(int fd)
{
	for (int i = 0; fd >= 0 && i < HEIGHT; i++) {
		int above = openat(fd, "..", O_RDONLY | O_DIRECTORY);
		(void)close(fd);
		fd = above;
	}
	return fd;
}

static int open_root(void)
{
	return open("/", O_RDONLY | O_DIRECTORY);
}

/* The classic: a descriptor of outside survives the chroot, and `..` stops only at the root that is set. */
static int by_chroot(void)
{
	int outside = open_root();
	if ((mkdir("probe-jail", 0700) < 0 && errno != EEXIST) || chroot("probe-jail") < 0 || fchdir(outside) < 0)
		return -1;
	for (int i = 0; i < HEIGHT; i++)
		if (chdir("..") < 0)
			return -1;
	return chroot(".") < 0 ? -1 : open_root();
}

static int by_descriptor(void)
{
	int outside = open_root();
	if ((mkdir("probe-jail", 0700) < 0 && errno != EEXIST) || chroot("probe-jail") < 0)
		return -1;
	return climb(outside);
}

static int by_working_directory(void)
{
	if ((mkdir("probe-jail", 0700) < 0 && errno != EEXIST) || chdir("/") < 0 || chroot("/proc") < 0)
		return -1;
	return climb(open(".", O_RDONLY | O_DIRECTORY));
}

/* Unmounting leaves the process where it was; only who joins the namespace anew sees what was beneath. */
static int by_unmounting(void)
{
	int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (own < 0 || syscall(SYS_umount2, "/", DETACH) < 0 || setns(own, CLONE_NEWNS) < 0)
		return -1;
	return open_root();
}

static int by_moving(void)
{
	if (syscall(SYS_mount, "/", ".", NULL, MS_MOVE, NULL) < 0 &&
	    syscall(SYS_move_mount, AT_FDCWD, "/", AT_FDCWD, ".", 0) < 0)
		return -1;
	return climb(open_root());
}

/* Where the root of a mount namespace is hidden beneath a mount, joining it again must not show it. */
static int by_rejoining(void)
{
	int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	return own < 0 || setns(own, CLONE_NEWNS) < 0 ? -1 : open_root();
}

static int by_unmounting_a_copy(void)
{
	if (unshare(CLONE_NEWNS) < 0)
		return -1;
	int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < HEIGHT; i++)
		if (syscall(SYS_umount2, "/", DETACH) < 0)
			break;
	return own < 0 || setns(own, CLONE_NEWNS) < 0 ? -1 : open_root();
}

/* A root of the attempt's own is put in its place; the old one goes away, and with it what might cover something. */
static int by_pivoting(void)
{
	if (unshare(CLONE_NEWNS) < 0 || syscall(SYS_mount, "probe", ".", "tmpfs", 0, NULL) < 0)
		return -1;
	char here[512];
	if (!getcwd(here, sizeof here) || chdir(here) < 0 || mkdir("old", 0700) < 0 || mkdir(own_mark, 0700) < 0)
		return -1;
	if (syscall(SYS_pivot_root, ".", "old") < 0 || chdir("/") < 0)
		return -1;
	int rejoined_fd = open("/old/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (syscall(SYS_umount2, "/old", DETACH) < 0)
		return -1;
	for (int i = 0; i < HEIGHT; i++)
		if (syscall(SYS_umount2, "/", DETACH) < 0)
			break;
	if (rejoined_fd >= 0 && setns(rejoined_fd, CLONE_NEWNS) < 0)
		return -1;
	return climb(open_root());
}

static int by_cloning_the_tree(void)
{
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/..", TREE_CLONE | AT_RECURSIVE);
	return tree < 0 ? -1 : climb(openat(tree, ".", O_RDONLY | O_DIRECTORY));
}

static const struct {
	const char *name;
	int (*run)(void);
} WAYS[] = {
	{ "chroot", by_chroot },
	{ "descriptor", by_descriptor },
	{ "working-directory", by_working_directory },
	{ "unmounting", by_unmounting },
	{ "moving", by_moving },
	{ "rejoining", by_rejoining },
	{ "unmounting-a-copy", by_unmounting_a_copy },
	{ "pivoting", by_pivoting },
	{ "cloning-the-tree", by_cloning_the_tree },
};

static const char *const PLACES[] = {
	"/", "/proc", "/dev", "/dev/shm", "/usr", "/tmp", "/proc/self/root", "/proc/self/cwd", "/proc/1/root", "/proc/1/cwd",
	"/proc/thread-self/root", "/proc/self/task/../root", "/proc/self/fd/../root", "/dev/fd/../root",
};

void probe_roots(char *const *names)
{
	char name[64];
	(void)stat("/", &before);
	for (size_t i = 0; i < COUNT(WAYS) + COUNT(PLACES); i++) {
		const char *place = i < COUNT(WAYS) ? NULL : PLACES[i - COUNT(WAYS)];
		(void)snprintf(name, sizeof name, "%s", place ? place : WAYS[i].name);
		if (!is_named(name, names))
			continue;
		(void)fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			int fd = place ? climb(open(place, O_RDONLY | O_DIRECTORY)) : WAYS[i].run();
			(void)look(name, fd);
			(void)fflush(stdout);
			_exit(0);
		}
		(void)waitpid(pid, NULL, 0);
	}
}

/* The same on a root that covers another one, as the launcher makes it, but without taking any right away: what lies
 * beneath has the directory "secret". Returns only for an error. */
void probe_stacked(char *const *names)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("beneath", ".", "tmpfs", 0, NULL) < 0)
		return;
	char here[512];
	if (!getcwd(here, sizeof here) || chdir(here) < 0 || mkdir("secret", 0700) < 0 || mkdir("old", 0700) < 0 ||
	    mkdir("above", 0700) < 0 || syscall(SYS_pivot_root, ".", "old") < 0 || umount2("/old", DETACH) < 0)
		return;
	if (mount("above", "/above", "tmpfs", 0, NULL) < 0 || mkdir("/above/proc", 0700) < 0 ||
	    mkdir("/above/work", 0700) < 0 || mount("proc", "/above/proc", "proc", 0, NULL) < 0)
		return;
	if (chdir("/above") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/work") < 0)
		return;
	probe_roots(names);
}
