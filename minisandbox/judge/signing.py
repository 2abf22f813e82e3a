"""The judge's key: it signs the ledger, and what is random but must be the same again is derived from it.

The key is 32 random bytes in a file that its owner alone can read. It leaves the process nowhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from minisandbox.errors import StateError

KEY_BYTES = 32
_PREFIX = "ed25519:"


class Verifier:
    """Tells whether a signature is the judge's. It can be handed out."""

    def __init__(self, public: bytes) -> None:
        self.public = public
        self._key = Ed25519PublicKey.from_public_bytes(public)

    def verify(self, text: bytes, signature: str) -> bool:
        """Return whether a signature is of this text and this key."""
        try:
            self._key.verify(bytes.fromhex(signature.removeprefix(_PREFIX)), text)
        except (InvalidSignature, ValueError):
            return False
        return signature.startswith(_PREFIX)


class Signer:
    """The key itself."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.verifier = Verifier(self._key.public_key().public_bytes_raw())

    def sign(self, text: bytes) -> str:
        """Return the signature of a text."""
        return _PREFIX + self._key.sign(text).hex()

    def seed(self, *parts: str) -> bytes:
        """Return 32 bytes that are always the same for these parts, and that nobody without the key can know."""
        info = b"\0".join(part.encode() for part in ("minisandbox seed", *parts))
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._secret)


def load_or_make_key(path: Path) -> Signer:
    """Return the key in a file, made when there is none. Raises StateError when others could read or change it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return load_key(path)
    except OSError as error:
        raise StateError(f"cannot make the judge's key {path}: {error.strerror}") from error
    try:
        os.write(fd, os.urandom(KEY_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    return load_key(path)


def load_key(path: Path) -> Signer:
    """Return the key in a file. Raises StateError when others could read or change it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise StateError(f"cannot read the judge's key {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        secret = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StateError(f"the judge's key {path} must be a file that its owner, the judge, alone can read: chmod 600")
    if len(secret) != KEY_BYTES:
        raise StateError(f"the judge's key {path} has not {KEY_BYTES} bytes; put the right one back")
    return Signer(secret)
