"""Building root file systems from this host and from made-up ones, and what of a host must not get in."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from minisandbox.binds import Bind
from minisandbox.errors import HostError, RootfsError, StateError, UsageError
from minisandbox.images import Rootfs, StateDir, build_rootfs, list_rootfs, prefix, store_layer, verify, with_prefix
from minisandbox.images import host as host_kind
from minisandbox.images.busybox import PLACES
from minisandbox.images.skeleton import Directory, tree_digest, write_tree
from tests.crash import crash_at_each_step, start_child

SECRET = b"not for the sandbox"

HAS_BUSYBOX = any(Path("/", place).is_file() for place in PLACES)
needs_busybox = pytest.mark.skipif(not HAS_BUSYBOX, reason="this host has no busybox")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A made-up host whose /bin is not merged into /usr, with secrets all over it."""
    root = tmp_path / "made-up"
    for name in (
        "bin usr/lib usr/bin etc/ssl/certs/private etc/ssl/private etc/alternatives etc/ld.so.conf.d root/.ssh "
        "home/alice var/lib run opt"
    ).split():
        (root / name).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "sbin").symlink_to("/usr/bin")
    (root / "lib64").symlink_to("opt")
    (root / "etc/ssl/certs/private").chmod(0o700)
    for name in (
        "etc/shadow etc/passwd etc/hosts etc/hostname etc/machine-id etc/resolv.conf etc/ssl/private/key.pem "
        "etc/ssl/certs/key.pem etc/ssl/certs/private/key.pem etc/alternatives/README root/.ssh/id home/alice/note "
        "var/lib/db run/token opt/licence bin/tool usr/lib/libx.so"
    ).split():
        (root / name).write_bytes(SECRET)
    (root / "etc/ssl/certs/key.pem").chmod(0o640)
    for name, target in {
        "etc/ssl/certs/root.pem": "/usr/share/ca-certificates/root.pem",
        "etc/ssl/certs/0123.0": "root.pem",
        "etc/ssl/certs/stolen.pem": "../private/key.pem",
        "etc/alternatives/awk": "/usr/bin/mawk",
        "etc/alternatives/sh": "/bin/dash",
        "etc/alternatives/tool": "/opt/tool",
        "etc/alternatives/db": "../../usr/../var/lib/db",
    }.items():
        (root / name).symlink_to(target)
    (root / "etc/ld.so.cache").write_bytes(b"cache")
    (root / "etc/ld.so.conf.d/here.conf").write_bytes(b"/usr/lib/here\n")
    return root


def _layer(rootfs: Rootfs) -> Path:
    (layer,) = rootfs.layers
    return layer.path


def _names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def _run_inside(rootfs: Rootfs, command: str, place: Path) -> str:
    """Run a shell command with a rootfs as its root, in a mount namespace that ends with it. Returns its stdout."""
    place.mkdir()
    (place / "empty").mkdir()
    lower = ":".join([*(str(layer.path) for layer in rootfs.layers), str(place / "empty")])
    mounts = [f"mount -t overlay -o ro,lowerdir={lower} rootfs {place}"]
    mounts += [f"mount --bind {bind.source} {place}{bind.target}" for bind in rootfs.binds]
    script = " && ".join([*mounts, f'exec chroot {place} /bin/sh -c "$1"'])
    ran = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", command],
        env=rootfs.env,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return ran.stdout


@pytest.mark.requires_root
def test_host_rootfs_runs_the_host_s_programs(state: StateDir, tmp_path: Path) -> None:
    """By their names in /bin, through alternatives, with accounts that have names."""
    rootfs = build_rootfs(state, "host")

    said = _run_inside(
        rootfs, "id -un; id -un user; awk 'BEGIN { print 1 + 1 }'; getent hosts localhost", tmp_path / "r"
    )

    assert ["root", "user", "2"] == said.splitlines()[:3]
    assert "localhost" in said.splitlines()[3]


