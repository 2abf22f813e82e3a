# Which lanes there are, and what stands between each and this host. Sourced by run and setup; it only looks.
# shellcheck shell=bash

cache=${MINISANDBOX_LANES:-/var/cache/minisandbox-lanes}

readonly LANES=(host host-user v1 box box-docker v2 v2-user uml61 qemu qemu61)

# Any of these proves control groups v2.
readonly V2_LANES=(v2 v2-user uml61 qemu qemu61)

declare -rA ABOUT=(
    [host]="this host, as root"
    [host-user]="this host, as an ordinary user without subordinate ids"
    [v1]="this host as root, with its unified control group tree out of sight"
    [box]="like a pod: root without CAP_SYS_ADMIN, parts of /proc masked, control groups read-only"
    [box-docker]="the same behind a seccomp filter like Docker's, which refuses namespaces and mounts"
    [v2]="control groups v2, as root, in user-mode Linux 7.x"
    [v2-user]="control groups v2 delegated by systemd to uid 1000 on Debian 12, in user-mode Linux 7.x"
    [uml61]="control groups v2, as root, in user-mode Linux 6.1 of Debian 12"
    [qemu]="Debian 13's kernel 6.12 in QEMU without KVM, as root: the tests marked qemu"
    [qemu61]="Debian 12's kernel 6.1 in QEMU without KVM, as root: the tests marked qemu"
)

# Tests of values, of this project's own text, and of what asks sandboxes for no more than the tests of sandboxes do: they are
# the same on every host, and with --quick no guest repeats them.
readonly SAME_EVERYWHERE=(
    judge/test_{checkers,data_mirror,decide,determinism,external,frames,hack_rows,hacks,hostile_input,ledger,load_kinds}.py
    judge/test_{mirrors,performance,shadows,stdio,suite}.py probes/test_coverage.py rollout tasks
    test_{bench,bench_density,bench_judge,bench_rollouts,bench_state,completions,compression,docs,document}.py
    test_{endpoints,lanes,layering,outcome,policy,policy_properties,training}.py
    test_{prometheus,proxy_protocol,recipe,reports,setup,shape,spec,wheel}.py
)

# What a lane needs from the cache. A new number makes an older build of the same thing useless: raise it when setup would
# build something else. Kernels: uml-* boot in user-mode Linux, qemu-* in QEMU.
declare -rA KERNEL=(
    [v2]=uml-forky-2 [v2-user]=uml-forky-2 [uml61]=uml-bookworm-2 [qemu]=qemu-trixie-2 [qemu61]=qemu-bookworm-2
)
readonly DEBIAN_ROOT=root-bookworm-1

# Prints why this host cannot have a lane now, or nothing.
missing_for() {
    case $1 in
    host) needs_root ;;
    host-user) [[ $EUID -ne 0 ]] || needs_program setpriv util-linux ;;
    v1) needs_root || needs_v1 ;;
    box | box-docker) needs_root || needs_program setpriv util-linux ;;
    v2 | uml61) needs_root || needs_x86 || needs_kernel "$1" ;;
    v2-user) needs_root || needs_x86 || needs_kernel "$1" || needs_environment ;;
    qemu | qemu61) needs_root || needs_x86 || needs_program qemu-system-x86_64 qemu-system-x86 || needs_kernel "$1" ;;
    esac
}

# Each of these prints what is missing and succeeds, or fails when nothing is.

needs_root() {
    [[ $EUID -ne 0 ]] && echo "needs root"
}

needs_program() {
    ! command -v "$1" >/dev/null && echo "needs $1 (Debian package $2): tests/lanes/setup"
}

needs_x86() {
    [[ $(uname -m) != x86_64 ]] && echo "its kernel is for x86_64 only, and this is $(uname -m)"
}

needs_v1() {
    local controller
    for controller in memory pids; do
        if ! findmnt --noheadings --types cgroup --options "$controller" >/dev/null; then
            echo "no v1 hierarchy of $controller is mounted"
            return
        fi
    done
    return 1
}

needs_kernel() {
    [[ ! -e $cache/$(kernel_of "$1")/ready ]] && echo "not set up: tests/lanes/setup $1"
}

needs_environment() {
    [[ ! -e $cache/$DEBIAN_ROOT/ready || ! -e $cache/$DEBIAN_ROOT/tree$(environment)/ready ]] &&
        echo "not set up for this checkout: tests/lanes/setup v2-user"
}

# The kernel of a lane. Debian's testing moves, so the lanes of its user-mode Linux fall back to that of Debian 12.
kernel_of() {
    local kernel=${KERNEL[$1]}
    if [[ $kernel == "${KERNEL[v2]}" && ! -e $cache/$kernel/ready && -e $cache/${KERNEL[uml61]}/ready ]]; then
        kernel=${KERNEL[uml61]}
    fi
    echo "$kernel"
}

# Where the virtual environment of this checkout lies within the Debian root. It is another one when the checkout is, or
# when the part of its pyproject.toml changes that installing depends on.
environment() {
    local digest
    digest=$({ echo "$checkout" && sed '/^\[tool[.]/,$d' "$checkout/pyproject.toml"; } | sha256sum)
    echo "/opt/environments/${digest:0:16}"
}
