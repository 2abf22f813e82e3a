/* Slots: a user namespace with 65,535 ids and a network namespace with `lo` up, made once and used by one sandbox
 * after another. A network namespace in which anything was ever sent is not used again. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "launcher.h"

/* What the short-lived child tells its parent: the last step it did, or an error in one. */
struct progress {
	enum stage stage;
	int error;
};

static int loopback_up(void)
{
	cleanup_fd int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	return socket_fd < 0 ? -1 : ioctl(socket_fd, SIOCSIFFLAGS, &request);
}

/* The user namespace belongs to the slot's warden, who thereby has all capabilities towards it and none elsewhere.
 * The network namespace is made before it, so it belongs to the host's user namespace: the sandbox cannot reconfigure it. */
static struct progress become_namespaces(uid_t warden, bool with_user_ns)
{
	if (unshare(CLONE_NEWNET) < 0)
		return (struct progress){ STAGE_SLOT_NETNS, errno };
	if (loopback_up() < 0)
		return (struct progress){ STAGE_SLOT_LOOPBACK, errno };
	if (!with_user_ns)
		return (struct progress){ STAGE_SLOT_USERNS, 0 };
	if (prctl(PR_SET_KEEPCAPS, 1) < 0 || setresgid(warden, warden, warden) < 0 ||
	    setresuid(warden, warden, warden) < 0 || sys_capraise() < 0 || unshare(CLONE_NEWUSER) < 0)
		return (struct progress){ STAGE_SLOT_USERNS, errno };
	return (struct progress){ STAGE_SLOT_USERNS, 0 };
}

