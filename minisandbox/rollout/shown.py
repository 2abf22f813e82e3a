"""Text of a policy or a program made fit to be looked at: nothing in it moves a cursor, a window or the eye. Pure."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, those that begin escape sequences among them, but for tabs and newlines
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # what has no width or turns the direction
    "\ud800-\udfff"  # what is no character at all
    "\U000e0000-\U000e007f]"  # tags: text that is not seen
)


def visible(text: str) -> str:
    """Return a text with all that is not seen, or that acts on a terminal, as an escape that is."""
    return _UNSEEN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def visible_content(content: bytes | str, most: int | None = None) -> str:
    """Return bytes as text to be looked at: the first and the last half of `most` characters of what is longer."""
    text = content if isinstance(content, str) else content.decode(errors="backslashreplace")
    if most is None or len(text) <= most:
        return visible(text)
    left_out = len(text) - most
    head, tail = text[: most - most // 2], text[len(text) - most // 2 :]
    return f"{visible(head)}\n[... {left_out:,} characters are left out here ...]\n{visible(tail)}"


def visible_line(text: str, most: int = 200) -> str:
    """Return a text as one line of at most so many characters."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= most else f"{line[: most - 3]}..."
