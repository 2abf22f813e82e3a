/* Datagrams: requests in, records out. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

enum { SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };

void close_fd(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
	*fd = -1;
}

int64_t now_ns(void)
{
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Send one record, with a descriptor beside it unless fd is negative. Returns 0 or -errno. */
int record_send(int socket, struct record record, int fd)
{
	if (record.time_ns == 0)
		record.time_ns = now_ns();
	struct iovec iov = { .iov_base = &record, .iov_len = sizeof record };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (fd >= 0) {
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof control.bytes;
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &fd, sizeof fd);
	}
	ssize_t sent;
	do
		sent = sendmsg(socket, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

static void take_fds(struct message *message, struct msghdr *header)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count && message->fd_count < FDS_MAX; i++) {
			memcpy(&message->fds[message->fd_count], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			message->fd_count++;
		}
	}
}

/* The words lie in the first descriptor: map it privately. Only a sealed one, so that it cannot change or shrink. */
static int map_words(struct message *message)
{
	struct stat st;
	if (message->fd_count < 1)
		return -EBADF;
	int seals = fcntl(message->fds[0], F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS || fstat(message->fds[0], &st) < 0)
		return -EBADF;
	if (st.st_size < 1 || st.st_size > REQUEST_MEMFD_MAX)
		return -E2BIG;
	void *words = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, message->fds[0], 0);
	if (words == MAP_FAILED)
		return -errno;
	(void)close(message->fds[0]);
	message->fd_count--;
	memmove(message->fds, message->fds + 1, message->fd_count * sizeof(int));
	message->words = words;
	message->length = message->mapped = (size_t)st.st_size;
	return 0;
}

static int map_pointers(struct message *message)
{
	size_t wanted = words_count(message->words, message->length) + 3;
	message->pointers = message->small_pointers;
	message->pointer_count = sizeof message->small_pointers / sizeof *message->small_pointers;
	if (wanted <= message->pointer_count)
		return 0;
	size_t bytes = wanted * sizeof(char *);
	void *pointers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pointers == MAP_FAILED)
		return -errno;
	message->pointers = pointers;
	message->pointer_count = wanted;
	message->pointers_mapped = bytes;
	return 0;
}

/* Receive one request. Returns its length, 0 at the end of the connection, or -errno; then release it. */
ssize_t message_receive(int socket, struct message *message)
{
	union {
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = message->bytes, .iov_len = REQUEST_INLINE_MAX + 1 };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
		                 .msg_controllen = sizeof control.bytes };
	message->words = message->bytes;
	message->length = message->fd_count = message->mapped = message->pointers_mapped = 0;
	ssize_t length = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (length <= 0)
		return length < 0 ? -errno : 0;
	take_fds(message, &header);
	if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || length > REQUEST_INLINE_MAX)
		return -EMSGSIZE;
	message->length = (size_t)length;
	if (length == 2 && memcmp(message->bytes, "@", 2) == 0) {
		int error = map_words(message);
		if (error < 0)
			return error;
	}
	int error = map_pointers(message);
	return error < 0 ? error : (ssize_t)message->length;
}

void message_release(struct message *message)
{
	for (size_t i = 0; i < message->fd_count; i++)
		(void)close(message->fds[i]);
	message->fd_count = 0;
	if (message->mapped)
		(void)munmap(message->words, message->mapped);
	if (message->pointers_mapped)
		(void)munmap(message->pointers, message->pointers_mapped);
	message->mapped = message->pointers_mapped = 0;
}

int message_parse(struct message *message, struct request *req, int *ret_item)
{
	return words_parse(req, message->words, message->length, message->fds, message->fd_count, message->pointers,
	                   message->pointer_count, ret_item);
}

/* The only way out of a child that cannot go on: say which step, which item and why. A child in a sandbox's memory group
 * may have no memory left to send anything with. */
_Noreturn void fail(const struct reporter *to, enum stage stage, int item, int error)
{
	struct record record = { .kind = RECORD_FAILED, .stage = (uint16_t)stage, .id = to->id, .error = error,
		                 .item = item };
	if (to->leave)
		*to->leave = record;
	else
		(void)record_send(to->socket, record, -1);
	_exit(127);
}

void stage_done(const struct reporter *to, enum stage stage)
{
	if (to->trace)
		(void)record_send(to->socket, (struct record){ .kind = RECORD_STAGE, .stage = (uint16_t)stage,
		                                               .id = to->id }, -1);
}