static int write_map(const struct host *host, pid_t pid, const char *file, uint32_t base)
{
	char path[64], map[64];
	(void)snprintf(path, sizeof path, "%d/%s", pid, file);
	int length = snprintf(map, sizeof map, "0 %u %u", base, host->id_count);
	/* what is one range here must be one outside, and root there is apart from the subordinate ids (map_id_range_down in
	 * kernel/user_namespace.c) */
	if (host->rootless && !host->single_id)
		length = snprintf(map, sizeof map, "0 0 1\n1 1 %u", host->id_count - 1);
	cleanup_fd int fd = openat(host->proc_fd, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	return write(fd, map, (size_t)length) == length ? 0 : errno;
}

static int open_namespace(int proc_fd, pid_t pid, const char *name)
{
	char path[64];
	(void)snprintf(path, sizeof path, "%d/ns/%s", pid, name);
	return openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
}

static int keep_namespaces(const struct host *host, struct slot *slot, pid_t pid, bool with_user_ns,
                           enum stage *ret_stage)
{
	*ret_stage = STAGE_SLOT_NETNS;
	struct stat st;
	slot->net_ns_fd = open_namespace(host->proc_fd, pid, "net");
	if (slot->net_ns_fd < 0 || fstat(slot->net_ns_fd, &st) < 0)
		return errno;
	slot->net_ns_inode = st.st_ino;
	slot->ns_device = st.st_dev;
	if (!with_user_ns)
		return 0;
	*ret_stage = STAGE_SLOT_IDMAP;
	int error = write_map(host, pid, "uid_map", slot->uid_base);
	if (!error)
		error = write_map(host, pid, "gid_map", slot->uid_base);
	if (error)
		return error;
	slot->user_ns_fd = open_namespace(host->proc_fd, pid, "user");
	if (slot->user_ns_fd < 0 || fstat(slot->user_ns_fd, &st) < 0)
		return errno;
	slot->user_ns_inode = st.st_ino;
	return 0;
}

/* The user of the inits in a slot, as our own user namespace calls him. */
uid_t slot_warden(const struct host *host, const struct slot *slot)
{
	return host->single_id ? 0 : slot->uid_base + host->id_count;
}

/* Make the namespaces of a slot, or only its network namespace anew. Returns 0, or an errno with the stage. */
int slot_make(const struct host *host, struct slot *slot, bool with_user_ns, enum stage *ret_stage)
{
	int sockets[2];
	struct progress progress = { STAGE_SLOT_FORK, EPIPE };
	*ret_stage = STAGE_SLOT_FORK;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return errno;
	struct clone_args args = { 0 }; /* no signal at its end: it is waited for below */
	pid_t pid = sys_clone3(&args);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		progress = become_namespaces(slot_warden(host, slot), with_user_ns);
		/* our memory is of the host's user namespace, over which a pod has no right; there is nothing to hide yet */
		if (host->pod)
			(void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
		(void)send(sockets[1], &progress, sizeof progress, MSG_NOSIGNAL);
		(void)close(sockets[0]);
		(void)recv(sockets[1], &progress, sizeof progress, 0); /* until the parent has opened what it needs */
		_exit(0);
	}
	(void)close(sockets[1]);
	int error = pid < 0 ? errno : 0;
	if (!error) {
		if (recv(sockets[0], &progress, sizeof progress, 0) == (ssize_t)sizeof progress)
			*ret_stage = progress.stage;
		error = progress.error;
	}
	if (!error)
		error = keep_namespaces(host, slot, pid, with_user_ns, ret_stage);
	(void)close(sockets[0]); /* lets the child go, also where it cannot be killed (no CAP_KILL) */
	if (pid > 0) {
		(void)kill(pid, SIGKILL);
		(void)waitpid(pid, NULL, __WALL);
	}
	return error;
}

/* A sandbox that runs keeps its namespaces alive itself, so their descriptors are closed meanwhile: each start copies the
 * table of descriptors and closes what it copied, which is as much work as there are sandboxes. Whoever needs one again
 * takes it from init. A pod has no right to, and what an ordinary user's sandboxes mount does not keep their user namespace
 * alive, as it does elsewhere by its map of ids: so only there a number that is the same is the same namespace. */
void slot_lend(const struct host *host, struct slot *slot, const struct request *req)
{
	if (host->pod)
		return;
	if (!req->host_network)
		close_fd(&slot->net_ns_fd);
	if (!host->rootless)
		close_fd(&slot->user_ns_fd);
}

/* What init has at the number of its user namespace is opened only when it is that: it might be anything. */
static int borrow_user_ns(const struct host *host, const struct slot *slot)
{
	char path[64];
	struct stat st;
	(void)snprintf(path, sizeof path, "%d/fd/%d", slot->pid, INIT_USER_NS_FD);
	cleanup_fd int seen = openat(host->proc_fd, path, O_PATH | O_CLOEXEC);
	if (seen < 0 || fstat(seen, &st) < 0 || st.st_ino != slot->user_ns_inode || st.st_dev != slot->ns_device)
		return -1;
	(void)snprintf(path, sizeof path, "thread-self/fd/%d", seen);
	return openat(host->proc_fd, path, O_RDONLY | O_CLOEXEC);
}

/* Take both back from an init before it is killed. What cannot be had, since it has ended already or has not come so far, is
 * made anew before the next start. */
void slot_borrow(const struct host *host, struct slot *slot)
{
	slot_borrow_network(host, slot);
	if (slot->user_ns_fd < 0)
		slot->user_ns_fd = borrow_user_ns(host, slot);
}

/* It is -1 when init is gone or has not joined yet: then it is another namespace, and must not be taken for the slot's. */
void slot_borrow_network(const struct host *host, struct slot *slot)
{
	struct stat st;
	if (slot->net_ns_fd >= 0)
		return;
	slot->net_ns_fd = open_namespace(host->proc_fd, slot->pid, "net");
	if (slot->net_ns_fd >= 0 && (fstat(slot->net_ns_fd, &st) < 0 || st.st_ino != slot->net_ns_inode))
		close_fd(&slot->net_ns_fd);
}

/* Whether `lo` never carried a packet: its line in net/dev is all zeros (proc_pid_net(5)). Then no connection can linger
 * either, and nothing tells the next sandbox that it has a predecessor; the counters cannot be reset. */
static int loopback_is_unused(const struct host *host, uint16_t port)
{
	(void)port;
	char text[2048];
	cleanup_fd int fd = openat(host->proc_fd, "thread-self/net/dev", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (length < 0)
		return false;
	text[length] = '\0';
	const char *lo = strstr(text, "lo:");
	if (!lo)
		return false;
	for (lo += strlen("lo:"); *lo && *lo != '\n'; lo++)
		if (*lo != ' ' && *lo != '0')
			return false;
	return true;
}

/* Do something in the network of a slot. Returns what it returns, or -errno. */
static int in_network(const struct host *host, const struct slot *slot, network_action *act, uint16_t port)
{
	if (host->rootless && !host->pod) /* a pod has a network of its own to come back to */
		return rootless_in_network(host, slot->net_ns_fd, act, port);
	if (setns(slot->net_ns_fd, CLONE_NEWNET) < 0)
		return -errno;
	int result = act(host, port);
	if (setns(host->net_ns_fd, CLONE_NEWNET) < 0)
		_exit(125); /* never go on in a sandbox's network */
	return result;
}

/* Ask the kernel, from inside the namespace, after every process of the sandbox is dead. Any doubt means no. */
bool slot_network_is_clean(const struct host *host, const struct slot *slot)
{
	return in_network(host, slot, loopback_is_unused, 0) == 1;
}

static int listen_here(const struct host *host, uint16_t port)
{
	(void)host;
	enum { BACKLOG = 64 };
	const int on = 1;
	const struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port),
		                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
	cleanup_fd int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* the port may be listened on anew while connections to its last listener fade away (TIME_WAIT) */
	if (listening < 0 || setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
	    bind(listening, (const struct sockaddr *)&address, sizeof address) < 0 || listen(listening, BACKLOG) < 0)
		return -errno;
	int fd = listening;
	listening = -1;
	return fd;
}

/* A socket belongs to the network namespace in which it is made, whoever uses it and wherever: this one is reached from
 * inside the sandbox and served outside. Returns it, or -errno. */
int slot_listen(const struct host *host, const struct slot *slot, uint16_t port)
{
	return in_network(host, slot, listen_here, port);
}
