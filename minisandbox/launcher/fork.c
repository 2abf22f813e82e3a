/* What init does to have a warm process fork into its sandbox: it passes the request on, with the namespaces to join, and is
 * told the number of the new process, which becomes its child as soon as the one between them ends. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "launcher.h"

enum { PATIENCE_MS = 10000 }; /* for forks of the same process that were asked for before this one, too */

static int send_order(int socket, const struct message *message, const int *more)
{
	union {
		char bytes[CMSG_SPACE((FDS_MAX + FORK_FDS) * sizeof(int))];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	size_t size = (message->fd_count + FORK_FDS) * sizeof(int);
	struct iovec iov = { .iov_base = message->words, .iov_len = message->length };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
		                 .msg_controllen = CMSG_SPACE(size) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&header);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), message->fds, message->fd_count * sizeof(int));
	memcpy(CMSG_DATA(c) + message->fd_count * sizeof(int), more, FORK_FDS * sizeof(int));
	struct pollfd room = { .fd = socket, .events = POLLOUT };
	while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return errno;
		if (errno == EAGAIN && poll(&room, 1, PATIENCE_MS) == 0)
			return ETIMEDOUT;
	}
	return 0;
}

/* The answer is the number of the process (READY) or FAILED, then FAILED or the end of the connection, which comes when the
 * new process has given everything up. */
static int take_answer(int socket, pid_t *ret_pid, struct record *ret_failure)
{
	for (;;) {
		struct record record;
		struct pollfd answer = { .fd = socket, .events = POLLIN };
		int ready = poll(&answer, 1, PATIENCE_MS);
		if (ready < 0 && errno == EINTR)
			continue;
		ssize_t length = ready == 1 ? recv(socket, &record, sizeof record, 0) : -1;
		if (ready == 0)
			return ETIMEDOUT;
		if (length == 0)
			return *ret_pid || ret_failure->kind == RECORD_FAILED ? 0 : EPIPE;
		if (length != (ssize_t)sizeof record)
			return length < 0 ? errno : EPROTO;
		if (record.kind == RECORD_READY)
			*ret_pid = (pid_t)record.value;
		else if (record.kind == RECORD_FAILED)
			*ret_failure = record;
	}
}

/* Returns the number of the process, 0 if there is none; *ret_failure is of the kind FAILED when a step failed. */
pid_t fork_warm(const struct sandbox *sandbox, const struct message *message, const struct request *req,
                struct record *ret_failure)
{
	int sockets[2];
	pid_t pid = 0;
	*ret_failure = (struct record){ .item = -1 };
	int error = sandbox->namespace_fd[0] <= 0 || message->mapped ? EINVAL : 0;
	if (!error && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		error = errno;
	if (!error) {
		int more[FORK_FDS];
		memcpy(more, sandbox->namespace_fd, sizeof sandbox->namespace_fd);
		more[NAMESPACES] = sandbox->user_ns_fd;
		more[NAMESPACES + 1] = sockets[1];
		error = send_order(req->template.fd[0], message, more);
		(void)close(sockets[1]);
		if (!error)
			error = take_answer(sockets[0], &pid, ret_failure);
		(void)close(sockets[0]);
	}
	if (error)
		*ret_failure = (struct record){ .kind = RECORD_FAILED, .stage = STAGE_COMMAND_WARM, .error = error, .item = -1 };
	return pid;
}
