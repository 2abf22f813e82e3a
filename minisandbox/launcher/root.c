/* The mounts of one sandbox, made in its own mount namespace as real root, and the switch to its root.
 *
 * The namespace begins as a copy of the launcher's: a read-only tmpfs as "/" with nothing on it. Where the kernel cannot make
 * an overlay of detached mounts, there is the workplace /x on it too: layers and the writable tmpfs are attached there
 * while the overlay is made, which keeps clones of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

enum { PLAIN = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };

struct root {
	const struct host *host;
	const struct slot *slot;
	const struct request *req;
	const struct trees *trees;
	const struct reporter *to;
	int plain_fd; /* the writable tmpfs */
	int disk_fd;  /* the same, its ids seen through the map of the slot */
	int root_fd;  /* the overlay */
};

/* A detached mount can be cloned only in the mount namespace that it was made in: return one that was made here. */
static int adopt(int mount_fd)
{
	if (mount_attach(mount_fd, AT_FDCWD, "/root") < 0)
		return -1;
	int own = mount_clone(mount_fd, "", 0);
	int error = errno;
	if (umount2("/root", MNT_DETACH) < 0)
		return -1;
	errno = error;
	return own;
}

/* One tmpfs, or a directory that was given for it, holds all that the sandbox writes: the overlay's upper and work
 * directories and /dev/shm. */
static void make_disk(struct root *root)
{
	if (root->trees->disk_count) {
		root->plain_fd = adopt(root->trees->disk);
		if (root->plain_fd < 0)
			fail(root->to, STAGE_TMPFS, -1, errno);
		stage_done(root->to, STAGE_TMPFS);
		return;
	}
	char size[32], inodes[32];
	const char *options[4][2] = { { "mode", "755" } };
	size_t count = 1;
	(void)snprintf(size, sizeof size, "%llu", (unsigned long long)root->req->disk_bytes);
	(void)snprintf(inodes, sizeof inodes, "%llu", (unsigned long long)root->req->disk_inodes);
	if (root->req->disk_bytes)
		options[count][0] = "size", options[count++][1] = size;
	if (root->req->disk_inodes)
		options[count][0] = "nr_inodes", options[count++][1] = inodes;
	options[count][0] = NULL;
	root->plain_fd = mount_new("tmpfs", options, PLAIN);
	if (root->plain_fd < 0)
		fail(root->to, STAGE_TMPFS, -1, errno);
	stage_done(root->to, STAGE_TMPFS);
}

/* The directories are made with id 0 before the mount is idmapped: through the map, host ids would not be valid.
 * Before 6.3 tmpfs cannot be idmapped; then the host ids of the slot lie on it. */
static void make_upper(struct root *root)
{
	static const struct {
		const char *name;
		mode_t mode;
	} directories[] = { { "u", 0755 }, { "w", 0755 }, { "shm", 01777 } };
	int disk = root->plain_fd;
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
		if (mkdirat(disk, directories[i].name, 0700) < 0 ||
		    fchmodat(disk, directories[i].name, directories[i].mode, 0) < 0)
			fail(root->to, STAGE_UPPER, (int)i, errno);
	root->disk_fd = root->host->rootless ? disk : disk_map(&root->plain_fd, root->slot->user_ns_fd, root->trees->by_fd);
	if (root->disk_fd < 0) {
		if (errno != EINVAL)
			fail(root->to, STAGE_UPPER, -1, errno);
		root->disk_fd = disk = root->plain_fd;
		uid_t base = root->slot->uid_base;
		for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
			if (fchownat(disk, directories[i].name, base, base, 0) < 0)
				fail(root->to, STAGE_UPPER, (int)i, errno);
	}
	stage_done(root->to, STAGE_UPPER);
}

/* Marks of overlayfs are attributes named trusted.*, which only the host's root can set: others' are user.*. */
static const char *marks_of(const struct root *root)
{
	return root->host->rootless ? "userxattr" : NULL;
}

static void attach_layers(const struct root *root, char *lowerdir, size_t size)
{
	char name[16];
	size_t length = 0;
	for (uint32_t i = 0; i < root->trees->layer_count; i++) {
		(void)snprintf(name, sizeof name, "/x/l/%u", i);
		if (mount_attach(root->trees->layer[i], AT_FDCWD, name) < 0)
			fail(root->to, STAGE_LAYER, (int)i, errno);
		length += (size_t)snprintf(lowerdir + length, size - length, "%s%s", i ? ":" : "", name);
		if (length >= size)
			fail(root->to, STAGE_LAYER, (int)i, ENAMETOOLONG);
	}
	if (mount_attach(root->disk_fd, AT_FDCWD, "/x/up") < 0)
		fail(root->to, STAGE_UPPER, -1, errno);
}

