/* The launcher's own surroundings: its sealed binary, its small mount namespace, what it keeps of the host. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

enum { SELF_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

bool host_is_sealed(void)
{
	cleanup_fd int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int seals = self < 0 ? -1 : fcntl(self, F_GET_SEALS);
	return seals >= 0 && (seals & SELF_SEALS) == SELF_SEALS;
}

/* Run from a sealed memfd, so that no write to /proc/PID/exe can ever change the binary (CVE-2019-5736). */
void host_seal_self(char **argv)
{
	cleanup_fd int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (host_is_sealed())
		return;
	struct stat st;
	int copy = memfd_create("minisandbox-launcher", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (self < 0 || copy < 0 || fstat(self, &st) < 0)
		goto failed;
	for (off_t done = 0; done < st.st_size;)
		if (sendfile(copy, self, &done, (size_t)(st.st_size - done)) <= 0)
			goto failed;
	if (fchmod(copy, 0500) < 0 || fcntl(copy, F_ADD_SEALS, SELF_SEALS) < 0)
		goto failed;
	fexecve(copy, argv, (char *const[]){ NULL });
failed:
	fprintf(stderr, "minisandbox-launcher: cannot run from a sealed memory file: %s\n", strerror(errno));
	exit(125);
}

static const struct {
	const char *name;
	unsigned int major, minor;
} DEVICES[] = {
	{ "null", 1, 3 }, { "zero", 1, 5 },    { "full", 1, 7 },
	{ "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 },
};

static const char *const DEVICE_LINKS[][2] = {
	{ "fd", "/proc/self/fd" },       { "stdin", "/proc/self/fd/0" }, { "stdout", "/proc/self/fd/1" },
	{ "stderr", "/proc/self/fd/2" }, { "ptmx", "pts/ptmx" },
};

enum { DEVICE_COUNT = sizeof DEVICES / sizeof *DEVICES };

/* Clone the host's nodes while they are still in our mount namespace; -1 for one that is not there. */
static void clone_devices(int *ret_nodes)
{
	cleanup_fd int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < DEVICE_COUNT; i++)
		ret_nodes[i] = dev < 0 ? -1 : mount_clone(dev, DEVICES[i].name, 0);
}

/* One device: a node of our own where mknod is allowed, else the host's node bound. */
static int make_device(int dev_fd, int node, const char *name, dev_t device)
{
	if (mknodat(dev_fd, name, S_IFCHR | 0666, device) == 0)
		return fchmodat(dev_fd, name, 0666, 0);
	cleanup_fd int file = openat(dev_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
	return file < 0 ? -1 : mount_attach(node, dev_fd, name);
}

/* One /dev for all sandboxes: they see a read-only clone of it. */
static void make_devices(int *nodes, const struct reporter *to)
{
	cleanup_fd int at = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < DEVICE_COUNT; i++) {
		if (make_device(at, nodes[i], DEVICES[i].name, makedev(DEVICES[i].major, DEVICES[i].minor)) < 0)
			fail(to, STAGE_DEVICES, i, errno);
		close_fd(&nodes[i]);
	}
	for (size_t i = 0; i < sizeof DEVICE_LINKS / sizeof *DEVICE_LINKS; i++)
		if (symlinkat(DEVICE_LINKS[i][1], at, DEVICE_LINKS[i][0]) < 0)
			fail(to, STAGE_DEVICES, (int)i, errno);
	if (mkdirat(at, "shm", 0755) < 0 || mkdirat(at, "pts", 0755) < 0 || pin_times(at, ".") < 0)
		fail(to, STAGE_DEVICES, -1, errno);
}

/* A new /proc may be mounted only where one is visible that hides nothing (mount_too_revealing in fs/namespace.c): an
 * ordinary user's launcher keeps the host's, and every init takes it away after it has made its own. */
static void keep_proc(int proc, const struct reporter *to)
{
	if (proc < 0 || mount_attach(proc, AT_FDCWD, "/proc") < 0)
		fail(to, STAGE_LAUNCHER_ROOT, -1, errno);
}

/* A root of our own with nothing on it but mount points and the devices, which mean nothing there (nodev). It is our only
 * mount: each is copied at every start (2.2 us). */
static void make_root(const struct reporter *to)
{
	static const char *const options[][2] = { { "size", "64k" }, { "mode", "755" }, { NULL, NULL } };
	static const char *const directories[] = { "/root", "/x", "/dev", "/proc", "/pod" };
	cleanup_fd int root = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	/* pivot_root(2) visits every task of the host; here it is paid once in the launcher's life */
	if (root < 0 || mount_attach(root, AT_FDCWD, "/tmp") < 0 || chdir("/tmp") < 0 || sys_pivot_root(".", ".") < 0 ||
	    umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		fail(to, STAGE_LAUNCHER_ROOT, -1, errno);
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
		if (mkdir(directories[i], 0755) < 0)
			fail(to, STAGE_LAUNCHER_ROOT, (int)i, errno);
}

/* Since Linux 6.15 an overlay takes its layers by descriptor, detached ones too, and a detached mount can be cloned. */
static bool can_overlay_by_fd(void)
{
	static const char *const options[][2] = { { "size", "64k" }, { NULL, NULL } };
	cleanup_fd int tmpfs = mount_new("tmpfs", options, 0);
	if (tmpfs < 0 || mkdirat(tmpfs, "layer", 0755) < 0)
		return false;
	cleanup_fd int layer = mount_clone(tmpfs, "layer", 0);
	cleanup_fd int overlay = sys_fsopen("overlay");
	return layer >= 0 && overlay >= 0 && sys_fsconfig(overlay, FSCONFIG_SET_FD, "lowerdir+", NULL, layer) == 0;
}

/* Before: what a start needs is attached below one mount, /x, while the overlay is made by path, so that one umount2(2)
 * takes it all away again; that waits for RCU (50 to 90 us here). */
void host_make_workplace(const struct reporter *to)
{
	static const char *const options[][2] = { { "size", "1m" }, { "mode", "755" }, { NULL, NULL } };
	static const char *const directories[] = { "/x/up", "/x/l", "/x/plain" };
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	char name[16];
	cleanup_fd int workplace = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	if (workplace < 0 || mount_attach(workplace, AT_FDCWD, "/x") < 0)
		fail(to, STAGE_LAUNCHER_ROOT, -1, errno);
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
		if (mkdir(directories[i], 0755) < 0)
			fail(to, STAGE_LAUNCHER_ROOT, (int)i, errno);
	for (int i = 0; i < LAYERS_MAX; i++) {
		(void)snprintf(name, sizeof name, "/x/l/%d", i);
		if (mkdir(name, 0755) < 0)
			fail(to, STAGE_LAUNCHER_ROOT, i, errno);
	}
	if (sys_mount_setattr(workplace, "", AT_EMPTY_PATH, &read_only) < 0)
		fail(to, STAGE_LAUNCHER_ROOT, -1, errno);
}

/* Do without what is newer than Linux 6.1, as an older kernel would have to. */
void host_use_paths(struct host *host, const struct reporter *to)
{
	if (host->overlay_by_fd)
		host_make_workplace(to);
	host->overlay_by_fd = false;
}

/* The host's mount namespace is not of our user namespace, so there is no way back into it: a copy takes its place, in which
 * the host's later mounts appear too, and from which nothing comes back. */
static void see_host(struct host *host, const struct reporter *to)
{
	close_fd(&host->mount_ns_fd);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		fail(to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
	host->mount_ns_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (host->mount_ns_fd < 0)
		fail(to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
}

/* Enter a mount namespace of our own, keeping of the host only descriptors of its namespaces, /proc and /dev. */
void host_open(struct host *host, const struct reporter *to)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	host->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	host->mount_ns_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	host->net_ns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	int nodes[DEVICE_COUNT];
	if (host->proc_fd < 0 || host->mount_ns_fd < 0 || host->net_ns_fd < 0)
		fail(to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
	if (host->rootless)
		see_host(host, to);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		fail(to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
	clone_devices(nodes);
	cleanup_fd int proc = host->rootless ? mount_clone(AT_FDCWD, "/proc", AT_RECURSIVE) : -1;
	make_root(to);
	if (host->rootless)
		keep_proc(proc, to);
	make_devices(nodes, to);
	if (sys_mount_setattr(AT_FDCWD, "/", 0, &read_only) < 0)
		fail(to, STAGE_LAUNCHER_ROOT, -1, errno);
	host->overlay_by_fd = can_overlay_by_fd();
	if (!host->overlay_by_fd)
		host_make_workplace(to);
	host->own_mount_ns_fd = openat(host->proc_fd, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (host->own_mount_ns_fd < 0)
		fail(to, STAGE_LAUNCHER_NAMESPACE, -1, errno);
}

/* When the host runs out of memory, or all sandboxes together reach their limit, the kernel shall take from them, and
 * neither us nor who trains beside us (proc_pid_oom_score_adj(5)). Only by the host's CAP_SYS_RESOURCE: without it, the
 * score that we came with stays the least, and who is inside could go back to it (__set_oom_adj in fs/proc/base.c). No
 * protection of the sandbox depends on it, so a failure is none. */
void host_offer(const struct host *host)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };
	if (host->rootless || host->pod || syscall(SYS_capget, &header, data) < 0 ||
	    !(data[0].effective & 1u << CAP_SYS_RESOURCE))
		return;
	cleanup_fd int fd = openat(host->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		(void)!write(fd, "1000", 4);
}
