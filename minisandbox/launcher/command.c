/* One command: from the clone of init to execve(2), step by step. Runs in a child of init that shares its memory (so it
 * writes to nothing but its own stack) and is not dumpable (so nothing of the sandbox can look into it). */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

static const struct {
	const char *name;
	__rlimit_resource_t resource;
} RLIMITS[] = {
	{ "nofile", RLIMIT_NOFILE }, { "core", RLIMIT_CORE },   { "cpu", RLIMIT_CPU },
	{ "fsize", RLIMIT_FSIZE },   { "stack", RLIMIT_STACK }, { "memlock", RLIMIT_MEMLOCK },
};

void command_join_cgroups(const struct request *req, const struct reporter *to)
{
	for (uint32_t i = 0; i < req->tasks.count; i++)
		if (write(req->tasks.fd[i], "0", 1) != 1)
			fail(to, STAGE_COMMAND_CGROUP, (int)i, errno);
}

/* Each source has a higher number than its target and the next targets, so none is overwritten before its turn. */
static void take_stdio(const struct request *req, const struct reporter *to)
{
	if (req->null_stdin) { /* opened anew: what a command sets on it is not there for the next one */
		cleanup_fd int null = open("/dev/null", O_RDONLY);
		if (null < 0 || dup2(null, STDIN_FILENO) < 0)
			fail(to, STAGE_COMMAND_STDIO, 0, errno);
	}
	for (uint32_t i = 0; i < req->stdio.count; i++)
		if (dup2(req->stdio.fd[i], (int)i + req->null_stdin) < 0)
			fail(to, STAGE_COMMAND_STDIO, (int)i, errno);
}

void command_set_rlimits(const struct request *req, const struct reporter *to)
{
	for (uint32_t i = 0; i < req->rlimits.count; i++) {
		const char *colon = strchr(req->rlimits.text[i], ':');
		size_t length = colon ? (size_t)(colon - req->rlimits.text[i]) : 0;
		size_t at = 0, count = sizeof RLIMITS / sizeof *RLIMITS;
		while (at < count && (strlen(RLIMITS[at].name) != length ||
		                      strncmp(RLIMITS[at].name, req->rlimits.text[i], length) != 0))
			at++;
		if (!colon || at == count)
			fail(to, STAGE_COMMAND_RLIMIT, (int)i, EINVAL);
		rlim_t value = strtoull(colon + 1, NULL, 10);
		struct rlimit limit = { value, value };
		if (setrlimit(RLIMITS[at].resource, &limit) < 0)
			fail(to, STAGE_COMMAND_RLIMIT, (int)i, errno);
	}
}

/* Joining gives every capability towards the sandbox's user namespace and none towards any other. The bounding set is
 * cut while CAP_SETPCAP is there; what root keeps is the rest of it. */
static void take_user(const struct sandbox *sandbox, const struct request *req, const struct reporter *to)
{
	gid_t groups[BINDS_MAX];
	for (uint32_t i = 0; i < req->groups.count; i++)
		groups[i] = (gid_t)strtoul(req->groups.text[i], NULL, 10);
	if (setns(sandbox->user_ns_fd, CLONE_NEWUSER) < 0)
		fail(to, STAGE_COMMAND_USERNS, -1, errno);
	if (unshare(CLONE_NEWCGROUP) < 0) /* /proc/self/cgroup shall not tell where on the host it runs */
		fail(to, STAGE_COMMAND_CGROUP, -1, errno);
	for (int capability = 0; capability < 64; capability++) {
		if (req->capabilities & (1ull << capability))
			continue;
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
			if (errno == EINVAL)
				break; /* past the last one that this kernel knows */
			fail(to, STAGE_COMMAND_CAPABILITIES, capability, errno);
		}
	}
	gid_t gid = (gid_t)req->gid;
	uid_t uid = (uid_t)req->uid;
	/* who has one id alone may not leave his groups (user_namespaces(7)) */
	bool keeps_groups = sandbox->single_id && req->groups.count == 0;
	if ((!keeps_groups && setgroups(req->groups.count, groups) < 0) || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		fail(to, STAGE_COMMAND_USER, -1, errno);
	uint64_t kept = uid == 0 ? req->capabilities : 0;
	if (sys_capset(kept, kept) < 0)
		fail(to, STAGE_COMMAND_CAPABILITIES, -1, errno);
}

