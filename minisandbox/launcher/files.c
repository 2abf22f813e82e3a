/* Files of a sandbox, opened by a process inside it with the sandbox's ids: whatever a path leads to is the sandbox's
 * own. Only regular files, never through a link at the end, never blocking on a FIFO. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

static int open_inside(const char *path, int flags, mode_t mode)
{
	struct open_how how = { .flags = (uint64_t)(unsigned int)(flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC),
		                .mode = flags & O_CREAT ? mode : 0,
		                .resolve = RESOLVE_NO_MAGICLINKS };
	return sys_openat2(AT_FDCWD, path, &how);
}

/* procfs files look regular but say what the kernel likes at each read: they are read by commands only. */
static void require_regular(int fd, const struct reporter *to, struct stat *ret_stat)
{
	struct statfs fs;
	if (fstat(fd, ret_stat) < 0 || fstatfs(fd, &fs) < 0)
		fail(to, STAGE_FILE_TYPE, -1, errno);
	if (S_ISDIR(ret_stat->st_mode))
		fail(to, STAGE_FILE_TYPE, -1, EISDIR);
	if (!S_ISREG(ret_stat->st_mode) || fs.f_type == PROC_SUPER_MAGIC)
		fail(to, STAGE_FILE_TYPE, -1, EINVAL);
}

/* Send an open descriptor of the file, or of the master of a new terminal. */
void file_get(const struct request *req, const struct reporter *to)
{
	struct stat st = { 0 };
	int fd = req->terminal ? open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC) : open_inside(req->path, O_RDONLY, 0);
	if (fd < 0)
		fail(to, STAGE_FILE_OPEN, -1, errno);
	if (!req->terminal)
		require_regular(fd, to, &st);
	struct record record = { .kind = RECORD_OPENED, .id = to->id, .value = st.st_size };
	if (record_send(to->socket, record, fd) < 0)
		_exit(1);
	(void)close(fd);
}

/* A new file without a name, in the directory where it will get one: killed on the way, it leaves nothing. */
static int open_unnamed(const char *path, mode_t mode)
{
	char directory[4096];
	const char *slash = strrchr(path, '/');
	size_t length = slash && slash != path ? (size_t)(slash - path) : 1;
	if (!slash || length >= sizeof directory)
		return -1;
	memcpy(directory, path, length);
	directory[length] = '\0';
	struct open_how how = { .flags = O_WRONLY | O_TMPFILE | O_CLOEXEC, .mode = mode,
		                .resolve = RESOLVE_NO_MAGICLINKS };
	return sys_openat2(AT_FDCWD, directory, &how);
}

static int give_name(int fd, const char *path)
{
	char self[64];
	(void)snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

static int copy_all(int from, int to)
{
	char buffer[65536];
	for (;;) {
		ssize_t got = read(from, buffer, sizeof buffer);
		if (got == 0)
			return 0;
		if (got < 0)
			return errno;
		for (ssize_t done = 0; done < got;) {
			ssize_t written = write(to, buffer + done, (size_t)(got - done));
			if (written < 0)
				return errno;
			done += written;
		}
	}
}

enum { WEIGHT = 1 << 20 };

/* Before Linux 6.3 overlayfs has no unnamed files, so the file has its name from the beginning, and another process writes
 * it: when that is killed, as it is where memory comes to its end, what it wrote is taken away again. Returns an errno. */
static int copy_watched(const char *path, int from, int to)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	int status = 0;
	(void)signal(SIGCHLD, SIG_DFL);
	pid_t pid = sys_clone3(&args), ended;
	if (pid < 0) /* no room for a second one: then it is as it was before */
		return copy_all(from, to);
	if (pid == 0) { /* of two, the one with more memory is killed: this one (oom_badness in mm/oom_kill.c) */
		(void)mmap(NULL, WEIGHT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		_exit(copy_all(from, to));
	}
	do
		ended = waitpid(pid, &status, 0);
	while (ended < 0 && errno == EINTR);
	if (ended < 0)
		return errno;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	(void)!ftruncate(to, 0); /* to remove it takes memory, too */
	(void)unlink(path);
	(void)kill(getpid(), SIGKILL);
	return EINTR;
}

/* Write stdin to the file. It runs under the limits of a command, so what is written is charged to the sandbox. */
void file_put(const struct request *req, const struct reporter *to)
{
	struct stat st;
	bool named = true, unnamed = false;
	int fd = open_inside(req->path, O_WRONLY, 0);
	if (fd < 0 && errno == ENOENT) {
		fd = open_unnamed(req->path, (mode_t)req->mode);
		unnamed = fd >= 0;
		/* overlayfs has unnamed files since Linux 6.3 */
		if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
			fd = open_inside(req->path, O_WRONLY | O_CREAT | O_EXCL, (mode_t)req->mode);
		named = false;
	}
	if (fd < 0)
		fail(to, STAGE_FILE_OPEN, -1, errno);
	require_regular(fd, to, &st);
	int error = 0;
	if (ftruncate(fd, 0) < 0)
		error = errno;
	else
		error = named || unnamed ? copy_all(STDIN_FILENO, fd) : copy_watched(req->path, STDIN_FILENO, fd);
	if (!error && unnamed && give_name(fd, req->path) < 0)
		error = errno;
	if (error && !named && !unnamed)
		(void)unlink(req->path);
	if (error)
		fail(to, STAGE_FILE_WRITE, -1, error);
}
