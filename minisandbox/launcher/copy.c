/* Copies of layers into a new disk, by a process of its own, so that what it writes is charged where it was told to be.
 *
 * Layers come top first, and each fills in what those above it do not have, as an overlay shows them: nothing is ever
 * overwritten or removed. Nobody writes to them meanwhile: they are sealed, or everybody who could is frozen. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

enum { DEPTH_MAX = 4096, XATTRS_MAX = 65536 };

static const char OPAQUE[] = "trusted.overlay.opaque";

struct level {
	int from, to;
	bool opaque;    /* shall be when all is in it */
	struct stat st; /* what it shall look like then */
	uint32_t at, filled;
	char entries[4096] __attribute__((aligned(8))); /* of getdents64(2) */
};

struct copy {
	struct reporter to;
	int links_fd; /* a directory with the first name of each file that has several */
	uint32_t depth;
	char names[XATTRS_MAX], value[XATTRS_MAX], target[4096];
	struct level levels[DEPTH_MAX];
};

static _Noreturn void give_up(const struct copy *copy)
{
	fail(&copy->to, STAGE_COPY, -1, errno ? errno : EIO);
}

static bool is_opaque(int fd)
{
	char value;
	return fgetxattr(fd, OPAQUE, &value, 1) == 1 && value == 'y';
}

static void copy_xattrs(struct copy *copy, int from, int to)
{
	ssize_t length = flistxattr(from, copy->names, sizeof copy->names);
	if (length < 0)
		give_up(copy);
	for (char *name = copy->names; name < copy->names + length; name += strlen(name) + 1) {
		ssize_t size = fgetxattr(from, name, copy->value, sizeof copy->value);
		if (size < 0 || (fsetxattr(to, name, copy->value, (size_t)size, 0) < 0 && errno != EOPNOTSUPP))
			give_up(copy);
	}
}

/* Holes stay holes. */
static void copy_content(struct copy *copy, int from, int to, off_t size)
{
	off_t at = 0, end;
	if (ftruncate(to, size) < 0)
		give_up(copy);
	while (at < size && (at = lseek(from, at, SEEK_DATA)) >= 0) {
		if ((end = lseek(from, at, SEEK_HOLE)) < 0 || lseek(to, at, SEEK_SET) < 0)
			give_up(copy);
		while (at < end)
			if (sendfile(to, from, &at, (size_t)(end - at)) <= 0)
				give_up(copy);
	}
	if (at < 0 && errno != ENXIO) /* ENXIO: nothing but a hole from there on */
		give_up(copy);
}

