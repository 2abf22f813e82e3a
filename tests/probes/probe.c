/* Tries what hostile code would try, one attempt after the other, and says of each what came of it. It exploits nothing:
 * an attempt that succeeds is undone, harmless, or of no effect beyond its own process.
 *
 *     probe GROUP [NAME...]      groups: see main
 *
 * prints one line an attempt: its name and "ok", the name of an errno, or the name of the signal that killed it.
 * It is linked statically, so that it runs on any root file system, and outside a sandbox as well as inside.
 */
#include "probe.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_S = 5, UNKNOWN_ERRNO = 255 };

int is_named(const char *name, char *const *names)
{
	if (!*names)
		return 1;
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return 1;
	return 0;
}

static void report(const char *name, int status)
{
	const char *outcome = "ok";
	if (WIFSIGNALED(status))
		printf("%s SIG%s\n", name, sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status) && (outcome = strerrorname_np(WEXITSTATUS(status))) == NULL)
		printf("%s errno-%d\n", name, WEXITSTATUS(status));
	else
		printf("%s %s\n", name, outcome);
	(void)fflush(stdout);
}

/* The exit status is the errno. A session of its own: nothing it does concerns the terminal of whoever runs this. */
void attempt_run(const char *name, long (*run)(long), long argument)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		(void)setsid();
		(void)alarm(PATIENCE_S);
		errno = 0;
		long result = run(argument);
		_exit(result < 0 ? (errno > 0 && errno < UNKNOWN_ERRNO ? errno : UNKNOWN_ERRNO) : 0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		perror("probe: cannot start an attempt");
		exit(1);
	}
	report(name, status);
}

void attempts_run(const struct attempt *attempts, size_t count, long argument, char *const *names)
{
	for (size_t i = 0; i < count; i++)
		if (is_named(attempts[i].name, names))
			attempt_run(attempts[i].name, attempts[i].run, argument);
}

static long make_call(long argument)
{
	const struct call *call = (const struct call *)argument;
	const long *a = call->arguments;
	return syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void call_run(const struct call *call)
{
	attempt_run(call->name, make_call, (long)call);
}

/* A process that does nothing until its parent ends. */
pid_t victim_start(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			(void)pause();
	}
	return pid;
}

/* Who it is, and how many capabilities are effective. */
static void print_ids(void)
{
	struct {
		unsigned int version;
		int pid;
	} header = { 0x20080522, 0 };
	unsigned int sets[6] = { 0 };
	(void)syscall(SYS_capget, &header, sets);
	printf("%d %d %d %d %d\n", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(),
	       __builtin_popcount(sets[0]) + __builtin_popcount(sets[3]));
}

int main(int argc, char **argv)
{
	const char *group = argc > 1 ? argv[1] : "";
	char *const *rest = argc > 2 ? argv + 2 : argv + argc;
	if (strcmp(group, "calls") == 0)
		probe_calls(rest);
	else if (strcmp(group, "kernel") == 0)
		probe_kernel(rest);
	else if (strcmp(group, "entries") == 0)
		probe_entries(rest);
	else if (strcmp(group, "roots") == 0)
		probe_roots(rest);
	else if (strcmp(group, "stacked") == 0)
		probe_stacked(rest);
	else if (strcmp(group, "terminal") == 0)
		probe_terminal(rest);
	else if (strcmp(group, "sockets") == 0 && argc == 3)
		probe_sockets(atol(argv[2]));
	else if (strcmp(group, "descriptors") == 0)
		probe_descriptors();
	else if (strcmp(group, "ipc") == 0 && argc == 3)
		probe_ipc(strcmp(argv[2], "leave") == 0);
	else if (strcmp(group, "process") == 0 && argc > 2) /* of process PID, or of a child each when PID is 0 */
		probe_process((pid_t)atoi(argv[2]), argv + 3);
	else if (strcmp(group, "numbers") == 0 && argc == 4)
		probe_numbers(strtol(argv[2], NULL, 0), strtol(argv[3], NULL, 0));
	else if (strcmp(group, "ids") == 0)
		print_ids();
	else
		return 64;
	return 0;
}
