/* A request of NUL-terminated words as values, by one table of options.
 *
 * Pure: no system call but the memory it is given, so that it can be fuzzed as it is (fuzz/words_fuzz.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launcher.h"

enum kind { KIND_FLAG, KIND_NUMBER, KIND_TEXT, KIND_TEXTS, KIND_FD, KIND_FDS, KIND_BIND, KIND_ENV };

#define BIT(name) (1u << VERB_##name)
#define STARTED (BIT(RUN) | BIT(FORK) | BIT(WARM))
#define COMMANDS (BIT(RUN) | BIT(FORK) | TRANSFERS)
#define TRANSFERS (BIT(GET) | BIT(PUT) | BIT(PACK) | BIT(UNPACK))

struct option {
	const char *name;
	enum kind kind;
	unsigned int verbs;
	size_t offset;
	uint64_t largest; /* of a number; how many of a list */
	const char *help;
};

#define AT(field) offsetof(struct request, field)

static const struct option OPTIONS[] = {
	{ "id", KIND_NUMBER, COMMANDS | BIT(SIGNAL) | BIT(START) | BIT(END) | BIT(LISTEN) | BIT(WARM) | BIT(SEAL) | BIT(COPY),
	  AT(id), UINT32_MAX,
	  "number of the command or sandbox, said in its reports" },
	{ "slot", KIND_NUMBER, BIT(SLOT) | BIT(START) | BIT(END) | BIT(LISTEN) | BIT(WARM) | BIT(SEAL), AT(slot), 1u << 20,
	  "number of the slot" },
	{ "disk", KIND_FD, BIT(SEAL) | BIT(START), AT(disk), 1,
	  "seal: a writable file system that shall be so no longer; start: an empty directory to write to, not a tmpfs" },
	{ "port", KIND_NUMBER, BIT(LISTEN), AT(port), UINT16_MAX, "TCP port of 127.0.0.1 in the sandbox's network" },
	{ "inits", KIND_FDS, BIT(CONFIGURE) | BIT(COPY), AT(inits), TASKS_MAX, "cgroup.procs or tasks file to write 0 to" },
	{ "uid-base", KIND_NUMBER, BIT(SLOT) | BIT(CONFIGURE), AT(uid_base), UINT32_MAX - SLOT_IDS, "first of 65,536 host ids" },
	{ "pod", KIND_FLAG, BIT(CONFIGURE), AT(pod), 0, "serve inside a user namespace of uid-base, for a template" },
	{ "by-path", KIND_FLAG, BIT(CONFIGURE), AT(by_path), 0, "make overlays as kernels before 6.15 need it" },
	{ "warden-gid", KIND_NUMBER, BIT(CONFIGURE), AT(warden_gid), UINT32_MAX - 1, "host group that may fill cgroups" },
	{ "control", KIND_FD, BIT(START) | BIT(WARM), AT(control), 1, "the init's end of its control socket" },
	{ "layer", KIND_FDS, BIT(START) | BIT(CONFIGURE) | BIT(COPY), AT(layers), LAYERS_MAX, "directory of a layer, top first" },
	{ "layer-namespace", KIND_FDS, BIT(START), AT(namespaces), LAYERS_MAX, "mount namespace in which a sealed layer is" },
	{ "bind", KIND_BIND, BIT(START) | BIT(CONFIGURE), AT(binds), BINDS_MAX,
	  "ro:/TARGET or rw:/TARGET; a host file or directory" },
	{ "filter", KIND_FDS, BIT(START) | BIT(FORK), AT(filters), FILTERS_MAX, "seccomp program of every command" },
	{ "hostname", KIND_TEXT, BIT(START) | BIT(WARM), AT(hostname), 64, "as uname(2) shows it inside" },
	{ "disk-bytes", KIND_NUMBER, BIT(START) | BIT(WARM), AT(disk_bytes), 1ull << 50, "size of the writable file system" },
	{ "disk-inodes", KIND_NUMBER, BIT(START) | BIT(WARM), AT(disk_inodes), 1ull << 50, "inodes of it" },
	{ "lifetime-ms", KIND_NUMBER, BIT(START), AT(lifetime_ms), 1ull << 40, "init ends by itself after this" },
	{ "host-network", KIND_FLAG, BIT(START), AT(host_network), 0, "stay in the host's network namespace" },
	{ "deterministic", KIND_FLAG, BIT(START), AT(deterministic), 0, "pin addresses, clocks since boot, times of files" },
	{ "pid-proc", KIND_FLAG, BIT(START), AT(pid_proc), 0, "mount /proc with processes only" },
	{ "taints", KIND_FLAG, BIT(START), AT(taints), 0, "what is inside may leave marks on the slot's user namespace" },
	{ "terminal", KIND_FLAG, BIT(START) | BIT(GET), AT(terminal), 0, "a devpts of its own; the master of a new terminal" },
	{ "nsjail", KIND_FD, BIT(START), AT(nsjail), 1, "the nsjail program, which is to make the container" },
	{ "nsjail-log", KIND_FD, BIT(START), AT(nsjail_log), 1, "where nsjail says what went wrong" },
	{ "trace", KIND_FLAG, BIT(START), AT(trace), 0, "report when each stage is done" },
	{ "stdio", KIND_FDS, COMMANDS | BIT(WARM), AT(stdio), STDIO_MAX, "descriptor 0, 1, 2 and so on of the command" },
	{ "null-stdin", KIND_FLAG, BIT(RUN) | BIT(FORK), AT(null_stdin), 0, "stdin is the sandbox's /dev/null; stdio begins at 1" },
	{ "cgroup", KIND_FD, COMMANDS | BIT(WARM), AT(cgroup), 1, "cgroup v2 directory to be cloned into" },
	{ "tasks", KIND_FDS, COMMANDS | BIT(WARM), AT(tasks), TASKS_MAX, "cgroup v1 tasks file to be written to" },
	{ "rlimit", KIND_TEXTS, COMMANDS | BIT(WARM), AT(rlimits), RLIMITS_MAX, "NAME:VALUE, as in nofile:1024" },
	{ "member", KIND_TEXTS, COMMANDS, AT(groups), BINDS_MAX, "a supplementary group" },
	{ "cwd", KIND_TEXT, STARTED, AT(cwd), 4095, "working directory" },
	{ "path", KIND_TEXT, TRANSFERS, AT(path), 4095, "the file or directory inside" },
	{ "uid", KIND_NUMBER, COMMANDS, AT(uid), WARDEN_ID - 1, "user inside" },
	{ "gid", KIND_NUMBER, COMMANDS, AT(gid), WARDEN_ID - 1, "group inside" },
	{ "capabilities", KIND_NUMBER, COMMANDS, AT(capabilities), (1ull << 63) - 1, "mask of those that root keeps" },
	{ "mode", KIND_NUMBER, BIT(PUT), AT(mode), 0777, "permission bits of a new file" },
	{ "signal", KIND_NUMBER, BIT(SIGNAL), AT(signal), 64, "signal to be sent to the command" },
	{ "group", KIND_FLAG, BIT(SIGNAL), AT(signal_group), 0, "to its whole process group" },
	{ "all", KIND_FLAG, BIT(SIGNAL), AT(signal_all), 0, "to every process of the sandbox but init" },
	{ "new-terminal", KIND_FLAG, BIT(RUN), AT(new_terminal), 0, "stdin is a terminal: make it the controlling one" },
	{ "template", KIND_FD, BIT(FORK), AT(template), 1, "socket of the warm process that is to fork" },
	{ "payload", KIND_FD, BIT(FORK), AT(payload), 1, "sealed memfd: what the fork is to do" },
	{ "ahead", KIND_FLAG, BIT(FORK), AT(ahead), 0, "payload is a stream, which the fork reads when it is a command already" },
	{ "env", KIND_ENV, BIT(RUN) | BIT(WARM), 0, 1u << 20, "NAME=VALUE" },
};

