/* Starts a command in a control group as the launcher and an init do, for the tests of control groups.
 *
 *     cgroup_spawn INITS_FD INITS_TASKS_FD,... UID DIR_FD TASKS_FD,... -- COMMAND
 *
 * A first process, the init, is started by CLONE_INTO_CGROUP in the v2 directory INITS_FD (-1: none), and writes "0" to
 * each of its v1 `tasks` files. It becomes UID (uid and gid, no other groups; 0 stays root) and starts COMMAND in the
 * same way in DIR_FD. As a subreaper it waits for every descendant, orphans too, and exits like the command, with
 * 128 + signal, or with 120 when something could not be started.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_STARTED = 120 };

static void
fail(const char *tried)
{
    fprintf(stderr, "%s: %s\n", tried, strerror(errno));
    exit(NOT_STARTED);
}

static void
join(const char *tasks_fds)
{
    char *end;

    for (const char *next = tasks_fds; *next != '\0'; next = *end == ',' ? end + 1 : end) {
        int tasks_fd = (int)strtol(next, &end, 10);

        if (end == next)
            return;
        if (write(tasks_fd, "0", 1) != 1)
            fail("tasks");
    }
}

static pid_t
clone_into(int dir_fd, const char *tasks_fds)
{
    struct clone_args args = { .exit_signal = SIGCHLD };

    if (dir_fd >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)dir_fd;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);

    if (pid < 0)
        fail("clone3");
    if (pid == 0)
        join(tasks_fds);
    return pid;
}

static int
wait_all(pid_t first)
{
    int status, result = NOT_STARTED;
    pid_t ended;

    while ((ended = waitpid(-1, &status, 0)) > 0)
        if (ended == first)
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

int
main(int argc, char **argv)
{
    if (argc < 8)
        return NOT_STARTED;
    uid_t uid = (uid_t)atoi(argv[3]);
    pid_t init = clone_into(atoi(argv[1]), argv[2]);

    if (init > 0)
        return wait_all(init);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        fail("subreaper");
    if (uid != 0 && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
        fail("setresuid");
    pid_t command = clone_into(atoi(argv[4]), argv[5]);

    if (command > 0)
        return wait_all(command);
    execvp(argv[7], argv + 7);
    fail(argv[7]);
}
