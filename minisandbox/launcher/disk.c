/* The writable file system of a sandbox: how it is seen inside, and how it ends as a layer of others. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* Return a mount of the disk that shows the ids on it through the map of a slot: what is written through it has the ids
 * seen inside, whatever slot wrote it, so that it can be a layer of a sandbox in any other. The disk itself stays as it
 * is, since a map cannot be taken off. Where a detached mount cannot be cloned (before 6.15) the disk itself is mapped.
 * Returns -1 with EINVAL where tmpfs cannot be idmapped (before 6.3). */
int disk_map(int disk_fd, int user_ns_fd)
{
	int mapped = mount_clone(disk_fd, "", 0);
	if (mapped < 0) {
		if (errno != EINVAL || mount_set(disk_fd, 0, user_ns_fd) < 0)
			return -1;
		return disk_fd;
	}
	if (mount_set(mapped, 0, user_ns_fd) == 0)
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

/* Make a file system read-only, whoever has it mounted and however, and say SEALED; or FAILED with the stage SEAL_DISK,
 * EBUSY when a file there is open for writing. `init` is that of the sandbox, 0 when it is gone. */
void disk_seal(const struct host *host, pid_t init, const struct request *req, const struct reporter *to)
{
	int error = make_read_only(req->disk.fd[0]);
	if (error == EBUSY && init) {
		forget_unused(host, init);
		error = make_read_only(req->disk.fd[0]);
	}
	struct record record = { .kind = RECORD_SEALED, .id = to->id };
	if (error)
		record = (struct record){ .kind = RECORD_FAILED, .stage = STAGE_SEAL_DISK, .id = to->id, .error = error,
			                  .item = -1 };
	(void)record_send(to->socket, record, -1); /* whoever is gone needs no answer */
}