static const char *const VERB_WORDS[] = {
#define X(name, word) [VERB_##name] = word,
	VERBS(X)
#undef X
};

struct cursor {
	char *word;
	const char *end;
	const int *fds;
	size_t fd_count;
	char **pointers;
	size_t pointer_count;
	bool commandline; /* the words are now the command's */
};

size_t words_count(const char *words, size_t length)
{
	size_t count = 0;
	for (size_t i = 0; i < length; i++)
		count += words[i] == '\0';
	return count;
}

static int parse_number(const char *text, uint64_t largest, uint64_t *ret_number)
{
	uint64_t number = 0;
	if (*text == '\0')
		return EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return EINVAL;
		if (number > (UINT64_MAX - 9) / 10)
			return ERANGE;
		number = number * 10 + (uint64_t)(*text - '0');
	}
	if (number > largest)
		return ERANGE;
	*ret_number = number;
	return 0;
}

static int take_fd(struct cursor *at, struct fd_list *list, uint64_t largest)
{
	if (at->fd_count == 0)
		return EBADF;
	if (list->count >= largest || list->count >= FDS_MAX)
		return E2BIG;
	list->fd[list->count++] = *at->fds;
	at->fds++;
	at->fd_count--;
	return 0;
}

static int take_text(struct text_list *list, char *text, uint64_t largest)
{
	if (list->count >= largest || list->count >= BINDS_MAX)
		return E2BIG;
	list->text[list->count++] = text;
	return 0;
}

