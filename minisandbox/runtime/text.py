"""Text that goes into a sandbox: paths and words, as the kernel will count them. Pure."""

from __future__ import annotations

import os

from minisandbox.errors import UsageError

PATH_MAX_BYTES = 4095
"""PATH_MAX less the final NUL (path_resolution(7))."""


def check_path(what: str, path: str) -> None:
    """Raise UsageError unless this is an absolute path that the kernel would look up at all."""
    if not path.startswith("/"):
        raise UsageError(f"{what} {path!r} is relative; give an absolute path inside the sandbox")
    if encoded_size(path) > PATH_MAX_BYTES:
        raise UsageError(f"{what} is longer than the {PATH_MAX_BYTES} bytes that Linux takes")


def encoded_size(word: str) -> int:
    """Return the length in bytes. Raises UsageError for text that has no encoding (a lone surrogate)."""
    try:
        return len(os.fsencode(word))
    except UnicodeEncodeError as error:
        raise UsageError(f"text for a sandbox cannot be encoded: {error}") from error
