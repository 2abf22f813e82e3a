/* A tree of a sandbox as a stream on stdout, made by a process inside it with the sandbox's ids. It goes by descriptors
 * and never through a link, asks for nothing but what it was told to pack, and takes the same memory for every tree. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"
#include "tree.h"

struct directory {
	int fd;
	uint32_t at, filled;
	size_t path_length;
	char entries[4096] __attribute__((aligned(8))); /* of getdents64(2) */
};

struct pack {
	const struct reporter *to;
	uint32_t depth;
	size_t out_used;
	char path[TREE_PATH_MAX];
	char target[TREE_PATH_MAX];
	char out[1 << 18];
	struct directory directories[TREE_DEPTH_MAX];
	struct {
		uint64_t dev, ino;
	} links[TREE_LINKS_MAX];
};

/* What is said of one entry beside its path. */
struct entry {
	enum tree_type type;
	const struct stat *st;
	uint64_t size;
	const char *target; /* of a symbolic link */
	bool has_names;     /* a file with several names */
	int error;          /* why it was left out */
};

static void flush(struct pack *pack)
{
	for (size_t done = 0; done < pack->out_used;) {
		ssize_t written = write(STDOUT_FILENO, pack->out + done, pack->out_used - done);
		if (written < 0)
			_exit(1); /* nobody reads any more */
		done += (size_t)written;
	}
	pack->out_used = 0;
}

/* Room for so many bytes, which are counted as written. */
static char *reserve(struct pack *pack, size_t size)
{
	if (pack->out_used + size > sizeof pack->out)
		flush(pack);
	char *room = pack->out + pack->out_used;
	pack->out_used += size;
	return room;
}

static void put_octal(char *field, size_t size, uint64_t number)
{
	for (size_t i = size - 1; i-- > 0; number >>= 3)
		field[i] = (char)('0' + (number & 7));
	field[size - 1] = '\0';
}

/* As much of the text as fits before a NUL; a pax record says the rest. */
static void put_text(char *field, size_t size, const char *text)
{
	size_t length = strnlen(text, size - 1);
	memcpy(field, text, length);
}

static bool fits_octal(uint64_t number)
{
	return number < 1ull << 33;
}

static void put_header(struct pack *pack, enum tree_type type, const struct entry *entry, uint64_t size)
{
	struct tree_header header = { .magic = "ustar", .version = { '0', '0' } };
	const struct stat *st = entry->st;
	mode_t mode = st->st_mode & (entry->type == TREE_OMITTED ? S_IFMT : 07777);
	put_octal(header.mode, sizeof header.mode, mode);
	put_octal(header.uid, sizeof header.uid, st->st_uid & 07777777);
	put_octal(header.gid, sizeof header.gid, st->st_gid & 07777777);
	put_octal(header.size, sizeof header.size, fits_octal(size) ? size : 0);
	put_octal(header.mtime, sizeof header.mtime,
	          st->st_mtime > 0 && fits_octal((uint64_t)st->st_mtime) ? (uint64_t)st->st_mtime : 0);
	put_octal(header.devmajor, sizeof header.devmajor, (uint64_t)entry->error);
	header.type = (char)type;
	if (type != TREE_PAX) {
		put_text(header.name, sizeof header.name, pack->path);
		put_text(header.linkname, sizeof header.linkname, entry->target ? entry->target : "");
	}
	put_octal(header.checksum, sizeof header.checksum - 1, tree_checksum(&header));
	header.checksum[7] = ' ';
	memcpy(reserve(pack, sizeof header), &header, sizeof header);
}

/* Add "LENGTH KEY=VALUE\n" to `records`; the length counts its own digits too. */
static size_t put_record(char *records, size_t used, const char *key, const char *value)
{
	size_t rest = strlen(key) + strlen(value) + 3, length = rest + 1;
	for (size_t limit = 10; length >= limit; limit *= 10)
		length++;
	length = rest + (size_t)snprintf(NULL, 0, "%zu", length);
	(void)snprintf(records + used, TREE_PAX_MAX - used, "%zu %s=%s\n", length, key, value);
	return used + length;
}

