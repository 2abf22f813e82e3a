"""Layers as a sandbox leaves them, and snapshots made of them, for the tests of the store."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minisandbox.images import Rootfs, SnapshotStore, StoredSnapshot, build_rootfs

FRACTION_NS = 1_600_000_000 * 10**9 + 123_456_789


@contextmanager
def opened(*places: Path) -> Iterator[list[int]]:
    """Open directories for the block."""
    with ExitStack() as stack:
        fds = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in places]
        for fd in fds:
            stack.callback(os.close, fd)
        yield fds


def make_layer(top: Path) -> Path:
    """Make a layer with one of everything that a sandbox can leave on the rootfs `host`."""
    (top / "etc").mkdir(parents=True)
    top.chmod(0o755)
    for mark in ("origin", "impure"):
        os.setxattr(top / "etc", f"trusted.overlay.{mark}", b"")
    (top / "etc/new").write_text("new")
    os.mknod(top / "etc/passwd", stat.S_IFCHR, os.makedev(0, 0))
    (top / "root").mkdir(0o700)
    os.setxattr(top / "root", "trusted.overlay.opaque", b"y")
    (top / "work/deep").mkdir(parents=True)
    (top / "work/suid").write_bytes(b"#!")
    os.chown(top / "work/suid", 1000, 65534)
    (top / "work/suid").chmod(0o6755)
    os.link(top / "work/suid", top / "work/deep/same")
    os.setxattr(top / "work/suid", "user.a=b%3D", b"\0=\n\xff")
    (top / "work/link").symlink_to("deep/\udcff")
    os.mkfifo(top / "work/fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "work/sock"))
    with open(top / "work/sparse", "wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(1 << 40)
    (top / "work/\n\udcfe é").write_bytes(os.urandom(100_000))
    for path in (*top.rglob("*"), top):
        os.utime(path, ns=(FRACTION_NS, FRACTION_NS), follow_symlinks=False)
    return top


def make_upper(top: Path) -> Path:
    """Make a layer that lies on the other one, and hides some of it."""
    (top / "work").mkdir(parents=True)
    top.chmod(0o755)
    (top / "work/added").write_text("added")
    os.mknod(top / "work/deep", stat.S_IFCHR, os.makedev(0, 0))
    return top


def save(store: SnapshotStore, name: str, *layers: Path, rootfs: Rootfs | None = None) -> StoredSnapshot:
    """Store a snapshot of layers, top first, on the rootfs `host`."""
    with opened(*layers) as fds:
        return store.save(rootfs or build_rootfs(store.state, "host"), fds, name)


def left_of(store: SnapshotStore) -> set[str]:
    """Return the names of all that is stored but what the rootfs `host` is made of."""
    host = {layer.path.name for layer in build_rootfs(store.state, "host").layers}
    state = store.state
    places: Sequence[Path] = (state.layers, state.snapshots, state.path / "tmp")
    return {name for place in places for name in os.listdir(place) if name.partition(".")[0] not in host}
