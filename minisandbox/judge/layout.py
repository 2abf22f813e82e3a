"""Files as an archive that is laid down in a cell, of a manifest or a task. It is made here, of checked names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from minisandbox.judge.assignment import TaskFile
from minisandbox.judge.evidence import Code, evidence
from minisandbox.judge.spec import Artifact, Budget, Manifest
from minisandbox.judge.store import Store
from minisandbox.runtime.tree_stream import END, Entry, Kind, encode_entry, padding


class TreeArchive:
    """Reads as a tar archive of entries with their content."""

    def __init__(self, files: Iterable[tuple[Entry, bytes]]) -> None:
        self._chunks = self._pack(files)
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""
        while len(self._rest) < size and (chunk := next(self._chunks, None)) is not None:
            self._rest += chunk
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    @staticmethod
    def _pack(files: Iterable[tuple[Entry, bytes]]) -> Iterator[bytes]:
        for entry, content in files:
            yield encode_entry(entry)
            for at in range(0, len(content), _CHUNK_BYTES):
                yield content[at : at + _CHUNK_BYTES]
            yield padding(len(content))
        yield END


class ManifestArchive(TreeArchive):
    """Reads as a tar archive of a manifest's files. Every one belongs to root and can be read by all."""

    def __init__(self, manifest: Manifest, store: Store) -> None:
        super().__init__((_entry(file), b"" if file.link else store.get(file.sha256)) for file in manifest.files)


class TaskArchive(TreeArchive):
    """Reads as a tar archive of files of the task's own, in the same way."""

    def __init__(self, files: Iterable[TaskFile]) -> None:
        super().__init__(
            (
                Entry(Kind.FILE, file.path, mode=0o755 if file.executable else 0o644, size=len(file.content)),
                file.content,
            )
            for file in files
        )


def _entry(file: Artifact) -> Entry:
    if file.link:
        return Entry(Kind.SYMLINK, file.path, mode=0o777, target=file.link)
    return Entry(Kind.FILE, file.path, mode=0o755 if file.executable else 0o644, size=file.size)


def overlaid(manifest: Manifest, files: Mapping[str, bytes], store: Store) -> Manifest:
    """Return a manifest with files of the task over it: none of the submission is in their way."""
    if not files:
        return manifest
    ours = {path: Artifact(path=path, sha256=store.put(content), size=len(content)) for path, content in files.items()}
    parents = {path[:at] for path in ours for at, letter in enumerate(path) if letter == "/"}
    theirs = {
        file.path: file
        for file in manifest.files
        if file.path not in parents and not any(f"{file.path}/".startswith(f"{path}/") for path in ours)
    }
    merged = theirs | ours
    return msgspec.structs.replace(manifest, files=tuple(merged[path] for path in sorted(merged)))


_CHUNK_BYTES = 1 << 16
"""Of a file, no more than this is copied again for each read."""

_PAGE_BYTES = 4096
_FILE_BYTES = 1024
"""What a file system in memory needs for a name and an inode, with some to spare."""


def fitting(manifest: Manifest, budget: Budget) -> Manifest:
    """Return a manifest, rejected when its files are more than a cell of this budget could hold and still run."""
    needed = sum(-(-file.size // _PAGE_BYTES) * _PAGE_BYTES + _FILE_BYTES for file in manifest.files)
    if needed <= min(budget.disk_bytes, budget.memory_bytes // 2):
        return manifest
    found = evidence(Code.E23_OVER_BOUNDS, paths=("(all files together)",))
    return msgspec.structs.replace(manifest, rejected=True, evidence=(*manifest.evidence, found))
