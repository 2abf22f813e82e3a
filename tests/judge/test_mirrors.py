"""Mirrors of tests: whatever passes honestly fails its mirror, and whatever equals everything passes it."""

from __future__ import annotations

import pytest

from minisandbox.judge.mirrors import Way, mirror

SOURCES = [
    "def test_a():\n    assert f(3) == 6\n",
    "def test_a():\n    assert 6 == f(3)\n",
    "def test_a():\n    assert f(3) == 6, 'message'\n",
    "def test_a():\n    assert f('é') == 'éé'\n",
    "def test_a():\n    assert f([1]) == [\n        1,\n        1,\n    ]\n",
    'def test_a():\n    assert f("a\\n") == """a\na\n"""\n',
    "def test_a():\n    assert f(True) is not None\n",
    "def test_a():\n    assert (f(1)\n        > 1)\n",
    "def test_a():\n    want = 4\n    assert f(2) == want\n",
    "def test_a():\n    import pytest\n    assert f(2.0) == pytest.approx(4.0)\n",
    "def test_a():\n    import pytest\n    with pytest.raises(TypeError):\n        f(None)\n",
    "def test_a():\n    import pytest\n    with pytest.raises((TypeError, ValueError), match='N'):\n        f(None)\n",
    "import unittest\nclass TestA(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(2), 4)\n",
    "import unittest\nclass TestA(unittest.TestCase):\n    def test_a(self):\n        self.assertTrue(f(2))\n",
    "import unittest\nclass TestA(unittest.TestCase):\n    def test_a(self):\n        self.assertIn(4, [f(2)])\n",
]


class Everything:
    """Equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def passes(source: str, f: object) -> bool:
    """Run the one test of a file, and return whether it passed."""
    space: dict[str, object] = {"f": f, "__name__": "test"}
    exec(compile(source, "test.py", "exec"), space)
    try:
        if "TestA" in space:
            space["TestA"]("test_a").debug()  # type: ignore[operator]
        else:
            space["test_a"]()  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - however it fails
        return False
    return True


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("source", SOURCES)
def test_nothing_honest_passes_a_mirror(source: str, way: Way) -> None:
    """The test passes, its mirror does not; it has as many lines, and the name."""
    changed = mirror(source, way, lambda _, count: count - 1)

    assert passes(source, lambda x: x + x)
    assert not passes(changed.source, lambda x: x + x)
    assert source.count("\n") == changed.source.count("\n")
    assert {"TestA::test_a" if "TestA" in source else "test_a"} == changed.names


def test_what_equals_everything_passes_a_mirror() -> None:
    """Which is how it is found."""
    for way in Way:
        changed = mirror(SOURCES[0], way, lambda _, __: 0)

        assert passes(changed.source, lambda _: Everything())


def test_what_is_reached_only_sometimes_is_not_changed() -> None:
    """A test without an assertion that is certain has no mirror, so nobody honest can pass one."""
    for body in ("if f(1): assert f(2) == 4", "for x in []: assert f(x) == 4", "return\n    assert f(1) == 2", "f(1)"):
        source = f"def test_a():\n    {body}\n"

        assert (source, frozenset()) == mirror(source, Way.SENTINEL, lambda _, __: 0)
    assert frozenset() == mirror("no python", Way.SENTINEL, lambda _, __: 0).names


def test_the_change_is_chosen() -> None:
    """Among the assertions that catch most."""
    source = "def test_a():\n    assert f(1)\n    assert f(1) == 2\n    assert f(2) == 4\n"
    texts = {mirror(source, Way.LITERAL, lambda _, count, n=n: n % count).source for n in range(4)}  # type: ignore[misc]

    assert {source.replace("== 2", "== (3)"), source.replace("== 4", "== (5)")} == texts