static int take_pointer(struct cursor *at, char *word)
{
	if (at->pointer_count < 2) /* one stays for the final NULL */
		return E2BIG;
	*at->pointers++ = word;
	at->pointer_count--;
	return 0;
}

static int take_bind(struct cursor *at, struct request *req, char *value)
{
	if ((strncmp(value, "ro:/", 4) != 0 && strncmp(value, "rw:/", 4) != 0) || value[4] == '\0')
		return EINVAL;
	int error = take_text(&req->binds, value, BINDS_MAX);
	return error ? error : take_fd(at, &req->bind_fds, BINDS_MAX);
}

static int take_env(struct cursor *at, struct request *req, char *value)
{
	const char *equals = strchr(value, '=');
	if (!equals || equals == value)
		return EINVAL;
	req->env_count++;
	return take_pointer(at, value);
}

static int take_option(struct cursor *at, struct request *req, const struct option *option, char *value)
{
	char *field = (char *)req + option->offset;
	bool wants_value = option->kind != KIND_FLAG && option->kind != KIND_FD && option->kind != KIND_FDS;
	if (wants_value != (value != NULL))
		return EINVAL;
	switch (option->kind) {
	case KIND_FLAG:
		*(bool *)(void *)field = true;
		return 0;
	case KIND_NUMBER:
		return parse_number(value, option->largest, (uint64_t *)(void *)field);
	case KIND_TEXT:
		if (*value == '\0' || strlen(value) > option->largest)
			return EINVAL;
		*(char **)(void *)field = value;
		return 0;
	case KIND_TEXTS:
		return take_text((struct text_list *)(void *)field, value, option->largest);
	case KIND_FD:
	case KIND_FDS:
		return take_fd(at, (struct fd_list *)(void *)field, option->largest);
	case KIND_BIND:
		return take_bind(at, req, value);
	case KIND_ENV:
		return take_env(at, req, value);
	}
	return EINVAL;
}

static int take_word(struct cursor *at, struct request *req)
{
	char *word = at->word + 2;
	if (strncmp(at->word, "--", 2) != 0)
		return EINVAL;
	char *value = strchr(word, '=');
	size_t length = value ? (size_t)(value - word) : strlen(word);
	for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
		const struct option *option = &OPTIONS[i];
		if (strlen(option->name) != length || strncmp(option->name, word, length) != 0)
			continue;
		if (!(option->verbs & (1u << req->verb)))
			return EINVAL;
		return take_option(at, req, option, value ? value + 1 : NULL);
	}
	return EINVAL;
}