/* The header of an entry at pack->path, with a pax header before it for what does not fit. */
static void put_entry(struct pack *pack, const struct entry *entry)
{
	char records[TREE_PAX_MAX], number[64];
	size_t used = 0;
	if (strlen(pack->path) > sizeof((struct tree_header *)0)->name - 1)
		used = put_record(records, used, "path", pack->path);
	if (entry->target && strlen(entry->target) > sizeof((struct tree_header *)0)->linkname - 1)
		used = put_record(records, used, "linkpath", entry->target);
	if (!fits_octal(entry->size)) {
		(void)snprintf(number, sizeof number, "%llu", (unsigned long long)entry->size);
		used = put_record(records, used, "size", number);
	}
	if (entry->has_names) {
		(void)snprintf(number, sizeof number, "%llu:%llu", (unsigned long long)entry->st->st_dev,
		               (unsigned long long)entry->st->st_ino);
		used = put_record(records, used, "MINISANDBOX.inode", number);
	}
	if (used) {
		size_t padded = (used + TREE_BLOCK - 1) / TREE_BLOCK * TREE_BLOCK;
		memset(records + used, 0, padded - used);
		put_header(pack, TREE_PAX, entry, used);
		memcpy(reserve(pack, padded), records, padded);
	}
	put_header(pack, entry->type, entry, entry->size);
}

static void omit(struct pack *pack, const struct stat *st, int error)
{
	static const struct stat nothing;
	put_entry(pack, &(struct entry){ .type = TREE_OMITTED, .st = st ? st : &nothing, .error = error });
}

/* Whether the file was packed before by another name. It is remembered as long as there is room. */
static bool seen_before(struct pack *pack, const struct stat *st)
{
	uint64_t at = (st->st_ino * 0x9e3779b97f4a7c15ull ^ st->st_dev) >> 16;
	for (size_t tries = 0; tries < 64; tries++, at++) {
		uint64_t *dev = &pack->links[at % TREE_LINKS_MAX].dev, *ino = &pack->links[at % TREE_LINKS_MAX].ino;
		if (*ino == st->st_ino && *dev == st->st_dev)
			return true;
		if (*ino == 0) {
			*dev = st->st_dev;
			*ino = st->st_ino;
			return false;
		}
	}
	return false;
}

static int open_entry(int directory_fd, const char *name, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned int)(flags | O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	return sys_openat2(directory_fd, name, &how);
}

/* Pack exactly the bytes that the header promised, zeros where the file turned out to be shorter.
 * Returns 0, or an errno: ENODATA if it was shorter. */
static int put_content(struct pack *pack, int fd, uint64_t size)
{
	int error = 0;
	for (uint64_t left = size; left > 0;) {
		size_t chunk = sizeof pack->out - pack->out_used;
		if (chunk == 0) {
			flush(pack);
			continue;
		}
		chunk = left < chunk ? (size_t)left : chunk;
		ssize_t got = error ? 0 : read(fd, pack->out + pack->out_used, chunk);
		if (got <= 0) {
			error = error ? error : got < 0 ? errno : ENODATA;
			memset(pack->out + pack->out_used, 0, chunk);
			got = (ssize_t)chunk;
		}
		pack->out_used += (size_t)got;
		left -= (uint64_t)got;
	}
	size_t padding = (TREE_BLOCK - size % TREE_BLOCK) % TREE_BLOCK;
	memset(reserve(pack, padding), 0, padding);
	return error;
}

static void visit_file(struct pack *pack, int directory_fd, const char *name)
{
	struct stat st;
	cleanup_fd int fd = open_entry(directory_fd, name, 0);
	if (fd < 0 || fstat(fd, &st) < 0) {
		omit(pack, NULL, errno);
		return;
	}
	if (!S_ISREG(st.st_mode)) { /* it was one a moment ago */
		omit(pack, &st, 0);
		return;
	}
	struct entry entry = { .type = TREE_FILE, .st = &st, .has_names = st.st_nlink > 1 };
	if (entry.has_names && seen_before(pack, &st)) {
		entry.type = TREE_LINK;
		put_entry(pack, &entry);
		return;
	}
	entry.size = (uint64_t)st.st_size;
	put_entry(pack, &entry);
	int error = put_content(pack, fd, entry.size);
	if (error)
		omit(pack, NULL, error);
}

