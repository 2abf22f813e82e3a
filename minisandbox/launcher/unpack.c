/* A stream on stdin as a tree of a sandbox, made by a process inside it with the sandbox's ids and under its limits. The
 * stream is the supervisor's and checked all the same. Every path is resolved beneath the tree, never through a link. What
 * is there already is replaced, but a directory, which keeps its mode and owner; no owner is ever changed. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"
#include "tree.h"

struct unpack {
	const struct reporter *to;
	int root;
	int parent; /* O_PATH, of parent_path */
	int item;   /* index of the entry, for failures */
	size_t at, filled;
	uint64_t size; /* of the entry's content */
	bool has_size;
	char path[TREE_PATH_MAX], link[TREE_PATH_MAX], parent_path[TREE_PATH_MAX];
	char in[1 << 18];
};

static _Noreturn void malformed(const struct unpack *unpack)
{
	fail(unpack->to, STAGE_TREE_STREAM, unpack->item, EBADMSG);
}

static _Noreturn void refused(const struct unpack *unpack)
{
	fail(unpack->to, STAGE_FILE_WRITE, unpack->item, errno);
}

/* The next `size` bytes of the stream in one piece; at most as many as the buffer holds. */
static char *take(struct unpack *unpack, size_t size)
{
	if (unpack->filled - unpack->at < size) {
		memmove(unpack->in, unpack->in + unpack->at, unpack->filled - unpack->at);
		unpack->filled -= unpack->at;
		unpack->at = 0;
	}
	while (unpack->filled - unpack->at < size) {
		ssize_t got = read(STDIN_FILENO, unpack->in + unpack->filled, sizeof unpack->in - unpack->filled);
		if (got < 0)
			fail(unpack->to, STAGE_TREE_STREAM, unpack->item, errno);
		if (got == 0) /* the supervisor gave up */
			malformed(unpack);
		unpack->filled += (size_t)got;
	}
	char *taken = unpack->in + unpack->at;
	unpack->at += size;
	return taken;
}

static uint64_t get_octal(const struct unpack *unpack, const char *field, size_t size)
{
	uint64_t number = 0;
	for (size_t i = 0; i < size && field[i] != '\0' && field[i] != ' '; i++) {
		if (field[i] < '0' || field[i] > '7')
			malformed(unpack);
		number = number << 3 | (uint64_t)(field[i] - '0');
	}
	return number;
}

static void set_text(const struct unpack *unpack, char *text, const char *value, size_t length)
{
	if (length >= TREE_PATH_MAX || memchr(value, '\0', length))
		malformed(unpack);
	memcpy(text, value, length);
	text[length] = '\0';
}

/* One record, "LENGTH KEY=VALUE\n". Returns its length. */
static size_t take_record(struct unpack *unpack, const char *record, size_t left)
{
	size_t length = 0, at = 0;
	for (; at < left && at < 6 && record[at] >= '0' && record[at] <= '9'; at++)
		length = length * 10 + (size_t)(record[at] - '0');
	if (at == left || record[at++] != ' ' || length > left || length <= at || record[length - 1] != '\n')
		malformed(unpack);
	const char *key = record + at, *end = record + length - 1;
	const char *equals = memchr(key, '=', (size_t)(end - key));
	if (!equals)
		malformed(unpack);
	size_t key_length = (size_t)(equals - key), value_length = (size_t)(end - equals - 1);
	if (key_length == 4 && memcmp(key, "path", 4) == 0) {
		set_text(unpack, unpack->path, equals + 1, value_length);
	} else if (key_length == 8 && memcmp(key, "linkpath", 8) == 0) {
		set_text(unpack, unpack->link, equals + 1, value_length);
	} else if (key_length == 4 && memcmp(key, "size", 4) == 0) {
		unpack->size = 0;
		unpack->has_size = true;
		for (const char *digit = equals + 1; digit < end; digit++) {
			if (*digit < '0' || *digit > '9' || unpack->size > 1ull << 50)
				malformed(unpack);
			unpack->size = unpack->size * 10 + (uint64_t)(*digit - '0');
		}
	}
	return length;
}

static void take_records(struct unpack *unpack, uint64_t size)
{
	if (size > TREE_PAX_MAX)
		malformed(unpack);
	size_t padded = (size_t)(size + TREE_BLOCK - 1) / TREE_BLOCK * TREE_BLOCK;
	const char *records = take(unpack, padded);
	for (size_t at = 0; at < size;)
		at += take_record(unpack, records + at, (size_t)size - at);
}

/* Open the directory that an entry is in, and return the entry's name there. The last one is kept open. */
static const char *open_parent(struct unpack *unpack, const char *path, int *ret_parent)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
	char parent_path[TREE_PATH_MAX] = ".";
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (slash) {
		memcpy(parent_path, path, (size_t)(slash - path));
		parent_path[slash - path] = '\0';
	}
	if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		malformed(unpack);
	if (unpack->parent < 0 || strcmp(unpack->parent_path, parent_path) != 0) {
		close_fd(&unpack->parent);
		unpack->parent = sys_openat2(unpack->root, parent_path, &how);
		strcpy(unpack->parent_path, parent_path);
	}
	if (unpack->parent < 0)
		refused(unpack);
	*ret_parent = unpack->parent;
	return name;
}

