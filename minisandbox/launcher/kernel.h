/* System calls newer than the oldest C library we build with (glibc 2.36 has wrappers for most; musl for few). */
#ifndef MINISANDBOX_KERNEL_H
#define MINISANDBOX_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int sys_open_tree(int fd, const char *path, unsigned int flags)
{
	return (int)syscall(SYS_open_tree, fd, path, flags);
}
static inline int sys_move_mount(int from_fd, const char *from, int to_fd, const char *to, unsigned int flags)
{
	return (int)syscall(SYS_move_mount, from_fd, from, to_fd, to, flags);
}
static inline int sys_fsopen(const char *type)
{
	return (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
}
static inline int sys_fspick(int fd)
{
	return (int)syscall(SYS_fspick, fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
}
static inline int sys_fsconfig(int fd, unsigned int command, const char *key, const void *value, int aux)
{
	return (int)syscall(SYS_fsconfig, fd, command, key, value, aux);
}
static inline int sys_fsmount(int fd, unsigned int attributes)
{
	return (int)syscall(SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes);
}
static inline int sys_mount_setattr(int fd, const char *path, unsigned int flags, struct mount_attr *attributes)
{
	return (int)syscall(SYS_mount_setattr, fd, path, flags, attributes, sizeof *attributes);
}
static inline int sys_openat2(int fd, const char *path, struct open_how *how)
{
	return (int)syscall(SYS_openat2, fd, path, how, sizeof *how);
}
static inline int sys_clone3(struct clone_args *args)
{
	return (int)syscall(SYS_clone3, args, sizeof *args);
}

/* clone3 as fork(2) does it; like sys_clone3_vfork it returns -errno. */
static inline long sys_clone3_plain(struct clone_args *args)
{
	long result = syscall(SYS_clone3, args, sizeof *args);
	return result < 0 ? -errno : result;
}

/* clone3 as vfork(2) does it: the child borrows the parent's memory and stack, and the parent waits until it execs or
 * exits. Inline, since a child that returned from a wrapper would overwrite the return address of its parent. */
static inline __attribute__((always_inline)) long sys_clone3_vfork(struct clone_args *args)
{
	args->flags |= CLONE_VM | CLONE_VFORK;
#if defined(__x86_64__)
	long result;
	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(SYS_clone3), "D"(args), "S"(sizeof *args)
	                 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clone3;
	register long x0 __asm__("x0") = (long)args;
	register long x1 __asm__("x1") = (long)sizeof *args;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
	return x0;
#else
#error "clone3 by hand is needed for this architecture: see clone(2)"
#endif
}
static inline int sys_close_range(unsigned int first, unsigned int last, unsigned int flags)
{
	return (int)syscall(SYS_close_range, first, last, flags);
}
static inline int sys_pivot_root(const char *new_root, const char *put_old)
{
	return (int)syscall(SYS_pivot_root, new_root, put_old);
}

/* Make `mask` the effective, permitted and (only if asked) inheritable capabilities of this thread. */
static inline int sys_capset(unsigned long long effective, unsigned long long permitted)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = {
		{ .effective = (unsigned int)effective, .permitted = (unsigned int)permitted },
		{ .effective = (unsigned int)(effective >> 32), .permitted = (unsigned int)(permitted >> 32) },
	};
	return (int)syscall(SYS_capset, &header, data);
}

/* Raise every permitted capability again, as setfsuid(2) and setresuid(2) lower the effective ones. */
static inline int sys_capraise(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &header, data) < 0)
		return -1;
	data[0].effective = data[0].permitted;
	data[1].effective = data[1].permitted;
	return (int)syscall(SYS_capset, &header, data);
}

#endif
