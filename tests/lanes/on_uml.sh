# Starts a command in user-mode Linux: a kernel that is an ordinary process of the host, so it boots in two seconds and
# needs no virtualisation. It has one processor and no cpuset, PSI or Landlock. Sourced by run and setup.
#
#     run - timeout - unshare (pid and mount namespace) - linux.uml - one process of the host for each of the guest
#
# The kernel runs in a root of its own, with the libraries of its Debian; the host's root is /host there, and hostfs sees
# what the kernel sees. The pid namespace ends all its processes with it.
# shellcheck shell=bash

# Usage: boot_uml KERNEL ROOT ARGUMENT...
# ROOT is a directory of the host, empty for its root. What the command prints goes to stdout.
boot_uml() {
    local kernel=$cache/$1 root=$2 arguments
    arguments=(
        # The guest's system calls are caught by seccomp where the kernel can (from 6.16), else by ptrace, which is slower.
        seccomp=auto
        "mem=${MEMORY_MIB}M" "initrd=/host$work/initramfs" "ubd0=/host$work/scratch"
        # ttyS0 is our stdout, the kernel's messages go to our stderr.
        con=null con0=null,fd:2 ssl0=null,fd:1 loglevel=4 panic=-1
        cgroup_no_v1=all
        lane.share=hostfs "lane.root=/host$root" "lane.control=/host$work/control" lane.scratch=ubda
        "${@:3}"
    )
    initramfs_of "$kernel/initramfs" >"$work/initramfs"
    within_timeout unshare --mount --propagation private --pid --fork --kill-child \
        bash -euc "$ENTER_UML_ROOT" bash "$kernel/tree" "${arguments[@]}" 2>"$work/console"
}

# The guest's memory is a file in TMPDIR, which should be a tmpfs. The kernel is not pid 1 itself: it aborts when it panics,
# and pid 1 does not die of a signal that it sends itself (pid_namespaces(7)).
# shellcheck disable=SC2016 # expanded by the shell that runs it
readonly ENTER_UML_ROOT='
    mount --rbind / "$1/host"
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    env --ignore-environment PATH="$PATH" HOME=/tmp TMPDIR=/dev/shm chroot "$1" /usr/bin/linux.uml "${@:2}"
    exit
'

# Usage: build_uml DIRECTORY SUITE
build_uml() {
    local directory=$1 suite=$2 tree=$1/tree each
    unpack_with_dependencies "$suite" user-mode-linux "$tree"
    # What Debian's base-files would link, where the packages themselves no longer do.
    for each in lib lib64; do
        [[ -e $tree/$each ]] || ln -s "usr/$each" "$tree/$each"
    done
    mkdir -p "$tree"/{host,dev,proc,tmp}
    build_initramfs "$(echo "$tree"/usr/lib/uml/modules/*)" "$directory/initramfs" overlay dummy
    rm -r "$tree/usr/lib/uml" "$tree/usr/share"
}