@pytest.mark.requires_root
def test_host_rootfs_has_empty_directories_with_their_modes_and_owners(state: StateDir) -> None:
    """What programs expect to be there is there, and holds nothing."""
    layer = _layer(build_rootfs(state, "host"))
    expected = {
        **dict.fromkeys("usr proc dev run var/log mnt opt srv sys".split(), (0o755, 0)),
        "root": (0o700, 0),
        "home/user": (0o755, 1000),
        "tmp": (0o1777, 0),
        "var/tmp": (0o1777, 0),
    }

    found = {name: (layer / name).stat() for name in expected}

    assert expected == {name: (stat.S_IMODE(s.st_mode), s.st_uid) for name, s in found.items()}
    assert [] == [name for name in expected if _names(layer / name)]
    assert ["user"] == _names(layer / "home")


def test_host_rootfs_has_a_clean_etc(state: StateDir) -> None:
    """No more than this of the host's, and no shadow."""
    etc = _layer(build_rootfs(state, "host")) / "etc"
    generated = "group hostname hosts localtime machine-id nsswitch.conf os-release passwd profile resolv.conf".split()
    taken = {"alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "pki", "ssl"}

    assert set(generated) <= set(_names(etc)) <= set(generated) | taken
    assert ["root", "daemon", "user", "nobody"] == [
        line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()
    ]
    assert b"" == (etc / "resolv.conf").read_bytes()
    assert "0" * 32 == (etc / "machine-id").read_text().strip()


def test_host_that_is_not_merged_is_bound_directory_by_directory(state: StateDir, host: Path) -> None:
    """Links into /usr are links, other places of programs are mount points."""
    rootfs = build_rootfs(state, "host", host_root=host)
    layer = _layer(rootfs)

    assert {Bind(source=host / a, target=b) for a, b in [("usr", "/usr"), ("bin", "/bin"), ("opt", "/lib64")]} == set(
        rootfs.binds
    )
    assert ("usr/lib", "/usr/bin") == (os.readlink(layer / "lib"), os.readlink(layer / "sbin"))
    assert [] == [*_names(layer / "bin"), *_names(layer / "lib64")]


def test_host_s_certificates_and_alternatives_are_taken_as_links(state: StateDir, host: Path) -> None:
    """Those that lead to what the sandbox sees, and no others."""
    etc = _layer(build_rootfs(state, "host", host_root=host)) / "etc"

    assert ["0123.0", "root.pem"] == _names(etc / "ssl/certs")
    assert ["awk", "sh"] == _names(etc / "alternatives")
    assert "/usr/bin/mawk" == os.readlink(etc / "alternatives/awk")
    assert b"/usr/lib/here\n" == (etc / "ld.so.conf.d/here.conf").read_bytes()


def _leaks(rootfs: Rootfs) -> list[str]:
    files = [path for path in _layer(rootfs).rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.name for path in files if SECRET in path.read_bytes()]


def test_no_secret_of_the_host_is_in_its_rootfs(state: StateDir, host: Path) -> None:
    """Not one of the files that this host is full of."""
    assert [] == _leaks(build_rootfs(state, "host", host_root=host))


@pytest.mark.parametrize("lowered", ["everything is taken", "the key is readable by all"])
def test_secrets_would_be_found_without_the_defences(
    state: StateDir, host: Path, monkeypatch: pytest.MonkeyPatch, lowered: str
) -> None:
    """The list of what is taken, and that it must be readable by all, are what keeps them out."""
    if lowered == "everything is taken":
        monkeypatch.setattr(host_kind, "TAKEN", ("etc", "root", "home"))
    else:
        (host / "etc/ssl/certs/key.pem").chmod(0o644)

    assert _leaks(build_rootfs(state, "host", host_root=host))


def test_host_without_usr_is_refused(state: StateDir, tmp_path: Path) -> None:
    """It is the host that lacks something, and nothing is stored."""
    with pytest.raises(HostError, match="usr"):
        build_rootfs(state, "host", host_root=tmp_path)

    assert [] == list_rootfs(state)


def test_building_again_builds_nothing(state: StateDir) -> None:
    """The stored one is returned, with the same digest, and no file is written."""
    first = build_rootfs(state, "host")
    written = [(path, path.lstat().st_ino) for path in sorted(state.path.rglob("*"))]
    again = build_rootfs(StateDir.open(state.path), "host")

    assert (first, first.digest) == (again, again.digest)
    assert written == [(path, path.lstat().st_ino) for path in sorted(state.path.rglob("*"))]
    assert [first] == list_rootfs(state)


def test_digest_of_a_layer_made_of_values_is_that_of_the_layer_written(state: StateDir, host: Path) -> None:
    """So whether it is there already is known without building it."""
    tree, _ = host_kind.describe(host)
    (layer,) = build_rootfs(state, "host", host_root=host).layers

    assert tree_digest(tree) == layer.digest


def test_change_of_the_host_changes_the_rootfs(state: StateDir, host: Path) -> None:
    """New libraries mean a new ld.so.cache, and with the old one programs would not start."""
    before = build_rootfs(state, "host", host_root=host)
    (host / "etc/ld.so.cache").write_bytes(b"new cache")
    after = build_rootfs(state, "host", host_root=host)

    assert before.digest != after.digest
    assert b"new cache" == (_layer(after) / "etc/ld.so.cache").read_bytes()
    assert b"cache" == (_layer(before) / "etc/ld.so.cache").read_bytes()
    assert [after] == list_rootfs(state)


def test_digest_counts_layers_binds_and_environment(state: StateDir, host: Path) -> None:
    """Each of the three, and not the name."""
    rootfs = build_rootfs(state, "host", host_root=host)
    others = {
        Rootfs("host", (*rootfs.layers, *rootfs.layers), rootfs.binds, rootfs.env).digest,
        Rootfs("host", rootfs.layers, rootfs.binds[1:], rootfs.env).digest,
        Rootfs("host", rootfs.layers, rootfs.binds, {**rootfs.env, "A": "b"}).digest,
    }

    assert 3 == len(others - {rootfs.digest})
    assert rootfs.digest == Rootfs("other", rootfs.layers, rootfs.binds, rootfs.env).digest


def test_environment_is_the_base_with_the_recipe_s_on_top(state: StateDir, tmp_path: Path) -> None:
    """A recipe need not repeat PATH."""
    (tmp_path / "mine.toml").write_text('format = 1\nkind = "host"\n[env]\nHOME = "/tmp"\nTOOL = "1"\n')

    env = build_rootfs(state, tmp_path / "mine.toml").env

    assert {"HOME": "/tmp", "TOOL": "1", "LANG": "C.UTF-8"} == {name: env[name] for name in ("HOME", "TOOL", "LANG")}
    assert env["PATH"].startswith("/usr/local/sbin:") and env["PATH"].endswith(":/bin")


def test_damaged_layer_is_mended_by_rebuilding(state: StateDir, host: Path) -> None:
    """The digest tells, and `rebuild` writes it anew."""
    rootfs = build_rootfs(state, "host", host_root=host)
    (_layer(rootfs) / "etc/passwd").write_bytes(b"")

    with pytest.raises(RootfsError, match="damaged"):
        verify(rootfs.layers[0])
    rebuilt = build_rootfs(state, "host", rebuild=True, host_root=host)

    verify(rebuilt.layers[0])
    assert rootfs == rebuilt


def test_layer_that_is_gone_is_built_again(state: StateDir, host: Path) -> None:
    """A manifest alone is not a rootfs."""
    rootfs = build_rootfs(state, "host", host_root=host)
    shutil.rmtree(_layer(rootfs))
    listed = list_rootfs(state)
    rebuilt = build_rootfs(state, "host", host_root=host)

    assert [] == listed
    verify(rebuilt.layers[0])


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [("", "{", StateError), ('"format": 1', '"format": 2', StateError), ("/usr/local/bin", "/tmp", RootfsError)],
)
def test_damaged_manifest_is_noticed_and_mended(
    state: StateDir, host: Path, old: str, new: str, error: type[Exception]
) -> None:
    """It says to build anew, and that helps."""
    rootfs = build_rootfs(state, "host", host_root=host)
    manifest = state.rootfs / "host.json"
    manifest.write_text(manifest.read_text().replace(old, new, 1))

    with pytest.raises(error, match="build this rootfs anew"):
        build_rootfs(state, "host", host_root=host)
    assert rootfs == build_rootfs(state, "host", rebuild=True, host_root=host)


