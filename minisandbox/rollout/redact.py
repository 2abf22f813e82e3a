"""What looks like a secret in whatever is recorded, and what is written in its place. Pure: it does no I/O.

Every pattern is of bounded length or begins with fixed text, so that no text takes more than linear time; and is only
looked for where a word that it needs is there at all.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from typing import Any

from minisandbox.errors import UsageError

MOST_NESTING = 50
"""How deep data may be nested; what is deeper is told by its type alone."""

_WORD = r"(?<![A-Za-z0-9])"

_KEY_END = r"-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
_BREAK = r"(?:\s|\\[nr]){0,4}"

PATTERNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private-key",
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----(?:\s{0,4}[A-Z][A-Za-z-]{1,30}: [^\n]{0,100}){0,4}"
        rf"(?:{_BREAK}[A-Za-z0-9+/=]{{16,16384}}){{0,400}}(?:{_BREAK}[A-Za-z0-9+/=]{{0,15}}{_BREAK}{_KEY_END})?",
    ),
    # what is left of a key whose beginning was cut off
    (
        "private-key",
        ("PRIVATE KEY",),
        r"(?<![A-Za-z0-9+/=])(?:[A-Za-z0-9+/=]{4,100}\s{1,4}){1,200}" + _KEY_END,
    ),
    ("password", ("://",), r"(?<=://)(?P<keep>[^\s/:@\"'<>]{0,256}:)[^\s/@\"'<>]{1,512}(?=@)"),
    (
        "token",
        ("uthorization", "UTHORIZATION"),
        r"(?P<keep>(?i:authorization)[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?i:bearer|basic|token)\s{1,8})[^\s\"',;]{4,4096}",
    ),
    ("token", ("earer ", "EARER "), r"(?P<keep>(?i:bearer) )[A-Za-z0-9._~+/=-]{20,4096}"),
    ("token", ("eyJ",), _WORD + r"eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{8,4096}"),
    ("api-key", ("AKIA", "ASIA"), _WORD + r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"),
    ("api-key", ("AIza",), _WORD + r"AIza[0-9A-Za-z_-]{35}"),
    ("api-key", ("sk-",), _WORD + r"sk-(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{20,512}"),
    ("api-key", ("k_live_", "k_test_"), _WORD + r"[rsp]k_(?:live|test)_[A-Za-z0-9]{16,256}"),
    ("token", ("gh", "github_pat_"), _WORD + r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})"),
    ("token", ("glpat-",), _WORD + r"glpat-[A-Za-z0-9_-]{20,255}"),
    ("token", ("xox",), _WORD + r"xox[abeoprs]-[A-Za-z0-9-]{10,255}"),
    ("token", ("hf_",), _WORD + r"hf_[A-Za-z0-9]{30,255}"),
    ("token", ("npm_",), _WORD + r"npm_[A-Za-z0-9]{36,255}"),
    ("token", ("pypi-",), _WORD + r"pypi-[A-Za-z0-9_-]{50,1024}"),
    # variables of an environment, as `env` prints them
    (
        "password",
        ("PASSW", "SECRET", "API_KEY", "TOKEN", "ACCESS_KEY"),
        r"(?P<keep>(?:PASSWORD|PASSWD|SECRET|API_KEY|TOKEN|ACCESS_KEY)[A-Z0-9_]{0,32}[\"']?\s{0,4}[=:]\s{0,4}[\"']?)"
        r"(?=[A-Za-z+/_=-]{0,256}[0-9])[A-Za-z0-9+/_=-]{12,1024}",
    ),
)
"""The kind that is written, words of which one must be there, and the expression. What `keep` matches stays."""

SHORT = 1024
_ANY_WORD = re.compile("|".join(re.escape(word) for _, words, _ in PATTERNS for word in words))


class Redactor:
    """Replaces what looks like a secret, and counts how often. `more` are expressions of the user's own.

    Raises UsageError for one that is no expression, or that matches nothing at all, which is everywhere.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        self.count = 0
        self._has_more = bool(more)
        self._patterns = [(kind, words, re.compile(pattern)) for kind, words, pattern in PATTERNS]
        for pattern in more:
            try:
                self._patterns.append(("secret", (), re.compile(pattern)))
            except re.error as error:
                raise UsageError(f"{pattern!r} is no regular expression: {error}") from error
            if self._patterns[-1][2].search(""):
                raise UsageError(f"the pattern {pattern!r} of a secret matches the empty text, which is everywhere")

    def text(self, text: str) -> str:
        """Return a text without secrets, and with what is no Unicode escaped."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode(errors="backslashreplace").decode()
        return self._replace(text)

    def content(self, content: bytes) -> bytes:
        """Return bytes without secrets, which may be no text at all."""
        return self._replace(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def _replace(self, text: str) -> str:
        # one search is the faster on a short text, one for each word on a long one
        if len(text) <= SHORT and not self._has_more and not _ANY_WORD.search(text):
            return text
        for kind, words, pattern in self._patterns:
            if words and not any(word in text for word in words):
                continue
            text, times = pattern.subn(lambda match, kind=kind: _mark(match, kind), text)  # type: ignore[misc]
            self.count += times
        return text

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return what JSON can say of a value, without secrets. Never fails, whatever it is given."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int):
            return int(value) if value.bit_length() < 64 else str(value) if value.bit_length() < 4096 else "a number"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, bytes | bytearray):
            return base64.b64encode(self.content(bytes(value))).decode()
        if depth < MOST_NESTING:
            if isinstance(value, dict):
                return {self.text(str(name)): self.plain(inner, depth + 1) for name, inner in value.items()}
            if isinstance(value, list | tuple | set | frozenset):
                return [self.plain(inner, depth + 1) for inner in value]
            if hasattr(value, "tolist"):  # arrays and their scalars
                return self.plain(value.tolist(), depth + 1)
        return f"<{type(value).__name__}>"

    def values(self, value: Any) -> Any:
        """Return the builtin form of our own values without secrets, bytes as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.content(value)
        if isinstance(value, dict):
            return {name: self.values(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(inner) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value


def _mark(match: re.Match[str], kind: str) -> str:
    kept = match.groupdict().get("keep") or ""
    return f"{kept}[redacted: {kind}]"
