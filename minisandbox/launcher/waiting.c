/* The filter of a warm process while it waits, which its forks inherit, below those of their policy: it denies what neither of
 * them needs and CAP_SYS_ADMIN over a user namespace would open. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#include "kernel.h"
#include "launcher.h"

#if defined(__x86_64__)
static const uint32_t ARCHITECTURE = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
static const uint32_t ARCHITECTURE = AUDIT_ARCH_AARCH64;
#endif

static const int DENIED[] = {
	SYS_mount, SYS_umount2, SYS_pivot_root, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
	SYS_mount_setattr, SYS_swapon, SYS_swapoff, SYS_sethostname, SYS_setdomainname, SYS_quotactl, SYS_acct,
	SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_pidfd_getfd, SYS_kcmp,
	SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
	SYS_add_key, SYS_request_key, SYS_keyctl, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
	SYS_reboot, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_open_by_handle_at,
	SYS_lookup_dcookie, SYS_syslog, SYS_vhangup, SYS_personality,
};

enum { DENIED_COUNT = sizeof DENIED / sizeof *DENIED, OTHER_CALLS = 0x40000000 /* x32 */ };

int waiting_filter_load(void)
{
	static struct sock_filter program[5 + 2 * DENIED_COUNT + 1];
	const struct sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	unsigned short at = 0;
	program[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
	program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	program[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, OTHER_CALLS, 2 * DENIED_COUNT - 1, 0);
	for (int i = 0; i < DENIED_COUNT; i++) {
		program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)DENIED[i], 0, 1);
		program[at++] = deny;
	}
	program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = { .len = at, .filter = program };
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
}
