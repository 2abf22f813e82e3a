/* The warm process of a template, from the request to execve(2): a sandbox of its own but for the pid namespace, which is
 * the pod's, and with the two rights that it needs to put a fork of itself into a sandbox. */
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* setns(2): CAP_SYS_ADMIN for every namespace, CAP_SYS_CHROOT beside it for mounts. */
static const uint64_t KEPT = 1ull << CAP_SYS_ADMIN | 1ull << CAP_SYS_CHROOT;

/* The warden's user, which nothing in a sandbox is, with no rights towards the host. What a preload executes gets none. */
static void become_warm(const struct reporter *to)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	const struct __user_cap_data_struct data[2] = { { (uint32_t)KEPT, (uint32_t)KEPT, (uint32_t)KEPT }, { 0, 0, 0 } };
	if (prctl(PR_SET_KEEPCAPS, 1) < 0)
		fail(to, STAGE_WARDEN, 0, errno);
	for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
		if (!(KEPT & (1ull << capability)) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
			fail(to, STAGE_WARDEN, 1, errno);
	if (setresgid(WARDEN_ID, WARDEN_ID, WARDEN_ID) < 0 || setresuid(WARDEN_ID, WARDEN_ID, WARDEN_ID) < 0 ||
	    syscall(SYS_capset, &header, data) < 0)
		fail(to, STAGE_WARDEN, 2, errno);
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) < 0 ||
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_CHROOT, 0, 0) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		fail(to, STAGE_WARDEN, 3, errno);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing ids has cleared it */
}

/* Its streams get the numbers 0, 1, 2 and so on; nothing else goes with it. */
static void take_streams(const struct request *req, struct reporter *to)
{
	enum { ABOVE = STDIO_MAX };
	int streams[STDIO_MAX];
	to->socket = fcntl(to->socket, F_DUPFD_CLOEXEC, ABOVE);
	for (uint32_t i = 0; i < req->stdio.count; i++) {
		streams[i] = fcntl(req->stdio.fd[i], F_DUPFD_CLOEXEC, ABOVE);
		if (streams[i] < 0)
			fail(to, STAGE_COMMAND_STDIO, (int)i, errno);
	}
	for (uint32_t i = 0; i < req->stdio.count; i++)
		if (dup2(streams[i], (int)i) < 0)
			fail(to, STAGE_COMMAND_STDIO, (int)i, errno);
	if (sys_close_range(req->stdio.count, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
		fail(to, STAGE_COMMAND_STDIO, -1, errno);
}

static _Noreturn void child(const struct host *host, const struct slot *slot, const struct request *req,
                            const struct trees *trees)
{
	struct reporter to = { .socket = req->control.fd[0], .id = (uint32_t)req->id };
	sigset_t none;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	host_offer(host);
	(void)sigemptyset(&none);
	(void)signal(SIGCHLD, SIG_DFL);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
	command_join_cgroups(req, &to);
	if (setns(slot->net_ns_fd, CLONE_NEWNET) < 0)
		fail(&to, STAGE_NETNS, -1, errno);
	if (sethostname(req->hostname, strlen(req->hostname)) < 0)
		fail(&to, STAGE_HOSTNAME, -1, errno);
	(void)root_build(host, slot, req, trees, &to);
	root_switch(trees, &to);
	(void)setsid();
	take_streams(req, &to);
	command_set_rlimits(req, &to);
	become_warm(&to);
	(void)umask(022);
	if (req->fixed_addresses)
		pin_addresses(&to);
	if (chdir(req->cwd) < 0)
		fail(&to, STAGE_COMMAND_CWD, -1, errno);
	command_exec(req, &to);
}

/* Returns the pid, or -1 after the failure was reported. */
pid_t warm_start(const struct host *host, const struct slot *slot, const struct request *req, const struct reporter *to)
{
	struct trees trees = { .by_fd = host->overlay_by_fd };
	enum stage stage;
	int item;
	pid_t pid = -1;
	int error = gather_trees(host, slot, req, &trees, &stage, &item);
	if (!error) {
		struct clone_args args = { .flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS,
			                   .exit_signal = (uint64_t)SIGNAL_ENDED };
		if (req->cgroup.count) {
			args.flags |= CLONE_INTO_CGROUP;
			args.cgroup = (uint64_t)req->cgroup.fd[0];
		}
		stage = STAGE_CLONE;
		item = -1;
		(void)setfsuid(WARDEN_ID); /* the leaf is the warden's; other rights over it we have none */
		pid = sys_clone3(&args);
		error = pid < 0 ? errno : 0;
		(void)setfsuid(0);
		/* setfsuid has cleared it (prctl(2)), and the pod would outlive the process that the supervisor knows it by */
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pid == 0) {
			if (sys_capraise() < 0)
				_exit(125);
			child(host, slot, req, &trees);
		}
	}
	release_trees(&trees);
	if (error)
		(void)record_send(to->socket, (struct record){ .kind = RECORD_FAILED, .stage = (uint16_t)stage,
		                                               .id = to->id, .error = error, .item = item }, -1);
	return pid;
}
