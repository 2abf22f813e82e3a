# Starts a command in QEMU without KVM: any kernel, all controllers, PSI and Landlock, but 20 times slower than the host.
# Sourced by run and setup.
# shellcheck shell=bash

# Usage: boot_qemu KERNEL ARGUMENT...
# What the command prints goes to stdout.
boot_qemu() {
    local kernel=$cache/$1 arguments options
    arguments=(
        console=ttyS0 loglevel=4 panic=-1
        # Less to emulate, and no waiting for a clock or for entropy.
        norandmaps mitigations=off tsc=reliable random.trust_cpu=on
        cgroup_no_v1=all
        lane.share=9p lane.root=root lane.control=control lane.scratch=vda
        "${@:2}"
    )
    options=(
        # One thread: several make the guest panic when it patches its own code, as it does when cpu.max is written.
        -machine q35 -accel tcg,thread=single -cpu max -smp 2 -m "$MEMORY_MIB"
        -nodefaults -no-user-config -display none -no-reboot
        -kernel "$kernel/vmlinux" -initrd "$work/initramfs" -append "${arguments[*]}"
        -serial "file:$work/console"
        -device virtio-serial-pci -chardev stdio,id=output,signal=off -device virtconsole,chardev=output
        -device virtio-rng-pci
        -drive "file=$work/scratch,format=raw,if=none,id=scratch,cache=unsafe" -device virtio-blk-pci,drive=scratch
        -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap
        -device virtio-9p-pci,fsdev=root,mount_tag=root
        -fsdev "local,id=control,path=$work/control,security_model=none"
        -device virtio-9p-pci,fsdev=control,mount_tag=control
    )
    initramfs_of "$kernel/initramfs" >"$work/initramfs"
    within_timeout qemu-system-x86_64 "${options[@]}"
}

# Usage: build_qemu DIRECTORY SUITE
build_qemu() {
    local directory=$1 suite=$2 tree=$1/tree modules
    unpack_kernel "$suite" "$tree"
    modules=$(find "$tree" -path '*/lib/modules/*' -prune)
    build_initramfs "$modules" "$directory/initramfs" \
        virtio_pci virtio_blk virtio_console virtio_rng 9pnet_virtio 9p ext4 overlay dummy crc32c_generic crc32c_intel
    python3 "$here/extract_vmlinux.py" "$tree/boot/vmlinuz-$(basename "$modules")" "$directory/vmlinux"
    rm -r "$tree"
}