def test_callers_at_once_get_the_same_rootfs(state: StateDir) -> None:
    """Threads and processes: one builds, the others wait for it and take what it made."""
    code = "input(); print(build_rootfs(StateDir.open(Path(sys.argv[1])), 'host').digest)"
    children = [start_child(code, str(state.path)) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(child.communicate, "\n") for child in children]
        built = {rootfs.digest for rootfs in pool.map(lambda _: build_rootfs(state, "host"), range(4))}
    built |= {future.result()[0].strip() for future in waiting}

    assert {build_rootfs(state, "host").digest} == built
    assert 2 == len(_names(state.layers))
    assert [] == _names(state.path / "tmp")


@pytest.mark.slow
def test_build_killed_at_any_step_can_be_repeated(state: StateDir, tmp_path: Path) -> None:
    """Whatever was half done is gone after the next open, and the rootfs is whole or not there."""
    recipe = tmp_path / "small.toml"
    recipe.write_text('format = 1\nkind = "host"\n')
    host = tmp_path / "small"
    (host / "usr").mkdir(parents=True)
    code = (
        "state = StateDir.open(Path(sys.argv[2]))\n"
        "build_rootfs(state, Path(sys.argv[3]), rebuild=True, host_root=Path(sys.argv[4]))"
    )
    steps = 0
    moves = frozenset({"os.rename", "os.rmdir"})
    for _ in crash_at_each_step(code, str(state.path), str(recipe), str(host), steps=moves):
        steps += 1
        StateDir.open(state.path)
        for rootfs in list_rootfs(state):
            verify(rootfs.layers[0])
        assert [] == _names(state.path / "tmp")

    assert steps >= 6
    verify(build_rootfs(state, recipe, host_root=host).layers[0])