/* What the kernel makes up as it is asked is nothing to be packed. */
static bool is_procfs(int fd)
{
	struct statfs fs;
	return fstatfs(fd, &fs) < 0 || fs.f_type == PROC_SUPER_MAGIC;
}

static void visit_directory(struct pack *pack, int directory_fd, const char *name)
{
	struct stat st;
	int fd = open_entry(directory_fd, name, O_DIRECTORY);
	if (fd < 0 || fstat(fd, &st) < 0) {
		omit(pack, NULL, errno);
		close_fd(&fd);
		return;
	}
	if (pack->depth == TREE_DEPTH_MAX || is_procfs(fd)) {
		omit(pack, &st, pack->depth == TREE_DEPTH_MAX ? ENAMETOOLONG : EXDEV);
		close_fd(&fd);
		return;
	}
	put_entry(pack, &(struct entry){ .type = TREE_DIRECTORY, .st = &st });
	struct directory *directory = &pack->directories[pack->depth++];
	directory->fd = fd;
	directory->at = directory->filled = 0;
	directory->path_length = pack->depth == 1 ? 0 : strlen(pack->path);
}

static void visit(struct pack *pack, int directory_fd, const char *name)
{
	struct stat st;
	if (fstatat(directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno != ENOENT) /* removed since it was listed */
			omit(pack, NULL, errno);
	} else if (S_ISDIR(st.st_mode)) {
		visit_directory(pack, directory_fd, name);
	} else if (S_ISREG(st.st_mode)) {
		visit_file(pack, directory_fd, name);
	} else if (S_ISLNK(st.st_mode)) {
		ssize_t length = readlinkat(directory_fd, name, pack->target, sizeof pack->target - 1);
		if (length < 0) {
			omit(pack, NULL, errno);
			return;
		}
		pack->target[length] = '\0';
		put_entry(pack, &(struct entry){ .type = TREE_SYMLINK, .st = &st, .target = pack->target });
	} else {
		omit(pack, &st, 0);
	}
}

/* Make pack->path that of an entry of the directory; if that would be too long, that of the directory itself. */
static bool set_path(struct pack *pack, const struct directory *directory, const char *name)
{
	size_t at = directory->path_length, length = strlen(name);
	bool fits = at + 1 + length < sizeof pack->path;
	strcpy(pack->path + at, at ? "" : ".");
	if (!fits || length == 0)
		return fits;
	if (at)
		pack->path[at++] = '/';
	memcpy(pack->path + at, name, length + 1);
	return true;
}

/* The next entry of the innermost directory, or the end of it. */
static void step(struct pack *pack)
{
	struct directory *directory = &pack->directories[pack->depth - 1];
	if (directory->at == directory->filled) {
		long got = syscall(SYS_getdents64, directory->fd, directory->entries, sizeof directory->entries);
		(void)set_path(pack, directory, "");
		if (got < 0)
			omit(pack, NULL, errno);
		if (got <= 0) {
			close_fd(&directory->fd);
			pack->depth--;
			return;
		}
		directory->at = 0;
		directory->filled = (uint32_t)got;
	}
	const struct dirent64 *entry = (const void *)(directory->entries + directory->at);
	directory->at += entry->d_reclen;
	if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
		return;
	if (set_path(pack, directory, entry->d_name))
		visit(pack, directory->fd, entry->d_name);
	else
		omit(pack, NULL, ENAMETOOLONG);
}

void tree_pack(const struct request *req, const struct reporter *to)
{
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS };
	struct pack *pack = mmap(NULL, sizeof *pack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pack == MAP_FAILED)
		fail(to, STAGE_FILE_OPEN, -1, ENOMEM);
	cleanup_fd int root = sys_openat2(AT_FDCWD, req->path, &how);
	if (root < 0)
		fail(to, STAGE_FILE_OPEN, -1, errno);
	if (is_procfs(root))
		fail(to, STAGE_FILE_TYPE, -1, EINVAL);
	pack->to = to;
	strcpy(pack->path, ".");
	visit_directory(pack, root, ".");
	while (pack->depth > 0)
		step(pack);
	memset(reserve(pack, 2 * TREE_BLOCK), 0, 2 * TREE_BLOCK);
	flush(pack);
}
