"""An error in a TOML or JSON file says on which line it is, and nothing that a file holds raises anything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisandbox.document import MAX_DOCUMENT_BYTES, Document, Key, read_document
from minisandbox.errors import RootfsError, UsageError

TOML = '''\
format = 1 # one
"quoted key" = """
[not.a.table]
"""
'literal' = \'\'\'
x = 1\'\'\'
a.b."c.d" = { e = 1, f = [
    "]", # ]
    { g = 1,
      h = 2 },
] }

[table]
key = 2020-01-01
[table.inner]
"esc\\u0061ped" = 1

[[array]]
first = 1
[[array]]
first = 2
[array.sub]
deep = [[1, 2],
  [3,
   4]]
[[array.nested]]
x = "#"
[[array.nested]]
x = 1
'''

JSON = """\
{
  "format": 1, "text": "a\\"b{",
  "list": [
    1,
    [2,
     {"inner": [], "more":
       true}],
    {}
  ],
  "esc\\u0061ped": null
}
"""


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """A type that only the first line of the texts above fits."""

    format: int


def document(text: str, suffix: str) -> Document:
    """Return a document that is in no file."""
    return Document(Path(f"settings{suffix}"), text, RootfsError)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("format",), 1),
        (("quoted key",), 2),
        (("literal",), 5),
        (("a",), 7),
        (("a", "b", "c.d"), 7),
        (("a", "b", "c.d", "e"), 7),
        (("a", "b", "c.d", "f", 0), 8),
        (("a", "b", "c.d", "f", 1, "g"), 9),
        (("a", "b", "c.d", "f", 1, "h"), 10),
        (("table",), 13),
        (("table", "key"), 14),
        (("table", "inner", "escaped"), 16),
        (("array",), 18),
        (("array", 0), 18),
        (("array", 0, "first"), 19),
        (("array", 1, "first"), 21),
        (("array", 1, "sub"), 22),
        (("array", 1, "sub", "deep", 0), 23),
        (("array", 1, "sub", "deep", 1), 24),
        (("array", 1, "sub", "deep", 1, 1), 25),
        (("array", 1, "nested", 0, "x"), 27),
        (("array", 1, "nested", 1, "x"), 29),
        (("array", 1, "missing"), 20),
        (("missing",), 0),
        ((), 0),
    ],
)
def test_toml_key_has_its_line(key: Key, line: int) -> None:
    """Strings, comments, dotted keys and inner tables do not lead astray; what is missing is where it would be."""
    assert line == document(TOML, ".toml").error(key, "wrong").line


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("format",), 2),
        (("text",), 2),
        (("list",), 3),
        (("list", 0), 4),
        (("list", 1), 5),
        (("list", 1, 0), 5),
        (("list", 1, 1, "inner"), 6),
        (("list", 1, 1, "more"), 6),
        (("list", 2), 8),
        (("escaped",), 10),
        (("list", 7), 3),
        (("missing",), 0),
    ],
)
def test_json_key_has_its_line(key: Key, line: int) -> None:
    """Members and elements are found at any depth."""
    assert line == document(JSON, ".json").error(key, "wrong").line


@pytest.mark.parametrize(
    ("suffix", "text", "line", "message"),
    [
        (".toml", "a = 1\nb = ", 2, "not TOML: Invalid value"),
        (".toml", "a = 1\n\n[x", 3, "not TOML: Expected"),
        (".toml", "a = 1\na = 2", 2, "not TOML: Cannot overwrite a value"),
        (".toml", f"format = 1\nx = 0x{'f' * 5000}", 2, "more than 64 bits"),
        (".toml", f"format = {'9' * 5000}", 0, "cannot be read: Exceeds the limit"),
        (".toml", f"x = {'[' * 5000}", 0, "nested too deeply"),
        (".toml", "", 0, "missing required field `format`"),
        (".toml", "format = 1\nformal = 2", 2, "unknown key 'formal'"),
        (".toml", 'format = 1\n"a` b" = 2', 2, "unknown key 'a` b'"),
        (".toml", "\nformat = '1'", 2, "format: Expected `int`, got `str`"),
        (".json", '{"format":\n', 2, "not JSON: Expecting value"),
        (".json", '{"format": 1,\n"format": 2}', 2, "'format' is given twice"),
        (".json", '{"format": 1,\n"x": [{"y": 1},\n {"y": 1,\n "y": 2}]}', 4, "'y' is given twice"),
        (".json", "[" * 100_000, 0, "nested too deeply"),
        (".json", "[]", 0, "Expected `object`, got `array`"),
        (".json", '{"format": 1,\n"x": 0}', 2, "unknown key 'x'"),
        (".json", '\n{"format": NaN}', 2, "format: Expected `int`, got `float`"),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_line(suffix: str, text: str, line: int, message: str) -> None:
    """Syntax, names given twice, unknown and missing keys, wrong types: each has its line and says what it is."""
    with pytest.raises(RootfsError) as caught:
        document(text, suffix).convert(Settings)

    assert message in str(caught.value)
    assert line == caught.value.line


def test_block_about_a_key_places_its_usage_errors() -> None:
    """A UsageError becomes an error about the file; nothing else is touched."""
    settings_file = document(TOML, ".toml")
    with pytest.raises(RootfsError, match=r"settings\.toml:14: too early"), settings_file.at("table", "key"):
        raise UsageError("too early")
    with pytest.raises(KeyError), settings_file.at("table", "key"):
        raise KeyError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = '\xff'", r":2: not UTF-8"),
        (b"#" * (MAX_DOCUMENT_BYTES + 1), "larger than 1048576 bytes"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_unreadable_file_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    """What is no text, too large or not there is said so."""
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RootfsError, match=message):
        read_document(path, RootfsError)


def test_reading_never_waits(tmp_path: Path) -> None:
    """A FIFO that nobody writes to, a directory, a device without end and a NUL in a path are errors or empty."""
    os.mkfifo(tmp_path / "fifo")

    assert "" == read_document(tmp_path / "fifo", RootfsError).text
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "a\0b"):
        with pytest.raises(RootfsError):
            read_document(path, RootfsError)


ATOMS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner), max_leaves=12
)


def keys(value: Any, key: Key = ()) -> list[Key]:
    """Return the keys of all that is in a value, in the order of a text."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, part in inner for found in ((*key, name), *keys(part, (*key, name)))]


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_every_json_value_has_a_line(value: dict[str, Any]) -> None:
    """With one value a line, the lines follow the values."""
    text = json.dumps(value, indent=1)
    lines = [document(text, ".json").error(key, "").line for key in keys(value)]

    assert lines == sorted(set(lines))
    assert all(1 < line <= text.count("\n") + 1 for line in lines)


@settings(max_examples=300, suppress_health_check=[HealthCheck.differing_executors])
@given(
    st.sampled_from([".toml", ".json"]),
    st.text(max_size=40) | st.lists(st.sampled_from(list("[]{}=,.\"'#\\\n ab1-")), max_size=40).map("".join),
)
def test_junk_is_read_or_refused(suffix: str, text: str) -> None:
    """Any text is a document or the error of documents, and every line it names is in the text."""
    try:
        values = document(text, suffix).convert(dict[str, Any])
    except RootfsError as error:
        assert 0 <= error.line <= text.count("\n") + 1
        return

    for key in keys(values):
        assert 1 <= document(text, suffix).error(key, "").line <= text.count("\n") + 1
