/* Mounts by descriptor: make, clone, restrict, attach. Destinations never follow a link out of the root. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* Clone the mount at `path` (or of source_fd itself when path is "") as a detached one. Returns a descriptor or -1. */
int mount_clone(int source_fd, const char *path, unsigned int flags)
{
	unsigned int empty = *path ? 0 : AT_EMPTY_PATH;
	return sys_open_tree(source_fd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | empty | flags);
}

/* Set attributes of a detached mount; with user_ns_fd >= 0 its ids are seen through that namespace's map. */
int mount_set(int mount_fd, uint64_t attributes, int user_ns_fd)
{
	struct mount_attr attr = { .attr_set = attributes };
	if (user_ns_fd >= 0) {
		attr.attr_set |= MOUNT_ATTR_IDMAP;
		attr.userns_fd = (uint64_t)user_ns_fd;
	}
	return sys_mount_setattr(mount_fd, "", AT_EMPTY_PATH, &attr);
}

/* Set attributes of a detached mount and of all that is mounted below it. */
int mount_set_all(int mount_fd, uint64_t attributes)
{
	struct mount_attr attr = { .attr_set = attributes };
	return sys_mount_setattr(mount_fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr);
}

/* Attach a detached mount on the directory or file `path` below target_fd ("" for target_fd itself). */
int mount_attach(int mount_fd, int target_fd, const char *path)
{
	unsigned int empty = *path ? 0 : MOVE_MOUNT_T_EMPTY_PATH;
	return sys_move_mount(mount_fd, "", target_fd, path, MOVE_MOUNT_F_EMPTY_PATH | empty);
}

/* Make a new file system of `type`; options are pairs, a NULL value being a flag, the list ending with a NULL key. */
int mount_new(const char *type, const char *const options[][2], uint64_t attributes)
{
	cleanup_fd int context = sys_fsopen(type);
	return context < 0 ? -1 : mount_create(context, options, attributes);
}

/* The same, of a file system that was opened and perhaps configured before. */
int mount_create(int context, const char *const options[][2], uint64_t attributes)
{
	for (size_t i = 0; options[i][0]; i++) {
		unsigned int command = options[i][1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
		if (sys_fsconfig(context, command, options[i][0], options[i][1], 0) < 0)
			return -1;
	}
	if (sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -1;
	return sys_fsmount(context, (unsigned int)attributes);
}

static int open_beneath(int directory_fd, const char *name, uint64_t flags)
{
	struct open_how how = { .flags = flags | O_PATH | O_CLOEXEC | O_NOFOLLOW,
		                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
	return sys_openat2(directory_fd, name, &how);
}

static int make_and_open(int directory_fd, const char *name, bool file)
{
	if (!file) {
		if (mkdirat(directory_fd, name, 0755) < 0)
			return -1;
		return open_beneath(directory_fd, name, O_DIRECTORY);
	}
	int fd = openat(directory_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	(void)close(fd);
	return open_beneath(directory_fd, name, 0);
}

/* Open a mount point below root_fd, component by component and never through a link; with `make`, what is missing is
 * made. Returns an O_PATH descriptor or -1. ENOTDIR or ELOOP: something else is there. */
int target_open(int root_fd, const char *path, bool file, bool make)
{
	char name[256];
	int at = open_beneath(root_fd, ".", O_DIRECTORY);
	while (at >= 0 && *(path += strspn(path, "/"))) {
		size_t length = strcspn(path, "/");
		if (length >= sizeof name) {
			errno = ENAMETOOLONG;
			close_fd(&at);
			break;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		path += length;
		bool last = path[strspn(path, "/")] == '\0';
		int next = open_beneath(at, name, last && file ? 0 : O_DIRECTORY);
		if (next < 0 && errno == ENOENT && make)
			next = make_and_open(at, name, last && file);
		int error = errno;
		close_fd(&at);
		errno = error;
		at = next;
	}
	return at;
}
