# Usage: become_user.sh UID WORK NEEDED...          in a mount namespace of its own, see run_host_user
# Runs the command of the lane as UID, for whom each of the NEEDED directories is there at its path, whatever is above it.
#
# A checkout or a Python below /root is closed to ordinary users. Opening /root would change the host, so an empty directory
# is mounted over the topmost directory that is closed, and in it what is needed.
set -euo pipefail

uid=$1
work=$2
needed=("${@:3}")

main() {
    mount --bind "$work/passwd" /etc/passwd
    mount --bind "$work/group" /etc/group
    set_aside
    local path closed
    for path in "${needed[@]}"; do
        closed=$(topmost_closed "$path")
        [[ -z $closed ]] || mount -t tmpfs -o mode=755 tmpfs "$closed"
    done
    bring_back
    exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all \
        env --ignore-environment PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
        HOME="$work/home" TMPDIR="$work/tmp" USER=lane LOGNAME=lane bash "$work/control/command"
}

set_aside() {
    local number
    for number in "${!needed[@]}"; do
        mkdir -p "$work/needed/$number"
        mount --bind "${needed[number]}" "$work/needed/$number"
    done
}

bring_back() {
    local number
    for number in "${!needed[@]}"; do
        mkdir -p "${needed[number]}"
        mount --bind "$work/needed/$number" "${needed[number]}"
        umount "$work/needed/$number"
    done
}

# Prints the first directory on the way down to PATH that the user cannot enter, or nothing.
topmost_closed() {
    local path=$1 each=
    while [[ $each != "$path" ]]; do
        each=$each/$(cut -d / -f 1 <<<"${path#"$each"/}")
        setpriv --reuid "$uid" --regid "$uid" --clear-groups test -x "$each" || { echo "$each" && return; }
    done
}

main
