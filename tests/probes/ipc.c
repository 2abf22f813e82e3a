/* What one process leaves in the kernel for another one to find: shared memory, semaphores, queues, keys. */
#include "probe.h"

#include <fcntl.h>
#include <mqueue.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KEY = 0x70726f62, UNLINK = 9, SEARCH = 10 }; /* keyctl(2) */

/* Each makes the thing when `create` is IPC_CREAT, else looks for it. */
static long shm_file(long create)
{
	return shm_open("/probe-left", O_RDWR | (create ? O_CREAT : 0), 0666);
}

static long message_queue(long create)
{
	struct mq_attr attributes = { .mq_maxmsg = 1, .mq_msgsize = 1 };
	return mq_open("/probe-left", O_RDWR | (create ? O_CREAT : 0), 0666, &attributes);
}

static long sysv_memory(long create)
{
	return shmget(KEY, 4096, (int)create | 0666);
}

static long sysv_semaphore(long create)
{
	return semget(KEY, 1, (int)create | 0666);
}

static long sysv_queue(long create)
{
	return msgget(KEY, (int)create | 0666);
}

/* What is found is taken away again, since it may be in a keyring of the host. */
static long key_in(long ring, long create)
{
	if (create)
		return syscall(SYS_add_key, "user", "probe-left", "x", 1, ring);
	long key = syscall(SYS_keyctl, SEARCH, ring, "user", "probe-left", 0);
	if (key >= 0)
		(void)syscall(SYS_keyctl, UNLINK, key, ring);
	return key;
}

static long session_key(long create)
{
	return key_in(-3, create);
}

static long user_key(long create)
{
	return key_in(-4, create);
}

static const struct attempt ATTEMPTS[] = {
	{ "shm-file", shm_file },
	{ "message-queue", message_queue },
	{ "sysv-memory", sysv_memory },
	{ "sysv-semaphore", sysv_semaphore },
	{ "sysv-queue", sysv_queue },
	{ "session-key", session_key },
	{ "user-key", user_key },
};

void probe_ipc(int leave)
{
	attempts_run(ATTEMPTS, COUNT(ATTEMPTS), leave ? IPC_CREAT : 0, (char *const[]){ NULL });
}
