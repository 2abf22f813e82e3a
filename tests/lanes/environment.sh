# Builds the virtual environment of a checkout within the Debian root, for that root's own Python and without a network
# there: pip of the checkout downloads the wheels, and the root's Python installs them. Sourced by setup.
# shellcheck shell=bash

# Python and C library of Debian 12 (pip's names, PEP 600).
readonly WHEELS_FOR=(
    --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none
    --platform manylinux_2_36_x86_64 --platform manylinux_2_35_x86_64 --platform manylinux_2_34_x86_64
    --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64
    --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64
    --platform manylinux2010_x86_64 --platform manylinux_2_12_x86_64 --platform manylinux1_x86_64
    --platform manylinux_2_5_x86_64 --platform linux_x86_64
)

# Usage: build_environment ROOT
# The environment of a checkout is replaced when its pyproject.toml changes; one that nobody used for a week goes.
build_environment() {
    local root=$1 inner
    inner=$(environment)
    mkdir -p "$root/opt/environments"
    if [[ -e $root$inner/ready ]]; then
        touch "$root$inner"
        return
    fi
    echo "setup: building the Python environment of $checkout"
    find "$root/opt/environments" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -r {} +
    rm -rf "${root:?}$inner"
    chroot "$root" python3 -m venv --without-pip "$inner"
    download_wheels "$root$inner/wheels"
    install_wheels "$root" "$inner"
    rm -r "$root$inner/wheels"
    touch "$root$inner/ready"
}

download_wheels() {
    local wheels=$1 python=$checkout/.venv/bin/python requirements
    mapfile -t requirements < <("$python" -c "$LIST_REQUIREMENTS" "$checkout/pyproject.toml")
    mkdir "$wheels"
    "$python" -m pip download -qq --disable-pip-version-check --dest "$wheels" "${WHEELS_FOR[@]}" \
        pip editables "${requirements[@]}"
    # The package itself, as `pip install --editable` makes it (PEP 660): it points to the checkout, which the guest has at
    # the same path.
    (cd "$checkout" && PYTHONPATH=$(echo "$wheels"/editables-*.whl) "$python" -c "$BUILD_EDITABLE" "$wheels")
}

# pip runs from its own wheel, so that nothing of it comes from the host or from Debian.
install_wheels() {
    local root=$1 inner=$2 wheels
    mapfile -t wheels < <(cd "$root$inner/wheels" && printf "$inner/wheels/%s\n" *.whl)
    chroot "$root" env --ignore-environment PATH=/usr/bin:/bin PYTHONPATH="$(printf '%s\n' "${wheels[@]}" | grep /pip-)" \
        "$inner/bin/python" -m pip install -qq --no-index --no-deps --no-cache-dir --root-user-action ignore "${wheels[@]}"
}

# All that the tests need, without the package's references to its own extras.
readonly LIST_REQUIREMENTS='
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
extras = project["optional-dependencies"].values()
for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
    if not line.startswith(project["name"] + "["):
        sys.stdout.write(line + "\n")
'

readonly BUILD_EDITABLE='
import sys, hatchling.build
hatchling.build.build_editable(sys.argv[1])
'
