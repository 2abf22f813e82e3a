"""Debian by mmdebstrap: a real one that is small, and on made-up hosts all that can go wrong with it."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from minisandbox import Supervisor
from minisandbox.errors import HostError, RootfsError, StateError, UsageError
from minisandbox.images import StateDir, build_rootfs, debian, list_rootfs
from minisandbox.images.recipe import load_recipe
from minisandbox.images.rootfs import KINDS
from tests.archives import directory, file, pack
from tests.crash import start_child

pytestmark = pytest.mark.requires_root

HAS_MMDEBSTRAP = Path("/", debian.PROGRAM).is_file()
HAS_WAY_OUT = "00000000" in (line.split()[1] for line in Path("/proc/net/route").read_text().splitlines())
"""Whether there is a default route (proc_pid_net(5))."""

PAUSE = "sleep 86399"
DEADLINE_MS = 10_000


def recipe(place: Path, **keys: str) -> Path:
    """Write a recipe."""
    lines = ["format = 1", 'kind = "debian"', *(f"{key} = {value}" for key, value in keys.items())]
    (place / "mine.toml").write_text("\n".join(lines) + "\n")
    return place / "mine.toml"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A made-up host with a program in place of mmdebstrap, which `script` writes."""
    root = tmp_path / "made-up"
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    (root / "tree.tar").write_bytes(
        pack(
            directory("etc", 0o750),
            file("etc/hostname", b"the host's"),
            file("etc/resolv.conf", b"nameserver 10.0.0.1"),
            file("etc/apt/apt.conf.d/99mmdebstrap", b"the host's proxy"),
            file("etc/apt/sources.list", b"the host's mirror"),
            file("etc/apt/sources.list.d/x.list", b"the host's mirror"),
            file("etc/debian_version", b"12"),
        )
    )
    return root


def script(host: Path, *lines: str) -> None:
    """Write what stands for mmdebstrap on a made-up host."""
    program = host / debian.PROGRAM
    program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    program.chmod(0o755)


def assert_nothing_left(state: StateDir) -> None:
    """Neither a layer nor part of one, nor a rootfs."""
    assert [] == [*os.listdir(state.layers), *os.listdir(state.path / "tmp"), *list_rootfs(state)]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MMDEBSTRAP, reason="this host has no mmdebstrap")
