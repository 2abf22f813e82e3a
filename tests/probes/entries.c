/* The other ways into the kernel of x86: 32-bit calls by int 0x80, from 64-bit code and from 32-bit code, and x32. */
#include "probe.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__

enum { OLD_GETPID = 20, OLD_MKDIR = 39, OLD_SOCKETCALL = 102, OLD_MOUNT = 21, X32 = 0x40000000, LOW_BYTES = 65536 };

static long result_of(long value)
{
	if ((int)value < 0) {
		errno = -(int)value;
		return -1;
	}
	return value;
}

/* Memory that 32 bits can address, also as a stack. */
static char *low_memory(void)
{
	char *low = mmap(NULL, LOW_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	return low == MAP_FAILED ? NULL : low;
}

static long raw_int80(long number, long first, long second)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(0), "S"(0), "D"(0)
	                 : "memory", "r8", "r9", "r10", "r11");
	return result;
}

/* In user-mode Linux it is one more way to the 64-bit calls, with their numbers. */
static long int80(long number, long first, long second)
{
	if (raw_int80(OLD_GETPID, 0, 0) != getpid()) {
		errno = ENOSYS;
		return -1;
	}
	return result_of(raw_int80(number, first, second));
}

static long try_int80(long number)
{
	return int80(number, 0, 0);
}

static long try_mkdir(long unused)
{
	char *name = low_memory();
	(void)unused;
	if (!name)
		return -1;
	strcpy(name, "probe-directory");
	long result = int80(OLD_MKDIR, (long)name, 0700);
	(void)rmdir("probe-directory");
	return result;
}

/* socketcall(2): socket(AF_INET, SOCK_DGRAM, 0), whose arguments no filter can see. */
static long try_socketcall(long unused)
{
	static const uint32_t arguments[] = { 2, 2, 0 };
	char *low = low_memory();
	(void)unused;
	if (!low)
		return -1;
	memcpy(low, arguments, sizeof arguments);
	return int80(OLD_SOCKETCALL, 1, (long)low);
}

/* A far call into the 32-bit code segment, on a stack that it can address; there `int 0x80`, and a far return. */
static long try_far_call(long unused)
{
	static const uint8_t code[] = { 0xcd, 0x80, 0xcb };
	/* call far [rdi]; pop rsp; ret: in low memory too, since the far return knows 32 bits of where it came from */
	static const uint8_t gate[] = { 0xff, 0x1f, 0x5c, 0xc3 };
	struct __attribute__((packed)) {
		uint32_t offset;
		uint16_t segment;
	} far;
	char *low = low_memory();
	long result;
	(void)unused;
	if (!low)
		return -1;
	memcpy(low, code, sizeof code);
	memcpy(low + 64, gate, sizeof gate);
	far.offset = (uint32_t)(uintptr_t)low;
	far.segment = 0x23; /* __USER32_CS */
	__asm__ volatile("sub $128, %%rsp\n\t" /* the red zone is the compiler's */
	                 "push %%rbp\n\t"
	                 "lea 1f(%%rip), %%r8\n\t"
	                 "push %%r8\n\t"
	                 "mov %%rsp, (%[stack])\n\t"
	                 "mov %[stack], %%rsp\n\t"
	                 "jmp *%[gate]\n\t"
	                 "1: pop %%rbp\n\t"
	                 "add $128, %%rsp\n\t"
	                 : "=a"(result)
	                 : "0"((long)OLD_GETPID), "D"(&far), [gate] "r"(low + 64), [stack] "r"(low + LOW_BYTES - 64)
	                 : "memory", "cc", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15");
	if (result == getpid())
		return result;
	errno = ENOSYS;
	return -1;
}

static long try_x32(long number)
{
	return syscall(X32 | number);
}

static const struct {
	struct attempt attempt;
	long argument;
} ENTRIES[] = {
	{ { "int80-getpid", try_int80 }, OLD_GETPID },
	{ { "int80-mount", try_int80 }, OLD_MOUNT },
	{ { "int80-mkdir", try_mkdir }, 0 },
	{ { "int80-socketcall", try_socketcall }, 0 },
	{ { "far-call-getpid", try_far_call }, 0 },
	{ { "x32-getpid", try_x32 }, SYS_getpid },
	{ { "x32-ptrace", try_x32 }, 521 },
	{ { "x32-execve", try_x32 }, 520 },
};

void probe_entries(char *const *names)
{
	for (size_t i = 0; i < COUNT(ENTRIES); i++)
		attempts_run(&ENTRIES[i].attempt, 1, ENTRIES[i].argument, names);
}

#else

void probe_entries(char *const *names)
{
	(void)names; /* one way in */
}

#endif
