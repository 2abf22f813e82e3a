"""Writes the archives and images that the tests of root file systems read: tar, OCI image layouts, `docker save`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisandbox.images.oci_image import host_architecture

Compress = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Item:
    """One member of an archive."""

    name: str
    type: bytes = tarfile.REGTYPE
    content: bytes = b""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_600_000_000
    pax: dict[str, str] = field(default_factory=dict)

    def header(self) -> tarfile.TarInfo:
        """Return it as tarfile has it."""
        info = tarfile.TarInfo(self.name)
        info.type, info.size, info.linkname = self.type, len(self.content), self.target
        info.mode, info.uid, info.gid, info.mtime = self.mode, self.uid, self.gid, self.mtime
        info.pax_headers = self.pax
        return info


def file(name: str, content: bytes = b"", **attributes: Any) -> Item:
    """A regular file."""
    return Item(name, content=content, **attributes)


def directory(name: str, mode: int = 0o755, **attributes: Any) -> Item:
    """A directory."""
    return Item(name, tarfile.DIRTYPE, mode=mode, **attributes)


def symlink(name: str, target: str) -> Item:
    """A symbolic link."""
    return Item(name, tarfile.SYMTYPE, target=target, mode=0o777)


def hard_link(name: str, target: str) -> Item:
    """A hard link."""
    return Item(name, tarfile.LNKTYPE, target=target)


def pack(*items: Item, format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive of the items, in their order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for item in items:
            archive.addfile(item.header(), io.BytesIO(item.content))
    return buffer.getvalue()


@dataclass(frozen=True)
class TestImage:
    """An image to be written: its layers, the bottom one first, as tar archives that are not compressed."""

    __test__ = False

    layers: Sequence[bytes]
    env: Sequence[str] = ("PATH=/bin",)
    architecture: str = host_architecture()
    os: str = "linux"

    def config(self) -> bytes:
        """Return its configuration."""
        diff_ids = [digest_of(layer) for layer in self.layers]
        settings = {"Env": list(self.env), "User": "", "WorkingDir": "/work", "Cmd": ["sh"], "Entrypoint": None}
        rootfs = {"type": "layers", "diff_ids": diff_ids}
        return json.dumps(
            {"architecture": self.architecture, "os": self.os, "config": settings, "rootfs": rootfs}
        ).encode()


def retyped(header: bytes, kind: bytes) -> bytes:
    """Return the header of a member of another type, with the checksum for it (tar(5))."""
    changed = bytearray(header)
    changed[156:157] = kind
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed)


def digest_of(content: bytes) -> str:
    """Return a digest as images write it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def squeeze(content: bytes) -> bytes:
    """Compress by gzip, always to the same bytes."""
    return gzip.compress(content, mtime=0)


class Layout:
    """An OCI image layout while it is written."""

    def __init__(self, top: Path, compress: Compress = squeeze) -> None:
        self.top, self._compress = top, compress
        self.manifests: list[dict[str, Any]] = []
        (top / "blobs" / "sha256").mkdir(parents=True)
        (top / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.write_index()

    def blob(self, content: bytes, kind: str) -> dict[str, Any]:
        """Write a blob and return its descriptor."""
        self.blob_file(digest_of(content)).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest_of(content), "size": len(content)}

    def blob_file(self, digest: str) -> Path:
        """Return where a blob is."""
        return self.top / "blobs" / digest.replace(":", "/")

    def manifest(self, image: TestImage) -> dict[str, Any]:
        """Write an image and return the descriptor of its manifest."""
        layers = [self.blob(self._compress(layer), "layer.v1.tar+gzip") for layer in image.layers]
        config = self.blob(image.config(), "config.v1+json")
        content = {"schemaVersion": 2, "config": config, "layers": layers}
        return self.blob(json.dumps(content).encode(), "manifest.v1+json")

    def add(self, image: TestImage, tag: str | None = None) -> str:
        """Write an image, list it in the index and return the digest of its manifest."""
        annotations = {"org.opencontainers.image.ref.name": tag} if tag is not None else {}
        self.manifests.append({**self.manifest(image), "annotations": annotations})
        self.write_index()
        return str(self.manifests[-1]["digest"])

    def write_index(self) -> None:
        """Write the list of manifests."""
        (self.top / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.manifests}))


def write_layout(top: Path, *layers: bytes, tag: str = "v1", compress: Compress = squeeze) -> Layout:
    """Write an OCI image layout of one image."""
    layout = Layout(top, compress)
    layout.add(TestImage(layers), tag)
    return layout


def save(images: dict[str, TestImage]) -> bytes:
    """Return an archive as `docker save` wrote it for years: a directory a layer, manifest.json last."""
    items: list[Item] = []
    manifest: list[dict[str, Any]] = []
    written: dict[str, str] = {}
    for tag, image in images.items():
        names = []
        for layer in image.layers:
            digest = digest_of(layer).removeprefix("sha256:")
            name = f"{digest_of(digest.encode() + tag.encode()).removeprefix('sha256:')}/layer.tar"
            names.append(name)
            # A layer that occurs twice is a link to where it was first.
            items.append(symlink(name, f"../{written[digest]}") if digest in written else file(name, layer))
            written.setdefault(digest, name)
        config = image.config()
        config_name = digest_of(config).removeprefix("sha256:") + ".json"
        items.append(file(config_name, config))
        manifest.append({"Config": config_name, "RepoTags": [tag], "Layers": names})
    return pack(*items, file("repositories", b"{}"), file("manifest.json", json.dumps(manifest).encode()))