@pytest.mark.requires_root
@needs_busybox
def test_busybox_rootfs_runs_its_applets(state: StateDir, tmp_path: Path) -> None:
    """The usual places of commands are there, and nothing of the host is bound."""
    rootfs = build_rootfs(state, "busybox")

    said = _run_inside(rootfs, "/usr/bin/env printf '%s\\n' one two | wc -l; id -un user; ls /usr", tmp_path / "r")

    assert () == rootfs.binds
    assert ["2", "user", "bin", "sbin"] == said.split()


def test_missing_busybox_is_an_error_that_names_the_package(state: StateDir, host: Path) -> None:
    """What to install is in the message."""
    with pytest.raises(HostError, match=r"has no busybox.*busybox-static"):
        build_rootfs(state, "busybox", host_root=host)


def test_busybox_that_needs_libraries_is_an_error_that_names_the_package(state: StateDir, host: Path) -> None:
    """It would not run where there is no libc."""
    shutil.copy(os.path.realpath(sys.executable), host / "bin" / "busybox")

    with pytest.raises(HostError, match=r"not a static ELF program.*busybox-static"):
        build_rootfs(state, "busybox", host_root=host)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, bytes(200)])
def test_busybox_that_is_no_program_is_refused(state: StateDir, host: Path, content: bytes) -> None:
    """Whatever the bytes are."""
    (host / "bin" / "busybox").write_bytes(content)

    with pytest.raises(HostError, match="not a static ELF program"):
        build_rootfs(state, "busybox", host_root=host)


@pytest.mark.requires_root
def test_python_of_another_place_runs_at_its_prefix(state: StateDir, tmp_path: Path) -> None:
    """The interpreter of these tests, wherever it is installed."""
    rootfs = with_prefix(state, build_rootfs(state, "host"), Path(sys.base_prefix))
    command = f"{sys.base_prefix}/bin/python3 -c 'import ssl, sqlite3, sys; print(sys.prefix)'; ls -A {Path.home()}"

    said = _run_inside(rootfs, command, tmp_path / "r").splitlines()

    assert sys.base_prefix == said[0]
    assert len(said) <= 2


@pytest.fixture
def bare(state: StateDir, host: Path) -> Rootfs:
    """A rootfs of the made-up host."""
    return build_rootfs(state, "host", host_root=host)


