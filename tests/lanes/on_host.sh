# Starts a command on this host itself, as it is or made poorer in a mount namespace of its own. Sourced by run.
# Each function runs "$work/control/command"; nothing that it changes is seen by another process.
# shellcheck shell=bash

run_host() {
    within_timeout bash "$work/control/command"
}

# Like many old clusters: the controllers of v1, and no unified tree for membership, cgroup.kill or CLONE_INTO_CGROUP.
run_v1() {
    # shellcheck disable=SC2016 # expanded by the shell that runs it
    within_timeout unshare --mount --propagation private bash -euc '
        findmnt --noheadings --output TARGET --types cgroup2 | xargs --no-run-if-empty umount
        exec bash "$1"
    ' bash "$work/control/command"
}

# A uid that nobody has, with an entry in a passwd file of its own. It owns TMPDIR and its home, and no process of it is left.
run_host_user() {
    if [[ $EUID -ne 0 ]]; then
        run_host
        return
    fi
    # Not one of a range that systemd, Debian or container runtimes hand out (uids-gids.txt of systemd).
    local uid=$((30000 + $$ % 10000)) status=0
    mkdir -p "$work/home" "$work/tmp"
    chmod 711 "$work"
    chown "$uid:$uid" "$work/home" "$work/tmp"
    cp /etc/passwd /etc/group "$work/"
    echo "lane:x:$uid:$uid::$work/home:/bin/bash" >>"$work/passwd"
    echo "lane:x:$uid:" >>"$work/group"
    within_timeout unshare --mount --propagation private bash -eu "$here/become_user.sh" "$uid" "$work" \
        "$checkout" "$(interpreter_prefix)" || status=$?
    # Signals every process that this uid may signal, which are its own (kill(2)).
    setpriv --reuid "$uid" --regid "$uid" --clear-groups bash -c 'kill -KILL -1' 2>/dev/null || true
    return "$status"
}

# Usage: run_box FILTER
# FILTER is "none" or "docker", see enter_box.sh.
run_box() {
    within_timeout unshare --mount --pid --ipc --uts --net --fork --kill-child --propagation private \
        bash -eu "$here/enter_box.sh" "$1" "$checkout/.venv/bin/python" bash "$work/control/command"
}

# The directory that holds the Python which the virtual environment was made with.
interpreter_prefix() {
    "$checkout/.venv/bin/python" -c 'import sys; print(sys.base_prefix)'
}
