/* A pod: one user namespace in which a launcher serves the sandboxes of one template, and their warm process with them.
 *
 * A process can fork into a pid namespace only with CAP_SYS_ADMIN over that and over itself, and only downwards (pidns_install
 * in kernel/pid_namespace.c). Nobody shall have that over the host, so all of them live in a user namespace of their own:
 *
 *     launcher, root of the host: makes the user namespace, mounts what all sandboxes show, waits for the next one
 *       +- launcher, process 1 of the pod's pid namespace, root of the user namespace: serves as any launcher does
 *            +- the warm process                         (warm.c)
 *            +- init of a sandbox, as ever; its pid namespace is below that of the pod
 *                 +- a fork of the warm process          (fork.c, helper.c)
 *
 * What is mounted before the user namespace is joined is locked there: nobody inside can uncover it or make it writable.
 * An ordinary user's is the same within his outer user namespace, with the ids that he has there.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

enum { SHOWN = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY };

/* Numbers of processes begin here, so that no fork, whose own are small, mistakes itself for the warm process: libraries
 * tell by the number that they were forked (OpenSSL's openssl_get_fork_id). */
static const char FIRST_PID[] = "20000";

static int write_file(int directory_fd, const char *path, const char *text)
{
	cleanup_fd int fd = openat(directory_fd, path, O_WRONLY | O_CLOEXEC);
	ssize_t length = (ssize_t)strlen(text);
	return fd >= 0 && write(fd, text, (size_t)length) == length ? 0 : -1;
}

/* All 65,536 ids, the warden's too; of an ordinary user those that he has. It belongs to root, so that no warden has rights over it. Returns it, or -1. */
static int make_user_ns(const struct host *host, uint32_t uid_base)
{
	struct clone_args args = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
	char path[64], map[64];
	pid_t pid = sys_clone3(&args);
	if (pid == 0)
		for (;;)
			(void)pause();
	if (pid < 0)
		return -1;
	(void)snprintf(map, sizeof map, "0 %u %u", uid_base, SLOT_IDS);
	if (host->rootless) /* as in slot.c: what is one range here must be one outside */
		(void)snprintf(map, sizeof map, "0 0 1\n1 1 %u", SLOT_IDS - 1);
	(void)snprintf(path, sizeof path, "%d/uid_map", pid);
	int failed = write_file(host->proc_fd, path, map);
	(void)snprintf(path, sizeof path, "%d/gid_map", pid);
	failed |= write_file(host->proc_fd, path, map);
	(void)snprintf(path, sizeof path, "%d/ns/user", pid);
	int fd = failed ? -1 : openat(host->proc_fd, path, O_RDONLY | O_CLOEXEC);
	int error = errno;
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, 0);
	errno = error;
	return fd;
}

/* Who stays outside: the supervisor knows the pod by this process, which ends with the next one and ends it. */
static _Noreturn void wait_outside(pid_t inside)
{
	(void)prctl(PR_SET_NAME, "minisandbox-p");
	(void)sys_close_range(3, 3, 0); /* or the end of the one inside could not be seen by the supervisor */
	int status = 0;
	while (waitpid(inside, &status, 0) < 0 && errno == EINTR)
		;
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 125);
}

/* Several layers become one here, where marks of the host's root are understood; overlayfs may be stacked twice. */
static int stack_layers(const struct trees *trees, const struct reporter *to)
{
	static const char *const none[][2] = { { NULL, NULL } };
	char name[16], lowerdir[256];
	size_t length = 0;
	if (trees->layer_count == 1)
		return trees->layer[0];
	cleanup_fd int context = sys_fsopen("overlay");
	for (uint32_t i = 0; i < trees->layer_count; i++) {
		(void)snprintf(name, sizeof name, "/x/l/%u", i);
		length += (size_t)snprintf(lowerdir + length, sizeof lowerdir - length, "%s%s", i ? ":" : "", name);
		if (length >= sizeof lowerdir && !trees->by_fd)
			fail(to, STAGE_LAYER, (int)i, ENAMETOOLONG);
		if (trees->by_fd ? sys_fsconfig(context, FSCONFIG_SET_FD, "lowerdir+", NULL, trees->layer[i]) < 0 :
		                   mount_attach(trees->layer[i], AT_FDCWD, name) < 0)
			fail(to, STAGE_LAYER, (int)i, errno);
		if (trees->by_fd)
			length = 0;
	}
	const char *const by_path[][2] = { { "lowerdir", lowerdir }, { NULL, NULL } };
	int stack = mount_create(context, trees->by_fd ? none : by_path, SHOWN);
	if (stack < 0)
		fail(to, STAGE_LAYER, -1, errno);
	return stack;
}

