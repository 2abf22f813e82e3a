/* The writable file system of a sandbox: how it is seen inside, and how it ends as a layer of others. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* A detached mount can be cloned since Linux 6.15; before, it is attached for that, and a clone takes its place, which can be
 * attached elsewhere once more. Returns a second clone. */
static int clone_disk(int *disk_fd, bool by_fd)
{
	if (by_fd)
		return mount_clone(*disk_fd, "", 0);
	if (mount_attach(*disk_fd, AT_FDCWD, "/x/plain") < 0)
		return -1;
	int plain = mount_clone(*disk_fd, "", 0);
	int second = mount_clone(*disk_fd, "", 0);
	if (plain < 0 || second < 0)
		return -1;
	(void)close(*disk_fd);
	*disk_fd = plain;
	return second;
}

/* Return a mount of the disk that shows the ids on it through the map of a slot: what is written through it has the ids
 * seen inside, whatever slot wrote it, so that it can be a layer of a sandbox in any other. The disk itself stays as it
 * is, since a map cannot be taken off. Returns -1 with EINVAL where tmpfs cannot be idmapped (before 6.3). */
int disk_map(int *disk_fd, int user_ns_fd, bool by_fd)
{
	int mapped = clone_disk(disk_fd, by_fd);
	if (mapped < 0 || mount_set(mapped, 0, user_ns_fd) == 0)
		return mapped;
	int error = errno;
	(void)close(mapped);
	errno = error;
	return -1;
}

static int make_read_only(int disk_fd)
{
	cleanup_fd int context = sys_fspick(disk_fd);
	if (context < 0 || sys_fsconfig(context, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0 ||
	    sys_fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
		return errno;
	return 0;
}

/* The overlay of a sandbox remembers files of the disk that were removed, when they have another name that it has looked
 * up, and their directories; they keep the disk from becoming read-only. A reconfiguration that changes nothing lets an
 * overlay forget all that nobody uses (shrink_dcache_sb in reconfigure_super, fs/super.c). */
static void forget_unused(const struct host *host, pid_t init)
{
	char path[32];
	(void)snprintf(path, sizeof path, "%d/root", init);
	cleanup_fd int root = openat(host->proc_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int context = root < 0 ? -1 : sys_fspick(root);
	if (context >= 0)
		(void)sys_fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0); /* the next try tells */
}

/* Where a detached mount cannot be cloned, a sealed disk is attached in a mount namespace of its own: whoever enters that can
 * clone it, and both are gone with the last descriptors of them. Returns one of the namespace, or -1. */
static int keep_attached(const struct host *host, int disk_fd)
{
	if (unshare(CLONE_NEWNS) < 0)
		return -1;
	int fd = mount_attach(disk_fd, AT_FDCWD, "/root") < 0 ? -1 : openat(host->proc_fd, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int error = errno;
	if (setns(host->own_mount_ns_fd, CLONE_NEWNS) < 0)
		_exit(125); /* each mount of ours would be copied into every sandbox */
	errno = error;
	return fd;
}

/* Make a file system read-only, whoever has it mounted and however, and say SEALED; or FAILED with the stage SEAL_DISK,
 * EBUSY when a file there is open for writing. `init` is that of the sandbox, 0 when it is gone. */
void disk_seal(const struct host *host, pid_t init, const struct request *req, const struct reporter *to)
{
	int error = make_read_only(req->disk.fd[0]);
	if (error == EBUSY && init) {
		forget_unused(host, init);
		error = make_read_only(req->disk.fd[0]);
	}
	cleanup_fd int kept = error || host->overlay_by_fd ? -1 : keep_attached(host, req->disk.fd[0]);
	if (!error && !host->overlay_by_fd && kept < 0)
		error = errno;
	struct record record = { .kind = RECORD_SEALED, .id = to->id };
	if (error)
		record = (struct record){ .kind = RECORD_FAILED, .stage = STAGE_SEAL_DISK, .id = to->id, .error = error,
			                  .item = -1 };
	(void)record_send(to->socket, record, kept); /* whoever is gone needs no answer */
}