@pytest.mark.requires_root
def test_mount_point_of_a_prefix_has_parents_that_every_user_may_search(state: StateDir, tmp_path: Path) -> None:
    """They keep their owner and the rest of their mode, and hold nothing but the way to the prefix."""
    (tmp_path / "python" / "bin").mkdir(parents=True)
    top, *below = (tmp_path / "python").relative_to("/").parts
    home = store_layer(state, partial(write_tree, {top: Directory(0o1700, 7, 8)}))

    rootfs = with_prefix(state, Rootfs("r", (home,), (), {}), tmp_path / "python")
    layer = rootfs.layers[0].path
    status = (layer / top).stat()
    parents = [layer.joinpath(top, *below[:count]) for count in range(len(below))]

    assert (home,) == rootfs.layers[1:]
    assert (Bind(source=tmp_path / "python", target=str(tmp_path / "python")),) == rootfs.binds
    assert (0o1755, 7, 8) == (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    assert [[name] for name in below] == [_names(parent) for parent in parents]
    assert {0o755} == {stat.S_IMODE(parent.stat().st_mode) for parent in parents[1:]}
    assert [] == _names(layer.joinpath(top, *below))


def test_same_prefix_gives_the_same_rootfs(state: StateDir, bare: Rootfs, tmp_path: Path) -> None:
    """And builds its layer once."""
    (tmp_path / "python").mkdir()
    one = with_prefix(state, bare, tmp_path / "python")
    stored = _names(state.layers)

    assert one == with_prefix(state, bare, tmp_path / "python")
    assert stored == _names(state.layers)
    assert bare.digest != one.digest


def test_prefix_that_is_shown_already_changes_nothing(state: StateDir) -> None:
    """What is below /usr is there."""
    rootfs = build_rootfs(state, "host")

    assert rootfs is with_prefix(state, rootfs, Path("/usr/lib"))


@pytest.mark.parametrize("path", "/ /root /home /etc /proc /usr /var/lib /proc/self /etc/ssl /dev/shm /sys/fs".split())
def test_prefix_that_holds_more_than_a_python_is_refused(state: StateDir, bare: Rootfs, path: str) -> None:
    """The directories that a host keeps its secrets in are never shown whole."""
    if not Path(path).exists():
        pytest.skip(f"this host has no {path}")
    with pytest.raises(UsageError, match=f"the prefix {path} (would show all of|is at) {path}"):
        with_prefix(state, bare, Path(path))


@pytest.mark.parametrize("defended", [True, False])
def test_prefix_that_is_a_link_to_too_much_is_refused(
    state: StateDir, bare: Rootfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """What it is counts, not what it is called. Without the list of what is too much, /root would be shown."""
    (tmp_path / "python").symlink_to("/root")
    if not defended:
        monkeypatch.setattr(prefix, "TOO_MUCH", frozenset())
        assert Path("/root") == with_prefix(state, bare, tmp_path / "python").binds[-1].source
        return

    with pytest.raises(UsageError, match="would show all of /root"):
        with_prefix(state, bare, tmp_path / "python")


def test_prefix_that_is_no_directory_is_refused(state: StateDir, bare: Rootfs, tmp_path: Path) -> None:
    """Relative, missing, a file, a loop of links, or not in its shortest form."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in ("python", tmp_path / "missing", tmp_path / "file", tmp_path / "loop", tmp_path / ".." / "x", "/x\0"):
        with pytest.raises(UsageError, match="prefix"):
            with_prefix(state, bare, Path(path))


def test_prefix_that_holds_the_state_directory_is_refused(state: StateDir, bare: Rootfs) -> None:
    """A sandbox must not see the layers and locks of others."""
    for path in (state.path, state.path.parent, state.layers):
        with pytest.raises(UsageError, match="lie in one another"):
            with_prefix(state, bare, path)


def test_prefix_behind_a_link_of_the_rootfs_is_refused(state: StateDir, tmp_path: Path) -> None:
    """A directory in its place would hide /lib and all libraries with it."""
    real = tmp_path / "real"
    (real / "usr" / "lib").mkdir(parents=True)
    (real / "lib").symlink_to("usr/lib")
    rootfs = build_rootfs(state, "host", host_root=real)

    with pytest.raises(UsageError, match="/lib is no directory in the rootfs host"):
        with_prefix(state, rootfs, Path("/lib/python3"))
