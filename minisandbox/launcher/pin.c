/* What is pinned in a deterministic sandbox, so that two of them see the same: addresses, the clocks that count from a
 * start, and the times of what is made anew for each. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

enum {
	PINNED_TIME = 315532800, /* 1980-01-01, the first that every archive format can tell */
	UPTIME_S = 1000,         /* what the clocks since boot say when a sandbox starts */
	DEPTH_MAX = 128,
};

/* Give everything in a directory that lies on its file system, and itself, the same time. */
static int pin_directory(int fd, dev_t device, int depth)
{
	static const struct timespec times[2] = { { .tv_sec = PINNED_TIME }, { .tv_sec = PINNED_TIME } };
	char entries[4096] __attribute__((aligned(8)));
	long got = 0;
	while (depth < DEPTH_MAX && (got = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			const struct dirent64 *entry = (const void *)(entries + at);
			struct stat st;
			at += entry->d_reclen;
			if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
				continue;
			if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
				return -1;
			if (st.st_dev != device)
				continue; /* something is mounted there */
			if (S_ISDIR(st.st_mode)) {
				cleanup_fd int inner = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
				if (inner < 0 || pin_directory(inner, device, depth + 1) < 0)
					return -1;
			} else if (utimensat(fd, entry->d_name, times, AT_SYMLINK_NOFOLLOW) < 0) {
				return -1;
			}
		}
	return got < 0 ? -1 : futimens(fd, times);
}

int pin_times(int directory_fd, const char *path)
{
	struct stat st;
	cleanup_fd int fd = openat(directory_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	return pin_directory(fd, st.st_dev, 0);
}

/* The clocks change for the children of init: init itself reckons deadlines by those of the host. */
static int pin_clocks(const struct host *host)
{
	struct timespec monotonic, boottime;
	char offsets[128];
	if (unshare(CLONE_NEWTIME) < 0)
		return -1;
	cleanup_fd int fd = openat(host->proc_fd, "self/timens_offsets", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || clock_gettime(CLOCK_MONOTONIC, &monotonic) < 0 || clock_gettime(CLOCK_BOOTTIME, &boottime) < 0)
		return -1;
	/* nanoseconds of an offset cannot be negative (time_namespaces(7)) */
	int length = snprintf(offsets, sizeof offsets, "monotonic %lld %ld\nboottime %lld %ld\n",
	                      (long long)(UPTIME_S - 1 - monotonic.tv_sec), 999999999 - monotonic.tv_nsec,
	                      (long long)(UPTIME_S - 1 - boottime.tv_sec), 999999999 - boottime.tv_nsec);
	return write(fd, offsets, (size_t)length) == length ? 0 : -1;
}

/* The address space of every command looks the same from here on; programs that gain rights at their start (setuid) undo
 * that (personality(2), "ADDR_NO_RANDOMIZE"). */
void pin_addresses(const struct reporter *to)
{
	if (personality(ADDR_NO_RANDOMIZE) < 0)
		fail(to, STAGE_PIN, -1, errno);
}

void pin_start(const struct host *host, const struct reporter *to)
{
	pin_addresses(to);
	if (pin_clocks(host) < 0)
		fail(to, STAGE_PIN, -1, errno);
	stage_done(to, STAGE_PIN);
}
