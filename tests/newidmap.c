/* newuidmap(1) and newgidmap(1) for hosts without them: writes the map that it is asked for, whatever it is. Installed setuid
 * root under both names by the tests, and only for them to run. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char path[64], map[1024];
	size_t length = 0;
	if (argc < 5 || (argc - 2) % 3 != 0)
		return 1;
	(void)snprintf(path, sizeof path, "/proc/%s/%s", argv[1], strstr(argv[0], "newuidmap") ? "uid_map" : "gid_map");
	for (int i = 2; i + 2 < argc && length < sizeof map; i += 3)
		length += (size_t)snprintf(map + length, sizeof map - length, "%s %s %s\n", argv[i], argv[i + 1], argv[i + 2]);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || length >= sizeof map || write(fd, map, length) != (ssize_t)length) {
		perror(path);
		return 1;
	}
	return 0;
}
