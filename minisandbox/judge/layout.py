"""A manifest as an archive that is laid down in a cell. The archive is made here, of names that were checked."""

from __future__ import annotations

from collections.abc import Iterator

from minisandbox.judge.spec import Artifact, Manifest
from minisandbox.judge.store import Store
from minisandbox.runtime.tree_stream import END, Entry, Kind, encode_entry, padding


class ManifestArchive:
    """Reads as a tar archive of a manifest's files. Every one belongs to root and can be read by all."""

    def __init__(self, manifest: Manifest, store: Store) -> None:
        self._chunks = self._pack(manifest, store)
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""
        while len(self._rest) < size and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    @staticmethod
    def _pack(manifest: Manifest, store: Store) -> Iterator[bytes]:
        for file in manifest.files:
            content = b"" if file.link else store.get(file.sha256)
            yield encode_entry(_entry(file)) + content + padding(len(content))
        yield END


def _entry(file: Artifact) -> Entry:
    if file.link:
        return Entry(Kind.SYMLINK, file.path, mode=0o777, target=file.link)
    return Entry(Kind.FILE, file.path, mode=0o755 if file.executable else 0o644, size=file.size)
