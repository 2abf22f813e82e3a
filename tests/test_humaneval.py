"""The demo runs real programs, tells those that fail from those that pass, and leaves nothing when interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from examples.humaneval import program_of
from examples.summary import Summary

ROOT = Path(__file__).parents[1]
DEMO = [sys.executable, str(ROOT / "examples" / "humaneval.py")]


def test_program_fails_when_its_solution_is_wrong() -> None:
    """The tests are part of the program: a wrong solution raises, the right one does not."""
    problem = {"prompt": "def one():\n", "test": "def check(f):\n    assert f() == 1\n", "entry_point": "one"}
    right = program_of(problem | {"canonical_solution": "    return 1\n"})
    wrong = program_of(problem | {"canonical_solution": "    return 2\n"})

    exec(right, {})
    with pytest.raises(AssertionError):
        exec(wrong, {})


@pytest.mark.slow
@pytest.mark.requires_root
def test_first_programs_pass(tmp_path: Path, state_dir: Path) -> None:
    """Each of them ran in a sandbox and passed its tests."""
    json = tmp_path / "humaneval.json"
    command = [*DEMO, "--limit", "8", "--state-dir", str(state_dir), "--json", str(json)]
    run = subprocess.run(command, capture_output=True, text=True)

    assert (0, "") == (run.returncode, run.stderr), run.stdout
    summary = msgspec.json.decode(json.read_bytes(), type=Summary)
    assert 8 == summary.passed == len(summary.outcomes)
    assert "programs a second" in run.stdout


@pytest.mark.slow
@pytest.mark.requires_root
def test_interrupted_demo_closes_its_sandboxes(state_dir: Path) -> None:
    """SIGINT in the middle ends it with 130, says so, and leaves no instance behind."""
    command = [*DEMO, "--concurrency", "4", "--state-dir", str(state_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        first = demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        stdout, stderr = demo.communicate()

    assert "164 programs, 4 at once" in first
    assert (130, "") == (demo.returncode, stderr)
    assert "interrupted after" in stdout
    assert [] == list((state_dir / "instances").iterdir())
