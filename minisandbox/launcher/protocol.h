/* The wire between supervisor, launcher and init: verbs, options, record kinds and stages.
 *
 * A request is one SOCK_SEQPACKET datagram of NUL-terminated words (a verb, options, then `--` and a command), with
 * file descriptors beside it; options that take a descriptor consume them in order. Requests of more than
 * REQUEST_INLINE_MAX bytes lie in a sealed memfd: the datagram is then the single word "@" and the first descriptor.
 * A report is one `struct record` per datagram. `--print-protocol` prints all of this, and a test of the supervisor
 * compares it with its own tables, so each list below exists once on this side.
 */
#ifndef MINISANDBOX_PROTOCOL_H
#define MINISANDBOX_PROTOCOL_H

#include <stdint.h>

enum {
	PROTOCOL_VERSION = 1,
	REQUEST_INLINE_MAX = 32768, /* bytes of words in one datagram; far below the default socket buffer (unix(7)) */
	REQUEST_MEMFD_MAX = 4 << 20, /* bytes of words in a memfd: execve(2) takes 2 MiB of arguments at most */
	FDS_MAX = 128,               /* per datagram; the kernel's SCM_MAX_FD is 253 */
	LAYERS_MAX = 32,             /* fsconfig(2) strings hold 256 bytes: 32 x "/x/l/NN:" */
	BINDS_MAX = 48,
	FILTERS_MAX = 8,
	TASKS_MAX = 4,
	RLIMITS_MAX = 16,
	STDIO_MAX = 8,
	RUNS_MAX = 256, /* commands of one sandbox at once */
	SLOT_IDS = 65536,
	WARDEN_ID = SLOT_IDS - 1, /* last host id of a slot: the user of its init, not mapped inside */
};

/* One 32-byte little-endian record per datagram. Which fields say what:
 *   HELLO    value: protocol version
 *   SLOT     id: slot, made
 *   STAGE    stage done at time_ns (only when traced)
 *   READY    the sandbox can serve
 *   FAILED   id: slot, sandbox or run; stage, error (errno), item (index of the mount, layer, limit concerned, or -1)
 *   EXIT     id: run; value: wait status as of waitpid(2); time_ns: when it was reaped
 *   DISK     id: run; value: bytes in use on the writable file system, item: inodes in use; sent before its EXIT
 *   OPENED   id: run; value: size in bytes; or id: sandbox; value: port that is listened on; the descriptor beside it;
 *            or id 0: the writable file system of the sandbox; or id: copy; a new file system
 *   SEALED   id: sandbox or copy; nothing can be written to its disk any more; beside it the mount namespace in which it is
 *            attached, before Linux 6.15
 *   GONE     id: sandbox; value: wait status of its init; every process of the sandbox is dead
 */
#define RECORD_KINDS(X) \
	X(HELLO) X(SLOT) X(STAGE) X(READY) X(FAILED) X(EXIT) X(DISK) X(OPENED) X(GONE) X(SEALED)

#define STAGES(X)                                                                              \
	X(NONE)                                                                                \
	/* any request */                                                                      \
	X(REQUEST)                                                                             \
	/* launcher: its own start */                                                          \
	X(SEAL) X(OUTER_USERNS) X(OUTER_IDMAP) X(LAUNCHER_NAMESPACE) X(LAUNCHER_ROOT) X(DEVICES) X(POD)                       \
	/* launcher: a slot */                                                                 \
	X(SLOT_FORK) X(SLOT_NETNS) X(SLOT_LOOPBACK) X(SLOT_USERNS) X(SLOT_IDMAP)               \
	/* launcher: a start */                                                                \
	X(LAYER) X(BIND_SOURCE) X(CLONE)                                                       \
	/* child: a start */                                                                   \
	X(CGROUP) X(PIN) X(NETNS) X(HOSTNAME) X(TMPFS) X(UPPER) X(OVERLAY) X(PROC) X(DEV) X(SHM)      \
	X(PTS) X(BIND) X(UNMOUNT) X(ROOT) X(FILTER) X(WARDEN)                                  \
	/* child: a start by nsjail */                                                         \
	X(NSJAIL_MOUNTS) X(NSJAIL_EXEC) X(NSJAIL)                                              \
	/* a command */                                                                        \
	X(COMMAND_WARM) X(COMMAND_CLONE) X(COMMAND_CGROUP) X(COMMAND_STDIO) X(COMMAND_RLIMIT)                  \
	X(COMMAND_USERNS) X(COMMAND_USER) X(COMMAND_CAPABILITIES) X(COMMAND_CWD)               \
	X(COMMAND_TERMINAL) X(COMMAND_SECCOMP) X(COMMAND_EXEC)                                 \
	/* a file */                                                                           \
	X(FILE_OPEN) X(FILE_TYPE) X(FILE_WRITE) X(TREE_STREAM)                                 \
	/* launcher: a listening socket, a disk sealed, layers copied */                       \
	X(LISTEN) X(SEAL_DISK) X(COPY)

/* verb, its word, who serves it */
#define VERBS(X)                     \
	X(CONFIGURE, "configure")    \
	X(SLOT, "slot")              \
	X(START, "start")            \
	X(END, "end")                \
	X(LISTEN, "listen")          \
	X(SEAL, "seal")              \
	X(COPY, "copy")              \
	X(WARM, "warm")              \
	X(RUN, "run")                \
	X(GET, "get")                \
	X(PUT, "put")                \
	X(PACK, "pack")              \
	X(UNPACK, "unpack")          \
	X(FORK, "fork")              \
	X(SIGNAL, "signal")          \
	X(DISK, "disk")

enum record_kind {
#define X(name) RECORD_##name,
	RECORD_KINDS(X)
#undef X
};

enum stage {
#define X(name) STAGE_##name,
	STAGES(X)
#undef X
};

enum verb {
#define X(name, word) VERB_##name,
	VERBS(X)
#undef X
};

struct record {
	uint16_t kind;
	uint16_t stage;
	uint32_t id;
	int32_t error;
	int32_t item;
	int64_t value;
	int64_t time_ns; /* CLOCK_MONOTONIC */
};
_Static_assert(sizeof(struct record) == 32, "the record is 32 bytes on the wire");

#endif
