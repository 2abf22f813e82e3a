/* The stream of a tree, between pack.c or unpack.c inside and the supervisor: POSIX ustar with pax headers for what does
 * not fit (pax(1), "ustar Interchange Format"), and three things of our own:
 *   - the pax record MINISANDBOX.inode=DEV:INO stands before a file with several names. A second one with the same value
 *     has type '1' and no content: it is the same file;
 *   - type 'Z' is something that was left out; its mode has the file type, or its devmajor the errno why;
 *   - directories come before what is in them, and "." comes first. */
#ifndef MINISANDBOX_TREE_H
#define MINISANDBOX_TREE_H

#include <stddef.h>
#include <stdint.h>

enum {
	TREE_BLOCK = 512,
	TREE_PATH_MAX = 4096,  /* with its NUL */
	TREE_PAX_MAX = 16384,  /* bytes of the records before one entry: two paths and two numbers */
	TREE_DEPTH_MAX = 256,  /* directories within directories; each holds a descriptor while it is packed */
	TREE_LINKS_MAX = 1 << 16, /* files with several names that are told apart; those beyond are packed once for each */
};

enum tree_type {
	TREE_FILE = '0',
	TREE_LINK = '1',
	TREE_SYMLINK = '2',
	TREE_DIRECTORY = '5',
	TREE_PAX = 'x',
	TREE_OMITTED = 'Z',
};

struct tree_header {
	char name[100];
	char mode[8], uid[8], gid[8];
	char size[12], mtime[12];
	char checksum[8];
	char type;
	char linkname[100];
	char magic[6], version[2];
	char uname[32], gname[32];
	char devmajor[8], devminor[8];
	char prefix[155];
	char unused[12];
};
_Static_assert(sizeof(struct tree_header) == TREE_BLOCK, "a header is one block");

/* Sum of the bytes of a header, its checksum taken as spaces. */
static inline unsigned int tree_checksum(const struct tree_header *header)
{
	const unsigned char *bytes = (const unsigned char *)header;
	unsigned int sum = 0;
	for (size_t i = 0; i < TREE_BLOCK; i++)
		sum += bytes[i];
	for (size_t i = 0; i < sizeof header->checksum; i++)
		sum += ' ' - (unsigned char)header->checksum[i];
	return sum;
}

#endif
