/* Mounts and namespaces. Paths are relative to the working directory, which is empty and the probe's own. */
#include "probe.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { /* of sys/mount.h, which does not go with linux/mount.h in older C libraries */
	DETACH = 2,
	SYS_open_tree_attr_ = 467, /* newer than the headers of most hosts */
	SYS_statmount_ = 457,
	SYS_listmount_ = 458,
};

static const struct mount_attr writable = { .attr_clr = MOUNT_ATTR_RDONLY };

static const struct call MOUNTS[] = {
	{ "mount-tmpfs", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("tmpfs") } },
	{ "mount-proc", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("proc") } },
	{ "mount-sysfs", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("sysfs") } },
	{ "mount-cgroup2", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("cgroup2") } },
	{ "mount-devpts", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("devpts") } },
	{ "mount-mqueue", SYS_mount, { TEXT("probe"), TEXT("."), TEXT("mqueue") } },
	{ "mount-bind", SYS_mount, { TEXT("/usr"), TEXT("."), 0, MS_BIND } },
	{ "mount-move", SYS_mount, { TEXT("/nonexistent"), TEXT("."), 0, MS_MOVE } },
	{ "mount-remount", SYS_mount, { 0, TEXT("/"), 0, MS_REMOUNT | MS_BIND } },
	{ "mount-private", SYS_mount, { 0, TEXT("/"), 0, MS_PRIVATE } },
	{ "umount2", SYS_umount2, { TEXT("/dev"), DETACH } },
	{ "fsopen", SYS_fsopen, { TEXT("tmpfs") } },
	{ "fspick", SYS_fspick, { AT_FDCWD, TEXT("/") } },
	{ "fsconfig", SYS_fsconfig, { -1 } },
	{ "fsmount", SYS_fsmount, { -1 } },
	{ "open_tree", SYS_open_tree, { AT_FDCWD, TEXT("/") } },
	{ "open_tree-clone", SYS_open_tree, { AT_FDCWD, TEXT("/"), OPEN_TREE_CLONE } },
	{ "open_tree_attr", SYS_open_tree_attr_, { AT_FDCWD, TEXT("/"), OPEN_TREE_CLONE, (long)&writable, sizeof writable } },
	{ "move_mount", SYS_move_mount, { AT_FDCWD, TEXT("/nonexistent"), AT_FDCWD, TEXT(".") } },
	{ "mount_setattr", SYS_mount_setattr, { AT_FDCWD, TEXT("/"), 0, (long)&writable, sizeof writable } },
	{ "pivot_root", SYS_pivot_root, { TEXT("/"), TEXT("/") } },
	{ "statmount", SYS_statmount_, { 0 } },
	{ "listmount", SYS_listmount_, { 0 } },
};

static const struct {
	const char *name;
	uint64_t flag;
} NAMESPACES[] = {
	{ "mnt", CLONE_NEWNS },   { "pid", CLONE_NEWPID },   { "ipc", CLONE_NEWIPC },       { "uts", CLONE_NEWUTS },
	{ "net", CLONE_NEWNET },  { "user", CLONE_NEWUSER }, { "cgroup", CLONE_NEWCGROUP }, { "time", 0x80 },
};

/* Of a new pid or time namespace only a child would be a member: the attempt is over before. */
static long try_unshare(long flag)
{
	return syscall(SYS_unshare, flag);
}

static long try_clone(long flag)
{
	return syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
}

/* The kernel looks at the lower half alone (lower_32_bits in kernel/fork.c): a filter must not look at more. */
static long try_clone_high(long flag)
{
	return syscall(SYS_clone, 1l << 40 | flag | SIGCHLD, 0, 0, 0, 0);
}

static long try_clone3(long flag)
{
	uint64_t arguments[11] = { (uint64_t)flag, 0, 0, 0, SIGCHLD };
	return syscall(SYS_clone3, arguments, sizeof arguments);
}

static long try_setns(long index)
{
	char path[64];
	(void)snprintf(path, sizeof path, "/proc/self/ns/%s", NAMESPACES[index].name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -1 : syscall(SYS_setns, fd, 0);
}

static const struct {
	const char *verb;
	long (*run)(long flag);
} WAYS[] = {
	{ "unshare", try_unshare },
	{ "clone", try_clone },
	{ "clone-high", try_clone_high },
	{ "clone3", try_clone3 },
};

void probe_calls(char *const *names)
{
	char name[64];
	for (size_t i = 0; i < COUNT(MOUNTS); i++)
		if (is_named(MOUNTS[i].name, names))
			call_run(&MOUNTS[i]);
	for (size_t i = 0; i < COUNT(NAMESPACES); i++) {
		for (size_t j = 0; j < COUNT(WAYS); j++) {
			if (NAMESPACES[i].flag == 0x80 && (WAYS[j].run == try_clone || WAYS[j].run == try_clone_high))
				continue; /* clone(2) has no such flag: the bit is one of the exit signal */
			(void)snprintf(name, sizeof name, "%s-%s", WAYS[j].verb, NAMESPACES[i].name);
			if (is_named(name, names))
				attempt_run(name, WAYS[j].run, (long)NAMESPACES[i].flag);
		}
		(void)snprintf(name, sizeof name, "setns-%s", NAMESPACES[i].name);
		if (is_named(name, names))
			attempt_run(name, try_setns, (long)i);
	}
}
