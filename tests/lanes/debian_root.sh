# Builds the root of the lane of an ordinary user: Debian 12 with systemd, whose user "lane" (uid 1000, with subordinate ids)
# lingers, so that his systemd runs from boot on with a delegated control group. Sourced by setup.
# shellcheck shell=bash

# What the tests want to find on a host, beside what the lane itself needs.
readonly ROOT_PACKAGES=(
    systemd systemd-sysv dbus dbus-user-session libpam-systemd uidmap iproute2
    python3 libseccomp2 gcc libc6-dev make busybox-static bubblewrap procps
)

# Units that wait for devices, a network, a terminal or a writable system, or make the boot slower. The tests need none.
readonly MASKED_UNITS=(
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
    systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket
    systemd-journal-flush.service systemd-random-seed.service systemd-update-utmp.service systemd-binfmt.service
    systemd-firstboot.service systemd-sysusers.service systemd-modules-load.service systemd-remount-fs.service
    systemd-networkd.service systemd-resolved.service systemd-timesyncd.service modprobe@.service getty.target
    sys-kernel-debug.mount sys-kernel-tracing.mount dev-hugepages.mount dev-mqueue.mount
)

# Usage: build_debian_root DIRECTORY
build_debian_root() {
    local tree=$1/tree units=$1/tree/etc/systemd/system each
    mmdebstrap --quiet --variant=apt --include="${ROOT_PACKAGES[*]}" bookworm "$tree" "$(debian_mirror)"
    # Its home is on the guest's ext4 disk, see guest/init.
    chroot "$tree" useradd --uid 1000 --no-create-home --home-dir /scratch/home --shell /bin/bash lane
    mkdir -p "$units/user@.service.d" "$tree/var/lib/systemd/linger"
    touch "$tree/var/lib/systemd/linger/lane"
    printf '[Service]\nDelegate=cpu cpuset io memory pids\n' >"$units/user@.service.d/delegate.conf"
    install -m 644 "$here"/guest/lane.{service,target} "$units/"
    ln -sf lane.target "$units/default.target"
    for each in "${MASKED_UNITS[@]}"; do
        ln -sf /dev/null "$units/$each"
    done
    echo lane >"$tree/etc/hostname"
    : >"$tree/etc/fstab"
    echo 0123456789abcdef0123456789abcdef >"$tree/etc/machine-id"
    rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
}