/* Owner before mode, as chown(2) takes set-id bits away; times last. */
static void copy_status(struct copy *copy, int directory, const char *name, const struct stat *st)
{
	const struct timespec times[2] = { st->st_atim, st->st_mtim };
	if (fchownat(directory, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
	    (!S_ISLNK(st->st_mode) && fchmodat(directory, name, st->st_mode & 07777, 0) < 0) ||
	    utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		give_up(copy);
}

static void copy_file(struct copy *copy, const struct level *level, const char *name, const struct stat *st)
{
	char link[64];
	(void)snprintf(link, sizeof link, "%llx-%llx", (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
	if (st->st_nlink > 1 && linkat(copy->links_fd, link, level->to, name, 0) == 0)
		return;
	cleanup_fd int from = openat(level->from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_fd int to = openat(level->to, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (from < 0 || to < 0)
		give_up(copy);
	copy_content(copy, from, to, st->st_size);
	if (fchown(to, st->st_uid, st->st_gid) < 0)
		give_up(copy);
	copy_xattrs(copy, from, to);
	copy_status(copy, level->to, name, st);
	if (st->st_nlink > 1 && linkat(level->to, name, copy->links_fd, link, 0) < 0)
		give_up(copy);
}

static void copy_other(struct copy *copy, const struct level *level, const char *name, const struct stat *st)
{
	if (S_ISLNK(st->st_mode)) {
		ssize_t length = readlinkat(level->from, name, copy->target, sizeof copy->target - 1);
		if (length < 0)
			give_up(copy);
		copy->target[length] = '\0';
		if (symlinkat(copy->target, level->to, name) < 0)
			give_up(copy);
	} else if (mknodat(level->to, name, st->st_mode, st->st_rdev) < 0) { /* whiteouts are devices too */
		give_up(copy);
	}
	copy_status(copy, level->to, name, st);
}

static void enter(struct copy *copy, int from, int to, const struct stat *st)
{
	if (from < 0 || to < 0)
		give_up(copy);
	if (copy->depth == DEPTH_MAX) {
		errno = ELOOP;
		give_up(copy);
	}
	struct level *level = &copy->levels[copy->depth++];
	level->from = from;
	level->to = to;
	level->opaque = is_opaque(from);
	level->st = *st;
	level->at = level->filled = 0;
}

static void leave(struct copy *copy)
{
	struct level *level = &copy->levels[--copy->depth];
	if (level->opaque && fsetxattr(level->to, OPAQUE, "y", 1, 0) < 0)
		give_up(copy);
	copy_status(copy, level->to, ".", &level->st);
	close_fd(&level->from);
	close_fd(&level->to);
}

static void copy_directory(struct copy *copy, const struct level *level, const char *name, const struct stat *st)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
	if (mkdirat(level->to, name, 0700) < 0)
		give_up(copy);
	int from = openat(level->from, name, FLAGS), to = openat(level->to, name, FLAGS);
	if (from >= 0 && to >= 0)
		copy_xattrs(copy, from, to);
	enter(copy, from, to, st);
}

/* An upper layer has the name already. Two directories are merged; else the upper one hides the lower, and whatever lies
 * below that must stay hidden too. */
static void merge(struct copy *copy, const struct level *level, const char *name, const struct stat *lower,
                  const struct stat *upper)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
	if (!S_ISDIR(upper->st_mode))
		return;
	int to = openat(level->to, name, FLAGS);
	if (to < 0)
		give_up(copy);
	if (S_ISDIR(lower->st_mode) && !is_opaque(to)) {
		enter(copy, openat(level->from, name, FLAGS), to, upper);
		return;
	}
	if (!S_ISDIR(lower->st_mode) && fsetxattr(to, OPAQUE, "y", 1, 0) < 0)
		give_up(copy);
	close_fd(&to);
}

static void visit(struct copy *copy, const struct level *level, const char *name)
{
	struct stat lower, upper;
	if (fstatat(level->from, name, &lower, AT_SYMLINK_NOFOLLOW) < 0)
		give_up(copy);
	if (fstatat(level->to, name, &upper, AT_SYMLINK_NOFOLLOW) == 0)
		merge(copy, level, name, &lower, &upper);
	else if (errno != ENOENT)
		give_up(copy);
	else if (S_ISDIR(lower.st_mode))
		copy_directory(copy, level, name, &lower);
	else if (S_ISREG(lower.st_mode))
		copy_file(copy, level, name, &lower);
	else
		copy_other(copy, level, name, &lower);
}

/* The next entry of the innermost directory, or the end of it. */
static void step(struct copy *copy)
{
	struct level *level = &copy->levels[copy->depth - 1];
	if (level->at == level->filled) {
		long got = syscall(SYS_getdents64, level->from, level->entries, sizeof level->entries);
		if (got < 0)
			give_up(copy);
		if (got == 0) {
			leave(copy);
			return;
		}
		level->at = 0;
		level->filled = (uint32_t)got;
	}
	const struct dirent64 *entry = (const void *)(level->entries + level->at);
	level->at += entry->d_reclen;
	if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
		visit(copy, level, entry->d_name);
}

static void copy_layer(struct copy *copy, int layer, int target, bool first)
{
	struct stat st;
	int from = openat(layer, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), to = fcntl(target, F_DUPFD_CLOEXEC, 3);
	if (from < 0 || to < 0 || fstat(from, &st) < 0)
		give_up(copy);
	if (first)
		copy_xattrs(copy, from, to);
	enter(copy, from, to, &st);
	while (copy->depth > 0)
		step(copy);
}

static void drop_links(struct copy *copy, int disk)
{
	long got;
	char entries[4096] __attribute__((aligned(8)));
	while ((got = syscall(SYS_getdents64, copy->links_fd, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			const struct dirent64 *entry = (const void *)(entries + at);
			at += entry->d_reclen;
			if (entry->d_name[0] != '.' && unlinkat(copy->links_fd, entry->d_name, 0) < 0)
				give_up(copy);
		}
	if (got < 0 || unlinkat(disk, "links", AT_REMOVEDIR) < 0)
		give_up(copy);
}

static _Noreturn void copy_all(struct copy *copy, const struct request *req)
{
	static const char *const options[][2] = { { "mode", "755" }, { "size", "0" }, { "nr_inodes", "0" }, { NULL, NULL } };
	struct rlimit files = { 2 * DEPTH_MAX + 256, 2 * DEPTH_MAX + 256 };
	struct stat top;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)setrlimit(RLIMIT_NOFILE, &files);
	for (uint32_t i = 0; i < req->inits.count; i++)
		if (write(req->inits.fd[i], "0", 1) != 1)
			give_up(copy);
	int disk = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
	if (disk < 0 || mkdirat(disk, "u", 0755) < 0 || mkdirat(disk, "links", 0700) < 0)
		give_up(copy);
	int target = openat(disk, "u", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	copy->links_fd = openat(disk, "links", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (target < 0 || copy->links_fd < 0)
		give_up(copy);
	if (fstat(req->layers.fd[0], &top) < 0)
		give_up(copy);
	for (uint32_t i = 0; i < req->layers.count; i++)
		copy_layer(copy, req->layers.fd[i], target, i == 0);
	copy_status(copy, target, ".", &top);
	drop_links(copy, disk);
	(void)record_send(copy->to.socket, (struct record){ .kind = RECORD_OPENED, .id = copy->to.id }, disk);
	_exit(0);
}

/* The answer, OPENED or a failure with the stage COPY, comes from the copying process itself, however long that takes. */
void copy_start(const struct request *req, const struct reporter *to)
{
	struct clone_args args = { .exit_signal = SIGNAL_ENDED };
	pid_t pid = sys_clone3(&args);
	if (pid == 0) {
		struct copy *copy = mmap(NULL, sizeof *copy, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (copy == MAP_FAILED)
			fail(to, STAGE_COPY, -1, ENOMEM);
		copy->to = *to;
		copy_all(copy, req);
	}
	if (pid < 0)
		(void)record_send(to->socket, (struct record){ .kind = RECORD_FAILED, .stage = STAGE_COPY, .id = to->id,
		                                               .error = errno, .item = -1 }, -1);
}