static void attach_trees(struct host *host, const struct trees *trees, const struct request *req, const struct reporter *to)
{
	static const char *const options[][2] = { { "size", "1m" }, { "mode", "755" }, { NULL, NULL } };
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
	char name[32];
	cleanup_fd int place = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	if (place < 0 || mount_attach(place, AT_FDCWD, "/pod") < 0 || mkdir("/pod/l", 0755) < 0)
		fail(to, STAGE_POD, -1, errno);
	if (mount_attach(stack_layers(trees, to), AT_FDCWD, "/pod/l") < 0)
		fail(to, STAGE_LAYER, -1, errno);
	for (uint32_t i = 0; i < trees->bind_count; i++) {
		struct stat st;
		(void)snprintf(name, sizeof name, "/pod/%u", i);
		cleanup_fd int target = fstat(trees->bind[i], &st) < 0 ?
		                                -1 :
		                                target_open(place, name + strlen("/pod"), !S_ISDIR(st.st_mode), true);
		if (target < 0 || mount_attach(trees->bind[i], target, "") < 0)
			fail(to, STAGE_BIND, (int)i, errno);
		host->pod_binds.text[i] = strdup(req->binds.text[i]);
		if (!host->pod_binds.text[i])
			fail(to, STAGE_BIND, (int)i, ENOMEM);
	}
	host->pod_binds.count = trees->bind_count;
	if (sys_mount_setattr(place, "", AT_EMPTY_PATH, &read_only) < 0)
		fail(to, STAGE_POD, -1, errno);
}

/* The tree at /dev becomes a mount of its own, on which devices work: that can be cloned inside and not be given there. */
static void attach_dev(const struct reporter *to)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
		                   .attr_clr = MOUNT_ATTR_NODEV };
	cleanup_fd int dev = mount_clone(AT_FDCWD, "/dev", AT_RECURSIVE);
	if (dev < 0 || sys_mount_setattr(dev, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0 ||
	    mount_attach(dev, AT_FDCWD, "/dev") < 0)
		fail(to, STAGE_DEV, -1, errno);
}

/* From here on root of the user namespace and nobody outside it, in namespaces that belong to it. */
static void join(struct host *host, int user_ns_fd, const struct reporter *to)
{
	static const char *const none[][2] = { { NULL, NULL } };
	gid_t group = host->warden_gid; /* it has no number inside, and stays */
	cleanup_fd int proc = mount_new("proc", none, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	/* a kernel that cannot do it has no way to give a process a certain number */
	(void)write_file(proc, "sys/kernel/ns_last_pid", FIRST_PID);
	if (host->rootless && umount2("/proc", MNT_DETACH) < 0) /* the host's, which would be locked */
		fail(to, STAGE_POD, 0, errno);
	if (proc < 0 || setgroups(1, &group) < 0 || setns(user_ns_fd, CLONE_NEWUSER) < 0)
		fail(to, STAGE_POD, 0, errno);
	if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0 ||
	    unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		fail(to, STAGE_POD, 1, errno);
	/* a new /proc may be mounted only where one is visible that hides nothing (mount_too_revealing, fs/namespace.c); attached
	 * now, it is not locked, and a sandbox takes it away when it has its own */
	if (mount_attach(proc, AT_FDCWD, "/proc") < 0)
		fail(to, STAGE_POD, 2, errno);
	close_fd(&host->proc_fd);
	close_fd(&host->net_ns_fd);
	close_fd(&host->mount_ns_fd);
	close_fd(&host->own_mount_ns_fd);
	host->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	host->net_ns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	host->own_mount_ns_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (host->proc_fd < 0 || host->net_ns_fd < 0 || host->own_mount_ns_fd < 0)
		fail(to, STAGE_POD, 3, errno);
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing ids has cleared it */
	host->rootless = host->pod = true;
	if (!host->overlay_by_fd)
		host_make_workplace(to);
}

/* Returns in process 1 of the pod alone, or not at all when a step fails, which is reported. */
void pod_enter(struct host *host, const struct request *req, const struct reporter *to)
{
	struct trees trees = { .by_fd = host->overlay_by_fd };
	struct slot slot = { .user_ns_fd = make_user_ns(host, (uint32_t)req->uid_base) };
	enum stage stage;
	int item;
	if (slot.user_ns_fd < 0)
		fail(to, STAGE_SLOT_USERNS, -1, errno);
	int error = req->layers.count ? gather_trees(host, &slot, req, &trees, &stage, &item) : EINVAL;
	if (error)
		fail(to, req->layers.count ? stage : STAGE_REQUEST, req->layers.count ? item : -1, error);
	struct clone_args args = { .flags = CLONE_NEWPID | CLONE_NEWNS, .exit_signal = SIGCHLD };
	pid_t pid = sys_clone3(&args);
	if (pid < 0)
		fail(to, STAGE_CLONE, -1, errno);
	if (pid > 0)
		wait_outside(pid);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	attach_trees(host, &trees, req, to);
	attach_dev(to);
	join(host, slot.user_ns_fd, to);
	release_trees(&trees);
	close_fd(&slot.user_ns_fd);
}

/* What a sandbox or warm process of this pod shows: clones of what was attached. */
int pod_trees(const struct host *host, struct trees *trees, enum stage *ret_stage, int *ret_item)
{
	char name[32];
	*ret_stage = STAGE_LAYER;
	*ret_item = 0;
	trees->layer[0] = mount_clone(AT_FDCWD, "/pod/l", 0);
	if (trees->layer[0] < 0)
		return errno;
	trees->layer_count = 1;
	*ret_stage = STAGE_BIND_SOURCE;
	for (uint32_t i = 0; i < host->pod_binds.count; i++) {
		(void)snprintf(name, sizeof name, "/pod/%u", i);
		*ret_item = (int)i;
		trees->bind[i] = mount_clone(AT_FDCWD, name, 0);
		if (trees->bind[i] < 0)
			return errno;
		trees->bind_count++;
	}
	return 0;
}
