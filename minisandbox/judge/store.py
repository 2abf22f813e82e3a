"""The judge's directory: key, blobs by digest and episodes, which the judge alone may enter.

key                    the judge's key
blobs/ab/abcd...       content, named by its digest
episodes/ID/           ledger, head and verdict of one judgement
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from minisandbox.errors import StateError, UsageError
from minisandbox.judge.ledger import Ledger, read_ledger
from minisandbox.judge.private import check_private
from minisandbox.judge.signing import Signer, load_or_make_key
from minisandbox.judge.verdict import Verdict

T = TypeVar("T")

DEFAULT_PATH = Path("/var/lib/minisandbox-judge")
VERDICT_NAME = "verdict.json"
_EPISODE = re.compile(r"[0-9a-f]{16}")


class Store:
    """An open store. Make it with `Store.open`; it blocks, and is small enough for that."""

    def __init__(self, path: Path, signer: Signer) -> None:
        self.path, self.signer = path, signer

    @classmethod
    def open(cls, path: Path | None = None) -> Store:
        """Open the store, made when it is not there. Raises StateError where anybody else may enter it."""
        path = DEFAULT_PATH if path is None else path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(path, "the judge's directory")
            for name in ("blobs", "episodes"):
                (path / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot use the judge's directory {path}: {error.strerror}") from error
        return cls(path, load_or_make_key(path / "key"))

    # ---- blobs

    def put(self, content: bytes) -> str:
        """Keep content, and return its digest in hexadecimal digits."""
        digest = hashlib.sha256(content).hexdigest()
        target = self._blob(digest)
        if not target.exists():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            new = target.with_name(f"{digest}.{secrets.token_hex(4)}.new")
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(content)
            new.rename(target)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the content of a digest. Raises StateError when it is not there, or is not what it was."""
        try:
            content = self._blob(digest).read_bytes()
        except OSError as error:
            raise StateError(f"the judge's directory {self.path} has no blob {digest}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise StateError(f"the blob {digest} in {self.path} was changed")
        return content

    def put_value(self, value: object) -> str:
        """Keep a value, and return the digest of its encoding."""
        return self.put(msgspec.msgpack.encode(value, order="sorted"))

    def get_value(self, digest: str, kind: type[T]) -> T:
        """Return a value that was kept."""
        try:
            return msgspec.msgpack.decode(self.get(digest), type=kind)
        except msgspec.DecodeError as error:
            raise StateError(f"the blob {digest} in {self.path} is none of this kind: {error}") from error

    def _blob(self, digest: str) -> Path:
        return self.path / "blobs" / digest[:2] / digest

    # ---- episodes

    def new_episode(self) -> str:
        """Make the directory of an episode, and return its id."""
        episode = secrets.token_hex(8)
        (self.path / "episodes" / episode).mkdir(mode=0o700)
        return episode

    def episode_path(self, episode: str) -> Path:
        """Return the directory of an episode. Raises UsageError when there is none."""
        path = self.path / "episodes" / episode
        if not _EPISODE.fullmatch(episode) or not path.is_dir():
            raise UsageError(f"there is no episode {episode!r} in {self.path}")
        return path

    def episodes(self) -> list[str]:
        """Return the ids of all episodes."""
        return sorted(path.name for path in (self.path / "episodes").iterdir() if _EPISODE.fullmatch(path.name))

    def begin_ledger(self, episode: str) -> Ledger:
        """Begin the ledger of an episode."""
        return Ledger.create(self.episode_path(episode), self.signer)

    def read_entry(self, episode: str, kind: str) -> dict[str, object]:
        """Return the body of the first entry of a kind. Raises LedgerError, or UsageError when there is none."""
        for entry in read_ledger(self.episode_path(episode), self.signer.verifier):
            if entry.kind == kind:
                return entry.body
        raise UsageError(f"the ledger of episode {episode} has no entry {kind!r}: it was never judged to the end")

    def save_verdict(self, episode: str, verdict: Verdict) -> Path:
        """Write the verdict beside its ledger, for those who read it; what must survive is in the ledger."""
        path = self.episode_path(episode) / VERDICT_NAME
        new = path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(verdict))
        new.rename(path)
        return path
