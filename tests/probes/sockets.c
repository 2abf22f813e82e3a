/* Which sockets can be made, which descriptors there are, what a terminal takes. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

enum { FAMILIES = 64, TYPES = 11 };

/* Every combination, so that nothing depends on which ones somebody thought of. The kernel takes 32 bits of each. */
void probe_sockets(long protocols)
{
	static const long highs[] = { 0, 1l << 32 };
	for (size_t i = 0; i < COUNT(highs); i++)
		for (long family = 0; family < FAMILIES; family++)
			for (long type = 0; type < TYPES; type++)
				for (long protocol = 0; protocol < protocols; protocol++) {
					int pair[2];
					long fd = syscall(SYS_socket, highs[i] | family, highs[i] | type,
					                  highs[i] | protocol);
					if (fd >= 0) {
						printf("socket %ld %ld %ld\n", family, type, protocol);
						(void)close((int)fd);
					}
					if (syscall(SYS_socketpair, highs[i] | family, highs[i] | type,
					            highs[i] | protocol, pair) == 0) {
						printf("socketpair %ld %ld %ld\n", family, type, protocol);
						(void)close(pair[0]);
						(void)close(pair[1]);
					}
				}
}

static int opens_a_directory_above(int fd)
{
	int above = openat(fd, "../../../../../../../..", O_RDONLY | O_DIRECTORY);
	if (above >= 0)
		(void)close(above);
	return above >= 0;
}

/* Asked of the kernel number by number, far beyond the limit that holds now: what was open before it stays open. */
void probe_descriptors(void)
{
	char link[64], target[4096];
	for (int fd = 0; fd < 70000; fd++) {
		struct stat st;
		if (fstat(fd, &st) < 0)
			continue;
		(void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t length = readlink(link, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = '\0';
		printf("%d %s%s\n", fd, opens_a_directory_above(fd) ? "leads-to " : "", target);
	}
}

static long try_ioctl(long command)
{
	return syscall(SYS_ioctl, 0, command, "x");
}

/* A pointer to what it is: the line discipline that is set already. */
static long try_discipline(long high)
{
	int discipline = 0;
	return syscall(SYS_ioctl, 0, high | TIOCSETD, &discipline);
}

static long try_open(long path)
{
	return open((const char *)path, O_RDWR | O_NOCTTY);
}

static const struct {
	struct attempt attempt;
	long argument;
} TERMINAL[] = {
	{ { "tiocsti", try_ioctl }, TIOCSTI },
	{ { "tiocsti-high", try_ioctl }, 1l << 32 | TIOCSTI },
	{ { "tiocsti-sign", try_ioctl }, (long)(~0ul << 32) | TIOCSTI },
	{ { "tioclinux", try_ioctl }, TIOCLINUX },
	{ { "tioclinux-high", try_ioctl }, 1l << 32 | TIOCLINUX },
	{ { "tioccons", try_ioctl }, TIOCCONS },
	{ { "tiocsetd", try_discipline }, 0 },
	{ { "tiocsetd-high", try_discipline }, 1l << 32 },
	{ { "open-tty", try_open }, TEXT("/dev/tty") },
	{ { "open-console", try_open }, TEXT("/dev/console") },
	{ { "open-tty0", try_open }, TEXT("/dev/tty0") },
};

/* Not in a child: its session must keep the terminal. The group is run alone, and prints when it is done. */
void probe_terminal(char *const *names)
{
	int errors[COUNT(TERMINAL)];
	struct termios mode;
	if (tcgetattr(0, &mode) == 0) { /* what is typed must not be printed as well */
		mode.c_lflag &= ~(tcflag_t)ECHO;
		(void)tcsetattr(0, TCSANOW, &mode);
	}
	for (size_t i = 0; i < COUNT(TERMINAL); i++)
		if (is_named(TERMINAL[i].attempt.name, names))
			errors[i] = TERMINAL[i].attempt.run(TERMINAL[i].argument) < 0 ? errno : 0;
	for (size_t i = 0; i < COUNT(TERMINAL); i++)
		if (is_named(TERMINAL[i].attempt.name, names))
			printf("%s %s\n", TERMINAL[i].attempt.name, errors[i] ? strerrorname_np(errors[i]) : "ok");
}
