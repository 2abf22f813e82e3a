# Usage: enter_box.sh none|docker PYTHON COMMAND...     as pid 1 of new namespaces (all but user and cgroup), see run_box
# Makes them look like a container of Docker or a pod of Kubernetes, and runs COMMAND in it as root.
#
# Kubernetes runs pods without a seccomp filter unless told otherwise, Docker with one. Both give root 14 capabilities.
set -euo pipefail

filter=$1
python=$2
command=("${@:3}")

# As in the Open Container Initiative's defaults (moby: oci/defaults.go, oci/caps/defaults.go).
readonly MASKED=(acpi asound interrupts kcore keys latency_stats timer_list timer_stats sched_debug scsi)
readonly READ_ONLY=(bus fs irq sys sysrq-trigger)
readonly CAPABILITIES=(
    chown dac_override fsetid fowner mknod net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot kill audit_write
)

main() {
    mount -t proc proc /proc
    mask_proc
    make_sys_read_only
    ! command -v ip >/dev/null || ip link set lo up
    hostname box
    local bounding=-all each
    for each in "${CAPABILITIES[@]}"; do
        bounding+=,+$each
    done
    # The filter comes first: without no_new_privs it takes CAP_SYS_ADMIN to load one (seccomp(2)).
    # pid 1 stays this shell, which reaps orphans, as the init of a container does.
    "${filtered[@]}" setpriv --bounding-set "$bounding" --inh-caps -all "${command[@]}"
}

mask_proc() {
    local each
    for each in "${READ_ONLY[@]}"; do
        [[ -e /proc/$each ]] || continue
        mount --bind "/proc/$each" "/proc/$each"
        mount -o remount,bind,ro,nosuid,nodev,noexec "/proc/$each"
    done
    for each in "${MASKED[@]}"; do
        if [[ -d /proc/$each ]]; then
            mount -t tmpfs -o ro,size=0 tmpfs "/proc/$each"
        elif [[ -e /proc/$each ]]; then
            mount --bind /dev/null "/proc/$each"
        fi
    done
}

# With the control groups, which are mounted there.
make_sys_read_only() {
    local each
    findmnt --noheadings --list --output TARGET --submounts /sys | while read -r each; do
        mount -o remount,bind,ro "$each"
    done
}

filtered=()
if [[ $filter == docker ]]; then
    filtered=("$python" "$(dirname "${BASH_SOURCE[0]}")/box_filter.py")
fi
main
