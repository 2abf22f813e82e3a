# Fetches Debian packages without installing them, with the host's apt and its keys but none of its lists or state.
# Sourced by setup. Works on any host with apt: the mirror is that of the host where it serves Debian.
# shellcheck shell=bash

readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Usage: unpack_with_dependencies SUITE PACKAGE DIRECTORY
# The libraries come along, since a program of a newer Debian does not run with the libraries of an older one.
unpack_with_dependencies() {
    local suite=$1 package=$2 directory=$3
    private_apt "$suite" "$directory.apt" apt-get install --download-only --yes "$package"
    unpack_fetched "$directory"
}

# Usage: unpack_kernel SUITE DIRECTORY
# The image alone: what it depends on serves the machine that it would be installed on.
unpack_kernel() {
    local suite=$1 directory=$2 image
    image=$(private_apt "$suite" "$directory.apt" apt-cache depends linux-image-amd64 |
        awk '/Depends: linux-image-/ { print $2; exit }')
    (cd "$directory.apt/archives" && private_apt "$suite" "$directory.apt" apt-get download "$image")
    unpack_fetched "$directory"
}

# Usage: private_apt SUITE DIRECTORY COMMAND...
# Runs an apt command on one suite, with all of its state in DIRECTORY and no package counted as installed.
private_apt() {
    local suite=$1 state=$2 command=("${@:3}")
    local options=(
        -qq
        -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State="$state" -o Dir::State::Status="$state/status"
        -o Dir::Cache="$state" -o Dir::Cache::Archives="$state/archives"
        -o APT::Sandbox::User=root -o APT::Install-Recommends=false
        -o Acquire::Languages=none
        # A mirror of testing that lags behind has a Release file that expired; its signature is checked all the same.
        -o Acquire::Check-Valid-Until=false
    )
    if [[ ! -e $state/sources.list ]]; then
        mkdir -p "$state"/{lists,archives}/partial
        : >"$state/status"
        echo "deb [signed-by=$KEYRING] $(debian_mirror) $suite main" >"$state/sources.list"
        apt-get "${options[@]}" update
    fi
    "${command[0]}" "${options[@]}" "${command[@]:1}"
}

debian_mirror() {
    local mirror
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' | awk '$1 == "Debian" && /\/debian\/?$/ { print $2; exit }')
    echo "${mirror:-http://deb.debian.org/debian}"
}

# Usage: unpack_fetched DIRECTORY
unpack_fetched() {
    local directory=$1 package
    mkdir -p "$directory"
    for package in "$directory.apt/archives"/*.deb; do
        dpkg-deb --extract "$package" "$directory"
    done
    rm -r "$directory.apt"
}
