"""The codes of evidence: the manual has each, and says of those that nothing tells that and why."""

from __future__ import annotations

import re
from pathlib import Path

from minisandbox.judge.evidence import Code

ROOT = Path(__file__).parents[2]
NEVER = "never"


def rows() -> dict[str, tuple[str, str]]:
    """Return what the manual says of each code: its severity, and when it is told."""
    found = re.findall(r"^\| `(E\d\d_\w+)` \| (\w+) \| (.+) \|$", (ROOT / "docs/manual.md").read_text(), re.MULTILINE)
    return {code: (severity, when) for code, severity, when in found}


def told() -> set[str]:
    """Return the codes that the judge's sources name, where they are defined aside."""
    judge = ROOT / "minisandbox" / "judge"
    sources = "".join(path.read_text() for path in judge.rglob("*.py") if path.name != "evidence.py")
    return {code.name for code in Code if code.name in sources}


def test_every_code_is_in_the_manual() -> None:
    """With its severity, and no other is."""
    assert {code.name: code.severity.value for code in Code} == {code: said[0] for code, said in rows().items()}


def test_codes_that_nothing_tells_say_so() -> None:
    """Those and no others: a code that is promised is told somewhere."""
    assert {code for code, (_, when) in rows().items() if not when.startswith(NEVER)} == told()