/* Make way for an entry. Anything but a directory goes. Returns false if it cannot. */
static bool make_way(int parent, const char *name)
{
	return errno == EEXIST && unlinkat(parent, name, 0) == 0;
}

static void make_directory(struct unpack *unpack, int parent, const char *name, mode_t mode)
{
	struct stat st;
	if (mkdirat(parent, name, (mode & 01777) | 0700) == 0)
		return;
	int error = errno;
	if (error == EEXIST && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		error = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
	errno = error;
	if (error)
		refused(unpack);
}

static void make_link(struct unpack *unpack, int parent, const char *name)
{
	int from = -1;
	cleanup_fd int to = fcntl(parent, F_DUPFD_CLOEXEC, 0); /* the next line may close the one that is kept open */
	const char *from_name = open_parent(unpack, unpack->link, &from);
	if (to < 0 || (linkat(from, from_name, to, name, 0) < 0 &&
	               (!make_way(to, name) || linkat(from, from_name, to, name, 0) < 0)))
		refused(unpack);
}

static void make_symlink(struct unpack *unpack, int parent, const char *name)
{
	if (symlinkat(unpack->link, parent, name) < 0 &&
	    (!make_way(parent, name) || symlinkat(unpack->link, parent, name) < 0))
		refused(unpack);
}

/* What is not whole is removed again, as far as we live to do so. */
static void make_file(struct unpack *unpack, int parent, const char *name, mode_t mode, time_t mtime)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = mtime } };
	int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	cleanup_fd int fd = openat(parent, name, flags, mode & 0777);
	if (fd < 0 && make_way(parent, name))
		fd = openat(parent, name, flags, mode & 0777);
	if (fd < 0)
		refused(unpack);
	for (uint64_t left = unpack->size; left > 0;) {
		if (unpack->at == unpack->filled) {
			(void)take(unpack, 1);
			unpack->at--;
		}
		size_t chunk = unpack->filled - unpack->at;
		chunk = left < chunk ? (size_t)left : chunk;
		ssize_t written = write(fd, unpack->in + unpack->at, chunk);
		if (written < 0) {
			int error = errno;
			(void)unlinkat(parent, name, 0);
			errno = error;
			refused(unpack);
		}
		unpack->at += (size_t)written;
		left -= (uint64_t)written;
	}
	if (futimens(fd, times) < 0)
		refused(unpack);
	(void)take(unpack, (TREE_BLOCK - unpack->size % TREE_BLOCK) % TREE_BLOCK);
}

static void make_entry(struct unpack *unpack, const struct tree_header *header)
{
	int parent = -1;
	const char *name = open_parent(unpack, unpack->path, &parent);
	mode_t mode = (mode_t)get_octal(unpack, header->mode, sizeof header->mode);
	switch ((enum tree_type)header->type) {
	case TREE_DIRECTORY:
		make_directory(unpack, parent, name, mode);
		return;
	case TREE_FILE:
		make_file(unpack, parent, name, mode, (time_t)get_octal(unpack, header->mtime, sizeof header->mtime));
		return;
	case TREE_LINK:
		make_link(unpack, parent, name);
		return;
	case TREE_SYMLINK:
		make_symlink(unpack, parent, name);
		return;
	case TREE_PAX:
	case TREE_OMITTED:
		break;
	}
	malformed(unpack); /* also what is none of these */
}

/* Take one header and what belongs to it. Returns false at the end of the stream. */
static bool take_entry(struct unpack *unpack)
{
	struct tree_header header;
	static const struct tree_header end;
	memcpy(&header, take(unpack, sizeof header), sizeof header);
	if (memcmp(&header, &end, sizeof header) == 0)
		return false;
	if (memcmp(header.magic, "ustar", sizeof header.magic) != 0 ||
	    get_octal(unpack, header.checksum, sizeof header.checksum) != tree_checksum(&header))
		malformed(unpack);
	uint64_t size = get_octal(unpack, header.size, sizeof header.size);
	if (header.type == TREE_PAX) {
		take_records(unpack, size);
		return true;
	}
	if (!unpack->has_size)
		unpack->size = size;
	if (!*unpack->path)
		set_text(unpack, unpack->path, header.name, strnlen(header.name, sizeof header.name));
	if (!*unpack->link)
		set_text(unpack, unpack->link, header.linkname, strnlen(header.linkname, sizeof header.linkname));
	make_entry(unpack, &header);
	*unpack->path = *unpack->link = '\0';
	unpack->has_size = false;
	unpack->item++;
	return true;
}

void tree_unpack(const struct request *req, const struct reporter *to)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS };
	struct unpack *unpack = mmap(NULL, sizeof *unpack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (unpack == MAP_FAILED)
		fail(to, STAGE_FILE_OPEN, -1, ENOMEM);
	unpack->to = to;
	unpack->parent = -1;
	if (mkdir(req->path, 0755) < 0 && errno != EEXIST)
		fail(to, STAGE_FILE_OPEN, -1, errno);
	unpack->root = sys_openat2(AT_FDCWD, req->path, &how);
	if (unpack->root < 0)
		fail(to, STAGE_FILE_OPEN, -1, errno);
	while (take_entry(unpack)) {}
}
