/* What the parts of the probe program share. See probe.c. */
#ifndef PROBE_H
#define PROBE_H

#include <sys/types.h>

/* One attempt. It returns what the system call did: a negative number with errno set, or success.
 * It runs in a child of its own, so it may change and break whatever it likes of itself. */
struct attempt {
	const char *name;
	long (*run)(long argument);
};

/* One attempt that is a bare system call. */
struct call {
	const char *name;
	long number;
	long arguments[6];
};

void attempt_run(const char *name, long (*run)(long), long argument);
void attempts_run(const struct attempt *attempts, size_t count, long argument, char *const *names);
void call_run(const struct call *call);
int is_named(const char *name, char *const *names);
pid_t victim_start(void);

/* Each runs its attempts, or those named in a NULL-terminated list when that is not empty. */
void probe_calls(char *const *names);
void probe_kernel(char *const *names);
void probe_entries(char *const *names);
void probe_roots(char *const *names);
void probe_stacked(char *const *names);
void probe_process(pid_t pid, char *const *names);
void probe_sockets(long protocols);
void probe_descriptors(void);
void probe_ipc(int leave);
void probe_terminal(char *const *names);
void probe_numbers(long first, long last);

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define TEXT(text) ((long)(text))

#endif