static int take_verb(struct request *req, const char *word)
{
	for (size_t i = 0; i < sizeof VERB_WORDS / sizeof *VERB_WORDS; i++)
		if (strcmp(VERB_WORDS[i], word) == 0) {
			req->verb = (enum verb)i;
			return 0;
		}
	return EINVAL;
}

/* What the table cannot say: which options a verb cannot do without. */
static int check_complete(const struct request *req)
{
	switch (req->verb) {
	case VERB_CONFIGURE:
	case VERB_SLOT: /* the launcher knows whether there must be a first id */
	case VERB_END:
	case VERB_SIGNAL:
	case VERB_DISK:
		return 0;
	case VERB_COPY:
		return req->layers.count >= 1 ? 0 : EINVAL;
	case VERB_SEAL:
		return req->disk.count == 1 ? 0 : EINVAL;
	case VERB_LISTEN:
		return req->port ? 0 : EINVAL;
	case VERB_START:
		return req->control.count == 1 && req->hostname && req->nsjail.count == req->nsjail_log.count ? 0 : EINVAL;
	case VERB_WARM:
		return req->control.count == 1 && req->hostname && req->cwd && req->argv_count ? 0 : EINVAL;
	case VERB_FORK:
		return req->stdio.count + req->null_stdin >= 3 && req->cwd && req->template.count && req->payload.count ? 0 :
		                                                                                                        EINVAL;
	case VERB_RUN:
		return req->stdio.count + req->null_stdin >= 3 && req->argv_count >= 1 && req->cwd ? 0 : EINVAL;
	case VERB_GET:
		return req->path || req->terminal ? 0 : EINVAL;
	case VERB_PUT:
	case VERB_UNPACK:
		return req->path && req->stdio.count >= 1 ? 0 : EINVAL;
	case VERB_PACK:
		return req->path && req->stdio.count >= 2 ? 0 : EINVAL;
	}
	return EINVAL;
}

static int take_any(struct cursor *at, struct request *req, int index)
{
	if (index == 0)
		return take_verb(req, at->word);
	if (at->commandline) {
		req->argv_count++;
		return take_pointer(at, at->word);
	}
	if (strcmp(at->word, "--") != 0)
		return take_word(at, req);
	if (req->verb != VERB_RUN && req->verb != VERB_WARM)
		return EINVAL;
	at->commandline = true;
	int error = take_pointer(at, NULL); /* ends env */
	req->argv = at->pointers;
	return error;
}

int words_parse(struct request *req, char *words, size_t length, const int *fds, size_t fd_count, char **pointers,
                size_t pointer_count, int *ret_item)
{
	struct cursor at = { .word = words, .end = words + length, .fds = fds, .fd_count = fd_count,
		             .pointers = pointers, .pointer_count = pointer_count };
	*req = (struct request){ .env = pointers };
	*ret_item = 0;
	if (length == 0 || words[length - 1] != '\0' || pointer_count < 2)
		return EINVAL;
	for (int index = 0; at.word < at.end; index++) {
		*ret_item = index;
		int error = take_any(&at, req, index);
		if (error)
			return error;
		at.word += strlen(at.word) + 1;
	}
	*at.pointers = NULL;
	if (!req->argv)
		req->argv = at.pointers;
	*ret_item = -1;
	if (at.fd_count != 0) /* more descriptors than options that take one */
		return EBADF;
	return check_complete(req);
}

void words_print_options(void)
{
	for (size_t v = 0; v < sizeof VERB_WORDS / sizeof *VERB_WORDS; v++)
		for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
			if (OPTIONS[i].verbs & (1u << v)) {
				bool fd = OPTIONS[i].kind == KIND_FD || OPTIONS[i].kind == KIND_FDS ||
				          OPTIONS[i].kind == KIND_BIND;
				bool value = OPTIONS[i].kind != KIND_FLAG && (!fd || OPTIONS[i].kind == KIND_BIND);
				printf("option %s %s %s %s\n", VERB_WORDS[v], OPTIONS[i].name,
				       value ? "value" : "-", fd ? "fd" : "-");
			}
}
