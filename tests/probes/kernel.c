/* The kernel's own state, ways around file permissions and limits, and parts of the kernel that break often. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
	KEYRING_OF_PROCESS = -2, /* KEY_SPEC_PROCESS_KEYRING, keyctl(2) */
	SYNC_QUOTAS = 0x800001 << 8,
	USER_MODE_FAULTS = 1, /* UFFD_USER_MODE_ONLY */
	REPORT_FID = 0x200, CONTENT = 4, /* fanotify_init(2) */
	READ_ALL = 3, SIZE_UNREAD = 9, /* syslog(2) */
	REAL_TIME_IO = 1 << 13, /* ioprio_set(2) */
};

static const union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1 };
static const struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE, .size = sizeof event,
	                                      .config = PERF_COUNT_SW_DUMMY, .exclude_kernel = 1, .exclude_hv = 1 };
static char scratch[4096];

/* What cannot be meant well has arguments that are wrong beyond doubt: the kernel says so only to whom it would obey. */
static const struct call CALLS[] = {
	{ "bpf", SYS_bpf, { BPF_MAP_CREATE, (long)&map, sizeof map } },
	{ "perf_event_open", SYS_perf_event_open, { (long)&event, 0, -1, -1 } },
	{ "userfaultfd", SYS_userfaultfd, { USER_MODE_FAULTS } },
	{ "io_uring_setup", SYS_io_uring_setup, { 1, (long)scratch } },
	{ "io_uring_enter", SYS_io_uring_enter, { -1 } },
	{ "io_uring_register", SYS_io_uring_register, { -1 } },
	{ "kexec_load", SYS_kexec_load, { 0, 0, 0, ~0l } },
	{ "kexec_file_load", SYS_kexec_file_load, { -1, -1, 0, 0, ~0l } },
	{ "add_key", SYS_add_key, { TEXT("user"), TEXT("probe"), TEXT("x"), 1, KEYRING_OF_PROCESS } },
	{ "request_key", SYS_request_key, { TEXT("user"), TEXT("probe-nonexistent") } },
	{ "keyctl", SYS_keyctl, { 0, KEYRING_OF_PROCESS, 1 } },
	{ "name_to_handle_at", SYS_name_to_handle_at, { AT_FDCWD, TEXT("/usr"), (long)scratch, (long)scratch + 64 } },
	{ "fanotify_init", SYS_fanotify_init, { REPORT_FID } },
	{ "fanotify_init-content", SYS_fanotify_init, { CONTENT } },
	{ "fanotify_mark", SYS_fanotify_mark, { -1, 1, 1, AT_FDCWD, TEXT("/") } },
	{ "quotactl", SYS_quotactl, { SYNC_QUOTAS } },
	{ "quotactl_fd", SYS_quotactl_fd, { -1, SYNC_QUOTAS } },
	{ "swapon", SYS_swapon, { TEXT("/nonexistent") } },
	{ "swapoff", SYS_swapoff, { TEXT("/nonexistent") } },
	{ "reboot", SYS_reboot, { 0 } },
	{ "init_module", SYS_init_module, { 0, 0, TEXT("") } },
	{ "finit_module", SYS_finit_module, { -1, TEXT("") } },
	{ "delete_module", SYS_delete_module, { TEXT("") } },
	{ "acct", SYS_acct, { TEXT("/nonexistent") } },
	{ "syslog-read", SYS_syslog, { READ_ALL, (long)scratch, 1 } },
	{ "syslog-size", SYS_syslog, { SIZE_UNREAD } },
	{ "sethostname", SYS_sethostname, { TEXT("probe"), 5 } },
	{ "setdomainname", SYS_setdomainname, { TEXT("probe"), 5 } },
	{ "vhangup", SYS_vhangup, { 0 } },
	{ "memfd_secret", SYS_memfd_secret, { 0 } },
	{ "migrate_pages", SYS_migrate_pages, { 0, 8, (long)scratch, (long)scratch } },
	{ "move_pages", SYS_move_pages, { 0 } },
	{ "mbind", SYS_mbind, { 0 } },
	{ "set_mempolicy", SYS_set_mempolicy, { 0 } },
	{ "get_mempolicy", SYS_get_mempolicy, { (long)scratch } },
	{ "personality-exec", SYS_personality, { READ_IMPLIES_EXEC } },
	{ "personality-32", SYS_personality, { PER_LINUX32 } },
	{ "personality-svr4", SYS_personality, { PER_SVR4 } },
	{ "personality-layout", SYS_personality, { ADDR_COMPAT_LAYOUT } },
	{ "personality-page-zero", SYS_personality, { MMAP_PAGE_ZERO } },
	{ "personality-high", SYS_personality, { 1l << 32 | READ_IMPLIES_EXEC } }, /* the kernel takes 32 bits */
	{ "ptrace-traceme", SYS_ptrace, { PTRACE_TRACEME } },
	{ "ioprio-real-time", SYS_ioprio_set, { 1, 0, REAL_TIME_IO } },
	{ "setpriority", SYS_setpriority, { PRIO_PROCESS, 0, -20 } },
#ifdef __x86_64__
	{ "iopl", SYS_iopl, { 3 } },
	{ "ioperm", SYS_ioperm, { 0x80, 1, 1 } },
	{ "modify_ldt", SYS_modify_ldt, { 0, (long)scratch, sizeof scratch } },
#endif
};

