# Builds the part of an initramfs that belongs to a kernel: busybox and modules. A guest is started with it and, behind
# it, an archive of one file: guest/init (see initramfs_of), so that a change there needs no new set-up.
# Sourced by setup, run, on-uml.sh and on-qemu.sh.
# shellcheck shell=bash

# Usage: build_initramfs MODULES-OF-ONE-VERSION ARCHIVE NAME...
# A module that the kernel has built in is left out, and so is one that its version does not have.
build_initramfs() {
    local modules=$1 archive=$2 tree name
    tree=$(mktemp -d)
    mkdir -p "$tree"/{bin,dev,modules}
    cp /bin/busybox "$tree/bin/"
    ln -s busybox "$tree/bin/sh"
    find "$modules" -name '*.ko.xz' -exec xz --decompress {} +
    # Only the packages of user-mode Linux come with the list of what needs what.
    [[ -e $modules/modules.dep ]] || depmod --basedir "$(realpath "$modules/../../..")" "$(basename "$modules")"
    for name in "${@:3}"; do
        load_order "$modules" "$name"
    done | awk '!seen[$0]++' >"$tree/modules/order"
    while read -r name; do
        cp "$modules/$name" "$tree/modules/"
    done <"$tree/modules/order"
    sed -i 's|.*/||' "$tree/modules/order"
    pack "$tree" >"$archive"
    rm -r "$tree"
}

# Prints a module with what it needs, in the order in which they are loaded (modules.dep(5) has it the other way round).
load_order() {
    local modules=$1 name=$2
    awk -F '[: ]+' -v pattern="/${name//_/[-_]}[.]ko$" \
        '$1 ~ pattern { for (i = NF; i > 0; i--) if ($i != "") print $i; exit }' "$modules/modules.dep"
}

# Usage: initramfs_of ARCHIVE
# Prints the archive of a kernel with our init behind it: the kernel unpacks one after the other (initramfs buffer format).
initramfs_of() {
    local tree
    tree=$(mktemp -d)
    install -m 755 "$(dirname "${BASH_SOURCE[0]}")/guest/init" "$tree/init"
    cat "$1"
    pack "$tree"
    rm -r "$tree"
}

pack() {
    (cd "$1" && find . | busybox cpio -o -H newc 2>/dev/null)
}
