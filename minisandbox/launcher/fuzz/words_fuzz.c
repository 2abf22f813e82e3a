/* Fuzz target of the request parser, built with ASan and UBSan: `words_fuzz SECONDS CORPUS...` mutates the files of the
 * corpus for so long; with 0 seconds it only replays them. A crash aborts and leaves its input in ./crash-input
 * (a length of 8 bytes, then the bytes).
 * LLVMFuzzerTestOneInput lets libFuzzer drive the same code where clang has it. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../launcher.h"

enum { INPUT_MAX = 4096, CORPUS_MAX = 256, POINTERS = 64, FDS = 12 };

struct input {
	size_t length;
	unsigned char bytes[INPUT_MAX];
};

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t length);

static void require(bool condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "words_fuzz: %s\n", what);
		abort();
	}
}

/* What must hold of any request that the parser lets through. */
static void check(const struct request *req, char **pointers, const char *words, size_t length)
{
	require(req->env_count + req->argv_count + 2 <= POINTERS, "more pointers than there is room for");
	require(req->env[req->env_count] == NULL, "env does not end");
	require(req->argv[req->argv_count] == NULL, "argv does not end");
	for (size_t i = 0; i < req->argv_count; i++)
		require(req->argv[i] >= words && req->argv[i] < words + length, "argv points elsewhere");
	for (size_t i = 0; i < req->env_count; i++)
		require(strchr(pointers[i], '=') != NULL, "a variable without a name");
	for (uint32_t i = 0; i < req->bind_fds.count; i++)
		require(req->binds.text[i][3] == '/', "a bind without a target");
	require(req->bind_fds.count == req->binds.count, "binds and descriptors differ");
	require(req->uid < SLOT_IDS && req->gid < SLOT_IDS && req->mode <= 0777 && req->port <= UINT16_MAX,
	        "a number out of range");
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t length)
{
	static const int fds[FDS] = { 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21 };
	char *pointers[POINTERS];
	struct request req;
	int item;
	if (length < 1)
		return 0;
	/* the first byte says how many descriptors came; a heap copy of exact size lets ASan see one byte too far */
	size_t fd_count = bytes[0] % (FDS + 1);
	char *words = malloc(length - 1 ? length - 1 : 1);
	memcpy(words, bytes + 1, length - 1);
	if (words_parse(&req, words, length - 1, fds, fd_count, pointers, POINTERS, &item) == 0)
		check(&req, pointers, words, length - 1);
	free(words);
	return 0;
}

static size_t load_corpus(const char *directory, struct input *corpus, size_t count)
{
	DIR *dir = opendir(directory);
	require(dir != NULL, "cannot open the corpus");
	for (struct dirent *entry; (entry = readdir(dir)) && count < CORPUS_MAX;) {
		int fd = openat(dirfd(dir), entry->d_name, O_RDONLY);
		ssize_t got = fd < 0 ? -1 : read(fd, corpus[count].bytes, INPUT_MAX);
		if (got > 0)
			corpus[count++].length = (size_t)got;
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	return count;
}

static void mutate(struct input *input, const struct input *other)
{
	for (int n = rand() % 8; n >= 0 && input->length > 2; n--) {
		size_t at = (size_t)rand() % input->length;
		size_t span = (size_t)rand() % 16 + 1;
		switch (rand() % 5) {
		case 0:
			input->bytes[at] = (unsigned char)rand();
			break;
		case 1:
			input->bytes[at] ^= (unsigned char)(1u << (rand() % 8));
			break;
		case 2: /* cut */
			span = span < input->length - at ? span : input->length - at;
			memmove(input->bytes + at, input->bytes + at + span, input->length - at - span);
			input->length -= span;
			break;
		case 3: /* take a piece of another input */
			if (other->length <= at || input->length + span > INPUT_MAX)
				break;
			span = span < other->length - at ? span : other->length - at;
			memmove(input->bytes + at + span, input->bytes + at, input->length - at);
			memcpy(input->bytes + at, other->bytes + at, span);
			input->length += span;
			break;
		default:
			input->bytes[at] = "\0-=:/@9"[rand() % 7];
		}
	}
}

/* The input at work lies in a shared mapping of ./crash-input, so that it outlives a crash at no cost. */
static struct input *map_current(void)
{
	int fd = open("crash-input", O_CREAT | O_TRUNC | O_RDWR, 0600);
	require(fd >= 0 && ftruncate(fd, (off_t)sizeof(struct input)) == 0, "cannot make ./crash-input");
	void *current = mmap(NULL, sizeof(struct input), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(current != MAP_FAILED, "cannot map ./crash-input");
	close(fd);
	return current;
}

int main(int argc, char **argv)
{
	static struct input corpus[CORPUS_MAX];
	size_t count = 0;
	unsigned long runs = 0;
	if (argc < 3) {
		fprintf(stderr, "usage: words_fuzz SECONDS CORPUS...\n");
		return 64;
	}
	for (int i = 2; i < argc; i++)
		count = load_corpus(argv[i], corpus, count);
	require(count > 0, "the corpus is empty");
	struct input *current = map_current();
	for (size_t i = 0; i < count; i++, runs++)
		(void)LLVMFuzzerTestOneInput(corpus[i].bytes, corpus[i].length);
	time_t end = time(NULL) + atoi(argv[1]);
	unsigned int seed = (unsigned int)time(NULL) ^ (unsigned int)getpid();
	srand(seed);
	while (time(NULL) < end)
		for (int i = 0; i < 1000; i++, runs++) {
			*current = corpus[(size_t)rand() % count];
			mutate(current, &corpus[(size_t)rand() % count]);
			(void)LLVMFuzzerTestOneInput(current->bytes, current->length);
		}
	(void)unlink("crash-input");
	printf("words_fuzz: %lu inputs, seed %u, no finding\n", runs, seed);
	return 0;
}