@pytest.mark.skipif(not HAS_WAY_OUT, reason="this host has no route to a mirror")
async def test_debian_packages_run_in_a_sandbox(supervisor: Supervisor, tmp_path: Path) -> None:
    """Built from the host's mirror, with no word of where that is, and the same when it is built anew."""
    file = recipe(tmp_path, variant='"extract"', packages='["base-files", "busybox-static"]')
    rootfs = build_rootfs(supervisor.state, file)
    (layer,) = rootfs.layers
    async with supervisor.open_sandbox(rootfs=rootfs) as sandbox:
        result = await sandbox.run(["/bin/busybox", "cat", "/etc/debian_version", "/etc/hostname"])
    words = (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
    mirrors = {word.encode() for path in words if path.is_file() for word in path.read_text().split() if "://" in word}
    etc = [path.read_bytes() for path in (layer.path / "etc").rglob("*") if path.is_file() and not path.is_symlink()]

    version, hostname = result.stdout.decode().split()
    assert (True, "sandbox") == (bool(version), hostname)
    assert [] == [content for content in etc if any(mirror in content for mirror in mirrors)]
    assert rootfs.digest == build_rootfs(supervisor.state, file, rebuild=True).digest


def test_debian_recipe_of_the_package_names_no_registry() -> None:
    """Where packages come from is the host's affair."""
    loaded = load_recipe("debian", KINDS)

    assert isinstance(loaded.recipe, debian.DebianRecipe)
    assert "://" not in loaded.file.read_text()
    assert loaded.recipe.packages


def test_missing_mmdebstrap_is_an_error_that_names_the_package(state: StateDir, host: Path, tmp_path: Path) -> None:
    """What to install is in the message."""
    with pytest.raises(HostError, match=r"has no mmdebstrap .*apt-get install mmdebstrap"):
        build_rootfs(state, recipe(tmp_path), host_root=host)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"packages": '["a,b"]'}, "'a,b' is no name of a Debian package"),
        ({"packages": '["--hook=x"]'}, "is no name of a Debian package"),
        ({"packages": '["a b"]'}, "is no name of a Debian package"),
        ({"packages": '["A"]'}, "is no name of a Debian package"),
        ({"suite": '"../x"'}, "'../x' is no suite"),
        ({"suite": '"--help"'}, "'--help' is no suite"),
    ],
)
def test_names_that_mean_more_to_mmdebstrap_are_refused(
    state: StateDir, host: Path, tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    """They would be options, or several packages."""
    script(host, "exit 0")

    with pytest.raises(UsageError, match=message):
        build_rootfs(state, recipe(tmp_path, **keys), host_root=host)


def test_wrong_variant_is_an_error_of_the_recipe(state: StateDir, tmp_path: Path) -> None:
    """With its line."""
    with pytest.raises(RootfsError, match=r"mine\.toml:3: variant: "):
        build_rootfs(state, recipe(tmp_path, variant='"everything"'))


def test_suite_is_that_of_the_host_unless_given(state: StateDir, host: Path, tmp_path: Path) -> None:
    """A host without one must be told."""
    script(host, f"echo E: asked for $* >&2; cat {host}/tree.tar; exit 1")
    with pytest.raises(HostError, match=r"asked for .* bookworm -"):
        build_rootfs(state, recipe(tmp_path), host_root=host)
    with pytest.raises(HostError, match=r"asked for .*--include=git,make trixie -"):
        build_rootfs(state, recipe(tmp_path, suite='"trixie"', packages='["git", "make"]'), host_root=host)

    (host / "etc/os-release").unlink()
    with pytest.raises(UsageError, match='is no suite; set suite in the recipe, such as suite = "bookworm"'):
        build_rootfs(state, recipe(tmp_path), host_root=host)


def test_what_is_the_host_s_is_left_out(state: StateDir, host: Path, tmp_path: Path) -> None:
    """Its mirrors, proxies, name and name servers; directories keep what the archive says of them."""
    script(host, f"cat {host}/tree.tar")
    (layer,) = build_rootfs(state, recipe(tmp_path), host_root=host).layers
    etc = layer.path / "etc"

    assert ["debian_version", "hostname", "hosts", "resolv.conf"] == sorted(os.listdir(etc))
    assert (b"sandbox\n", b"") == ((etc / "hostname").read_bytes(), (etc / "resolv.conf").read_bytes())
    assert 0o40750 == etc.stat().st_mode


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (["echo E: unable to fetch >&2", "exit 1"], HostError, "mmdebstrap failed with 1: E: unable to fetch"),
        (["cat TREE", "echo E: too late >&2", "exit 3"], HostError, "mmdebstrap failed with 3: E: too late"),
        (["head -c 3000 TREE", "exit 25"], HostError, "mmdebstrap failed with 25"),
        (["head -c 3000 TREE"], RootfsError, "mmdebstrap: it ends too early"),
        (["echo junk; yes"], RootfsError, "mmdebstrap: this is no tar archive"),
        (["sh -c 'kill -9 $$'; exit $?"], HostError, "mmdebstrap failed with 137"),
    ],
)
def test_failure_of_mmdebstrap_is_told_as_it_says_it(
    state: StateDir, host: Path, tmp_path: Path, lines: list[str], error: type[Exception], message: str
) -> None:
    """And nothing is left; one that goes on writing is not waited for."""
    script(host, *(line.replace("TREE", f"{host}/tree.tar") for line in lines))

    with pytest.raises(error, match=message):
        build_rootfs(state, recipe(tmp_path), host_root=host)
    assert_nothing_left(state)


def _pausing() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if " ".join(process.cmdline()) == PAUSE:
                yield process
        except psutil.NoSuchProcess:
            continue


@pytest.mark.parametrize("defended", [True, False])
def test_nothing_that_mmdebstrap_mounts_or_starts_is_left(
    state: StateDir, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Its namespaces end with it. Without them a mount would keep the state directory from being opened."""
    script(host, f'mount -t tmpfs left "$TMPDIR"; {PAUSE} >/dev/null 2>&1 &', f"cat {host}/tree.tar")
    if not defended:
        monkeypatch.setattr(debian, "_CONTAINED", "env")
    try:
        build_rootfs(state, recipe(tmp_path), host_root=host)
        failed = False
    except StateError:
        failed = True
    left = [process.pid for process in _pausing()]
    for process in _pausing():
        process.kill()
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]
    for mount in mounts:
        subprocess.run(["umount", mount], check=True)

    assert (defended, defended) == (not mounts, not left)
    assert failed is not defended


def test_mmdebstrap_ends_with_the_process_that_wants_it(state: StateDir, host: Path, tmp_path: Path) -> None:
    """However that ends; the next open of the state directory removes what was unpacked."""
    script(host, "exec " + PAUSE)
    code = (
        "class Shout:\n"
        "    def __call__(self, progress): print(progress.step, flush=True)\n"
        "state, recipe, host = map(Path, sys.argv[1:])\n"
        "build_rootfs(StateDir.open(state), recipe, host_root=host, report=Shout())"
    )
    with start_child(code, str(state.path), str(recipe(tmp_path)), str(host)) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        while not (found := list(_pausing())):
            assert child.poll() is None  # its program is about to start
        pidfd = os.pidfd_open(found[0].pid)
        child.kill()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = poll.poll(DEADLINE_MS)
    os.close(pidfd)
    StateDir.open(state.path)

    assert "installing Debian bookworm" in said
    assert ended
    assert_nothing_left(state)