static int overlay_by_path(const struct root *root)
{
	char lowerdir[256]; /* fsconfig(2) takes no longer string */
	attach_layers(root, lowerdir, sizeof lowerdir);
	const char *const options[][2] = { { "lowerdir", lowerdir },   { "upperdir", "/x/up/u" },
		                           { "workdir", "/x/up/w" },   { "volatile", NULL },
		                           { "redirect_dir", "nofollow" },  { "metacopy", "off" },
		                           { "index", "off" },         { marks_of(root), NULL },
		                           { NULL, NULL } };
	return mount_new("overlay", options, PLAIN);
}

static int overlay_by_fd(const struct root *root)
{
	/* what the upper directory says of layers below it by name would be wrong once it is a layer itself; "off" would be refused
	 * beside userxattr (ovl_fs_params_verify in fs/overlayfs/params.c) */
	const char *const options[][2] = { { "volatile", NULL }, { "redirect_dir", "nofollow" }, { "metacopy", "off" },
		                                  { "index", "off" },   { marks_of(root), NULL },    { NULL, NULL } };
	cleanup_fd int upper = openat(root->disk_fd, "u", O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int work = openat(root->disk_fd, "w", O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int context = sys_fsopen("overlay");
	if (upper < 0 || work < 0 || context < 0)
		return -1;
	for (uint32_t i = 0; i < root->trees->layer_count; i++)
		if (sys_fsconfig(context, FSCONFIG_SET_FD, "lowerdir+", NULL, root->trees->layer[i]) < 0)
			fail(root->to, STAGE_LAYER, (int)i, errno);
	if (sys_fsconfig(context, FSCONFIG_SET_FD, "upperdir", NULL, upper) < 0 ||
	    sys_fsconfig(context, FSCONFIG_SET_FD, "workdir", NULL, work) < 0)
		return -1;
	return mount_create(context, options, PLAIN);
}

/* The file system is made with the ids of the slot's root, or its work directory could not be made on the idmapped
 * upper and it would silently be read-only; setfsuid(2) lowers capabilities that making it needs, so raise them again. */
static void make_overlay(struct root *root)
{
	uid_t base = root->slot->uid_base;
	(void)setfsgid(base);
	(void)setfsuid(base);
	if (sys_capraise() < 0)
		fail(root->to, STAGE_OVERLAY, -1, errno);
	int overlay = root->trees->by_fd ? overlay_by_fd(root) : overlay_by_path(root);
	int error = errno;
	(void)setfsuid(0);
	(void)setfsgid(0);
	if (overlay < 0)
		fail(root->to, STAGE_OVERLAY, -1, error);
	if (mount_attach(overlay, AT_FDCWD, "/root") < 0)
		fail(root->to, STAGE_OVERLAY, -1, errno);
	root->root_fd = overlay;
	stage_done(root->to, STAGE_OVERLAY);
}

/* Make a mount point that is not there, owned by the sandbox's root. Returns an O_PATH descriptor or -1. */
static int target_make(const struct root *root, const char *path, bool file)
{
	uid_t base = root->slot->uid_base;
	(void)setfsgid(base);
	(void)setfsuid(base);
	int target = sys_capraise() < 0 ? -1 : target_open(root->root_fd, path, file, true);
	int error = errno;
	(void)setfsuid(0);
	(void)setfsgid(0);
	errno = error;
	return target;
}

/* Attach on a directory or file of the root. */
static void attach_inside(const struct root *root, enum stage stage, int item, int mount_fd, const char *path, bool file)
{
	cleanup_fd int target = target_open(root->root_fd, path, file, false);
	if (target < 0 && errno == ENOENT)
		target = target_make(root, path, file);
	if (target < 0 || mount_attach(mount_fd, target, "") < 0)
		fail(root->to, stage, item, errno);
}

static void make_proc(const struct root *root)
{
	static const char *const full[][2] = { { NULL, NULL } };
	static const char *const pid_only[][2] = { { "subset", "pid" }, { NULL, NULL } };
	struct statfs st;
	/* a warm process is in the pid namespace of its pod, which has no other */
	cleanup_fd int proc = root->req->verb == VERB_WARM ?
	                              mount_clone(AT_FDCWD, "/proc", 0) :
	                              mount_new("proc", root->req->pid_proc ? pid_only : full, PLAIN | MOUNT_ATTR_NOEXEC);
	if (proc < 0)
		fail(root->to, STAGE_PROC, -1, errno);
	/* a root that shows something else as /proc would get what is written there (CVE-2019-16884) */
	if (fstatfs(proc, &st) < 0 || st.f_type != PROC_SUPER_MAGIC)
		fail(root->to, STAGE_PROC, -1, EINVAL);
	attach_inside(root, STAGE_PROC, -1, proc, "proc", false);
	if (root->host->rootless && umount2("/proc", MNT_DETACH) < 0)
		fail(root->to, STAGE_PROC, -1, errno);
	stage_done(root->to, STAGE_PROC);
}

static void make_pts(const struct root *root)
{
	char gid[32];
	const char *options[][2] = { { "ptmxmode", "666" }, { "mode", "620" }, { "gid", gid }, { NULL, NULL } };
	if (root->host->single_id)
		options[2][0] = NULL; /* root's group, the only one */
	(void)snprintf(gid, sizeof gid, "%u", root->slot->uid_base + 5); /* group tty of every Linux distribution */
	cleanup_fd int pts = mount_new("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	if (pts < 0)
		fail(root->to, STAGE_PTS, -1, errno);
	attach_inside(root, STAGE_PTS, -1, pts, "dev/pts", false);
}

static void make_dev(const struct root *root)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
		                   .attr_clr = MOUNT_ATTR_NODEV };
	cleanup_fd int dev = mount_clone(AT_FDCWD, "/dev", AT_RECURSIVE);
	if (dev < 0 || sys_mount_setattr(dev, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0)
		fail(root->to, STAGE_DEV, -1, errno);
	attach_inside(root, STAGE_DEV, -1, dev, "dev", false);
	stage_done(root->to, STAGE_DEV);
	cleanup_fd int shm = root->trees->by_fd ? mount_clone(root->disk_fd, "shm", 0) :
	                                          mount_clone(AT_FDCWD, "/x/up/shm", 0);
	cleanup_fd int target = openat(dev, "shm", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (shm < 0 || target < 0 || mount_attach(shm, target, "") < 0)
		fail(root->to, STAGE_SHM, -1, errno);
	if (root->req->terminal) {
		make_pts(root);
	}
	stage_done(root->to, STAGE_SHM);
}

static void make_binds(const struct root *root)
{
	for (uint32_t i = 0; i < root->trees->bind_count; i++) {
		struct stat st;
		if (fstat(root->trees->bind[i], &st) < 0)
			fail(root->to, STAGE_BIND, (int)i, errno);
		attach_inside(root, STAGE_BIND, (int)i, root->trees->bind[i], root->req->binds.text[i] + strlen("ro:"),
		              !S_ISDIR(st.st_mode));
	}
	stage_done(root->to, STAGE_BIND);
}

/* Unmount everything but the empty root, move the new root onto it and step in. No pivot_root(2): that visits every
 * task of the host (4.7 ms beside 7,000 processes). `..` cannot climb out, as the new root covers the old one's root. */
void root_switch(const struct trees *trees, const struct reporter *to)
{
	if (!trees->by_fd && umount2("/x", MNT_DETACH) < 0)
		fail(to, STAGE_UNMOUNT, -1, errno);
	stage_done(to, STAGE_UNMOUNT);
	if (chdir("/root") < 0 || sys_move_mount(AT_FDCWD, ".", AT_FDCWD, "/", 0) < 0 || chroot(".") < 0 ||
	    chdir("/") < 0)
		fail(to, STAGE_ROOT, -1, errno);
	stage_done(to, STAGE_ROOT);
}

/* Make the sandbox's root on /root. */
struct disk root_build(const struct host *host, const struct slot *slot, const struct request *req,
                       const struct trees *trees, const struct reporter *to)
{
	struct root root = { .host = host, .slot = slot, .req = req, .trees = trees, .to = to, .plain_fd = -1, .disk_fd = -1,
		             .root_fd = -1 };
	make_disk(&root);
	make_upper(&root);
	make_overlay(&root);
	make_proc(&root);
	make_dev(&root);
	make_binds(&root);
	if (req->deterministic && (pin_times(root.plain_fd, "u") < 0 || pin_times(root.plain_fd, "shm") < 0))
		fail(to, STAGE_PIN, -1, errno);
	close_fd(&root.root_fd);
	return (struct disk){ .fd = root.plain_fd, .sealable = root.plain_fd != root.disk_fd };
}
