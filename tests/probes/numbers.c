/* System calls that C libraries have begun to use lately, and numbers that nobody uses yet. */
#include "probe.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Numbers that all architectures share (scripts/syscall.tbl of the kernel), some of them newer than this host's headers. */
enum {
	CLOSE_RANGE = 436,
	OPENAT2 = 437,
	FACCESSAT2 = 439,
	EPOLL_PWAIT2 = 441,
	LANDLOCK_CREATE_RULESET = 444,
	FUTEX_WAITV = 449,
	CACHESTAT = 451,
	FCHMODAT2 = 452,
	FUTEX_WAKE = 454,
	MSEAL = 462,
	GETXATTRAT = 464,
};

static char scratch[4096];
static const uint64_t read_only[3];

static const struct call CALLS[] = {
	{ "statx", SYS_statx, { AT_FDCWD, TEXT("/"), 0, 0x7ff, (long)scratch } },
	{ "rseq", SYS_rseq, { 0, 32, 0, 0 } },
	{ "getrandom", SYS_getrandom, { (long)scratch, 16 } },
	{ "membarrier", SYS_membarrier, { 0 } },
	{ "copy_file_range", SYS_copy_file_range, { -1, 0, -1, 0, 1 } },
	{ "preadv2", SYS_preadv2, { -1 } },
	{ "renameat2", SYS_renameat2, { AT_FDCWD, TEXT("/nonexistent"), AT_FDCWD, TEXT("/nonexistent"), 1 } },
	{ "pidfd_open", SYS_pidfd_open, { 1 } },
	{ "close_range", CLOSE_RANGE, { 1000, 1001 } },
	{ "openat2", OPENAT2, { AT_FDCWD, TEXT("/"), (long)read_only, sizeof read_only } },
	{ "faccessat2", FACCESSAT2, { AT_FDCWD, TEXT("/"), R_OK } },
	{ "epoll_pwait2", EPOLL_PWAIT2, { -1 } },
	{ "landlock_create_ruleset", LANDLOCK_CREATE_RULESET, { 0, 0, 1 } },
	{ "futex_waitv", FUTEX_WAITV, { 0 } },
	{ "cachestat", CACHESTAT, { -1 } },
	{ "fchmodat2", FCHMODAT2, { -1, TEXT("nonexistent"), 0 } },
	{ "futex_wake", FUTEX_WAKE, { 0 } },
	{ "mseal", MSEAL, { 0 } },
	{ "getxattrat", GETXATTRAT, { -1 } },
};

static long try_number(long number)
{
	return syscall(number, 0, 0, 0, 0, 0, 0);
}

void probe_numbers(long first, long last)
{
	char name[32];
	for (size_t i = 0; i < COUNT(CALLS); i++)
		call_run(&CALLS[i]);
	for (long number = first; number <= last; number++) {
		(void)snprintf(name, sizeof name, "%#lx", number);
		attempt_run(name, try_number, number);
	}
}