/* A handle made by hand, of the file system that /usr is on: inode 2 is the root of an ext4 (CVE-2014-9357's way). */
static long try_handle(long type)
{
	uint32_t handle[4] = { 8, (uint32_t)type, 2, 0 };
	int usr = open("/usr", O_RDONLY | O_DIRECTORY);
	return usr < 0 ? -1 : syscall(SYS_open_by_handle_at, usr, handle, O_RDONLY);
}

static long try_node(long device, mode_t type)
{
	if (mknod("probe-node", type | 0600, (dev_t)device) < 0)
		return -1;
	return unlink("probe-node");
}

static long try_character_node(long device)
{
	return try_node(device, S_IFCHR);
}

static long try_block_node(long device)
{
	return try_node(device, S_IFBLK);
}

static long try_rlimit(long resource)
{
	struct rlimit limit;
	if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
		return -1;
	limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? limit.rlim_max : limit.rlim_max + 1;
	limit.rlim_cur = limit.rlim_max;
	rlim_t wanted = limit.rlim_max;
	if (setrlimit((__rlimit_resource_t)resource, &limit) < 0 || getrlimit((__rlimit_resource_t)resource, &limit) < 0)
		return -1;
	if (limit.rlim_max == wanted)
		return 0;
	errno = EPERM; /* a filter only said that it was done */
	return -1;
}

static long try_real_time(long policy)
{
	struct {
		int priority;
	} parameter = { 1 };
	return syscall(SYS_sched_setscheduler, 0, policy, &parameter);
}

/* One less than it is: more of an out-of-memory killing for the others. */
static long try_oom_score(long by)
{
	char text[16] = "";
	int fd = open("/proc/self/oom_score_adj", O_RDWR);
	if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
		return -1;
	int length = snprintf(text, sizeof text, "%d", atoi(text) - (int)by);
	return pwrite(fd, text, (size_t)length, 0);
}

/* To what it is already: of no effect where it is allowed. */
static long try_adjtimex(long clock)
{
	struct timex now = { 0 };
	if (syscall(SYS_adjtimex, &now) < 0)
		return -1;
	now.modes = ADJ_TICK;
	return clock < 0 ? syscall(SYS_adjtimex, &now) : syscall(SYS_clock_adjtime, clock, &now);
}

static long try_settimeofday(long unused)
{
	struct timeval now;
	(void)unused;
	(void)gettimeofday(&now, NULL);
	return syscall(SYS_settimeofday, &now, NULL);
}

static long try_clock_settime(long clock)
{
	struct timespec now;
	(void)clock_gettime((clockid_t)clock, &now);
	return syscall(SYS_clock_settime, clock, &now);
}

static const struct {
	struct attempt attempt;
	long argument;
} ATTEMPTS[] = {
	{ { "open_by_handle_at-1", try_handle }, 1 }, /* FILEID_INO32_GEN */
	{ { "open_by_handle_at-2", try_handle }, 2 }, /* FILEID_INO32_GEN_PARENT */
	{ { "mknod-mem", try_character_node }, 0x101 },
	{ { "mknod-null", try_character_node }, 0x103 },
	{ { "mknod-tun", try_character_node }, 0xac8 },
	{ { "mknod-fuse", try_character_node }, 0xae5 },
	{ { "mknod-console", try_character_node }, 0x501 },
	{ { "mknod-disk", try_block_node }, 0x800 },
	{ { "mknod-loop", try_block_node }, 0x700 },
	{ { "rlimit-nofile", try_rlimit }, RLIMIT_NOFILE },
	{ { "rlimit-core", try_rlimit }, RLIMIT_CORE },
	{ { "rlimit-rtprio", try_rlimit }, RLIMIT_RTPRIO },
	{ { "sched-fifo", try_real_time }, 1 },
	{ { "sched-rr", try_real_time }, 2 },
	{ { "oom_score_adj", try_oom_score }, 1 },
	{ { "adjtimex", try_adjtimex }, -1 },
	{ { "clock_adjtime", try_adjtimex }, CLOCK_REALTIME },
	{ { "settimeofday", try_settimeofday }, 0 },
	{ { "clock_settime", try_clock_settime }, CLOCK_REALTIME },
};

void probe_kernel(char *const *names)
{
	for (size_t i = 0; i < COUNT(CALLS); i++)
		if (is_named(CALLS[i].name, names))
			call_run(&CALLS[i]);
	for (size_t i = 0; i < COUNT(ATTEMPTS); i++)
		attempts_run(&ATTEMPTS[i].attempt, 1, ATTEMPTS[i].argument, names);
}