void command_load_filters(const struct sandbox *sandbox, const struct reporter *to)
{
	for (uint32_t i = 0; i < sandbox->filter_count; i++) {
		struct sock_fprog program = { .len = sandbox->filter[i].length, .filter = sandbox->filter[i].program };
		if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
			fail(to, STAGE_COMMAND_SECCOMP, (int)i, errno);
	}
}

static const char *find_path(char **env)
{
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			return *env + 5;
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* As execvp(3), with the PATH of the command's own environment. A file that is there but cannot be run is remembered,
 * so that the error is 126 and not 127. */
static int exec_by_path(const struct request *req)
{
	char candidate[4096];
	const char *name = req->argv[0];
	int error = ENOENT;
	if (strchr(name, '/') || *name == '\0') {
		(void)execve(name, req->argv, req->env);
		return errno;
	}
	for (const char *at = find_path(req->env); *at; at += strspn(at, ":")) {
		size_t length = strcspn(at, ":");
		if (length + strlen(name) + 2 > sizeof candidate)
			return ENAMETOOLONG;
		memcpy(candidate, at, length);
		candidate[length] = '/';
		strcpy(candidate + length + 1, name);
		(void)execve(candidate, req->argv, req->env);
		if (errno != ENOENT && errno != ENOTDIR)
			error = errno;
		if (error != ENOENT && error != EACCES)
			return error;
		at += length;
	}
	return error;
}

_Noreturn void command_exec(const struct request *req, const struct reporter *to)
{
	fail(to, STAGE_COMMAND_EXEC, -1, exec_by_path(req));
}

static _Noreturn void exec_command(const struct sandbox *sandbox, const struct request *req, const struct reporter *to)
{
	if (chdir(req->cwd) < 0)
		fail(to, STAGE_COMMAND_CWD, -1, errno);
	if (req->new_terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0)
		fail(to, STAGE_COMMAND_TERMINAL, -1, errno);
	command_load_filters(sandbox, to);
	command_exec(req, to);
}

/* What every process that a policy started has gone through, a fork of a template's too. */
void command_enter(const struct sandbox *sandbox, const struct request *req, const struct reporter *to)
{
	command_join_cgroups(req, to);
	take_stdio(req, to);
	(void)setsid(); /* a new process cannot lead a group already: this cannot fail */
	command_set_rlimits(req, to);
	take_user(sandbox, req, to);
}

_Noreturn void command_child(const struct sandbox *sandbox, const struct request *req, struct record *leave)
{
	struct reporter to = { .socket = sandbox->control_fd, .id = (uint32_t)req->id, .leave = leave };
	sigset_t none;
	(void)sigemptyset(&none);
	(void)signal(SIGCHLD, SIG_DFL);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	command_enter(sandbox, req, &to);
	/* everything above its streams closes at exec: a descriptor that stays open is a way out (CVE-2024-21626) */
	unsigned int streams = req->stdio.count + req->null_stdin;
	unsigned int first = streams > STDERR_FILENO ? streams : STDERR_FILENO + 1;
	if (sys_close_range(first, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
		fail(&to, STAGE_COMMAND_STDIO, -1, errno);
	(void)umask(req->verb == VERB_PUT || req->verb == VERB_UNPACK ? 0 : 022);
	if (req->verb == VERB_GET)
		file_get(req, &to);
	if (req->verb == VERB_PUT)
		file_put(req, &to);
	if (req->verb == VERB_PACK)
		tree_pack(req, &to);
	if (req->verb == VERB_UNPACK)
		tree_unpack(req, &to);
	if (req->verb == VERB_RUN)
		exec_command(sandbox, req, &to);
	_exit(0);
}
