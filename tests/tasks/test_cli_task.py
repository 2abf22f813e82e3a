"""`minisandbox task` as a user runs it, and `judge run` with what it certified."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minisandbox.cli.tasks_shown import checked_lines
from minisandbox.judge.spec import Integrity
from minisandbox.tasks.certificate import Finding, Status, certificate_of
from minisandbox.tasks.sets.unfit import Unfit
from tests.cli import json_of, minisandbox
from tests.tasks.samples import write, write_function_task


def test_sets_are_listed(state_dir: Path) -> None:
    """Those that there are, with the packages that they need."""
    shown = json_of(minisandbox(state_dir, "task", "list", "--json"))

    assert {"humaneval": 164, "exercises": 299, "repositories": 60} == {
        row["name"]: row["tasks"] for row in shown["sets"]
    }


def test_a_task_is_shown_without_its_answers(state_dir: Path, tmp_path: Path) -> None:
    """What it asks, and how it is judged."""
    folder = write_function_task(tmp_path / "double")
    shown = minisandbox(state_dir, "task", "show", folder)
    fields = json_of(minisandbox(state_dir, "task", "show", "--json", folder))["task"]

    assert 0 == shown.returncode
    assert b"Write solution.py with double(x)." in shown.stdout
    assert ("double", "function", 2) == (fields["name"], fields["kind"], fields["tests"])
    assert b"expected" not in shown.stdout


def test_a_malformed_task_is_named(state_dir: Path, tmp_path: Path) -> None:
    """With its file and line, and exit code 65."""
    folder = write_function_task(tmp_path / "double", task_dot_toml="version = \n")
    run = minisandbox(state_dir, "task", "check", "--json", folder)

    assert 65 == run.returncode
    error = json_of(run)["error"]
    assert ("TaskError", str(folder / "task.toml"), 1) == (error["kind"], error["file"], error["line"])


@pytest.mark.slow
@pytest.mark.requires_root
def test_a_certificate_lifts_the_cap_until_the_task_is_changed(state_dir: Path, tmp_path: Path) -> None:
    """Uncertified verdicts are worth L1; certified ones what kind and judge give; changed ones L1 again."""
    folder = write_function_task(tmp_path / "double")
    submission = write(tmp_path / "mine", solution_dot_py="def double(x):\n    return x * x\n")

    def integrity() -> tuple[str, str]:
        run = minisandbox(state_dir, "judge", "run", "--json", "--judge-dir", tmp_path / "j", folder, submission)
        decision = json_of(run)["verdict"]["decision"]
        return decision["verdict"], decision["integrity"]

    assert ("RTE", "L1") == integrity()
    write(submission, solution_dot_py="def double(x):\n    return x + x\n")
    assert ("AC", "L1") == integrity()
    assert 0 == minisandbox(state_dir, "task", "check", "--runs", "2", folder).returncode
    assert ("AC", "L3") == integrity()
    assert "certified" == json_of(minisandbox(state_dir, "task", "list", "--json", folder))["tasks"][0]["certificate"]
    write(folder, instruction_dot_md="Write solution.py with double(x). Now.\n")
    assert ("AC", "L1") == integrity()
    listed = json_of(minisandbox(state_dir, "task", "list", "--json", folder))["tasks"][0]
    assert "the task was changed after its check" == listed["certificate"]


@pytest.mark.slow
@pytest.mark.requires_root
def test_a_task_that_fails_is_reported_and_not_certified(state_dir: Path, tmp_path: Path) -> None:
    """Its certificate says what failed, and lifts no cap."""
    folder = write_function_task(tmp_path / "double", solution__solution_dot_py="def double(x):\n    return x\n")
    run = minisandbox(state_dir, "task", "check", "--json", "--runs", "1", folder)
    certificate = json_of(run)["tasks"][0]["certificate"]

    assert 1 == run.returncode
    assert not certificate["certified"]
    assert "failed" == {finding["id"]: finding["status"] for finding in certificate["findings"]}["T01"]
    assert not msgspec.json.decode((folder / "certificate.json").read_bytes())["certified"]


def test_what_of_many_is_not_certified_is_named_at_the_end() -> None:
    """With what failed of it; and what of a set is no task at all."""
    findings = [
        Finding(id="T01", rule="it passes", status=Status.FAILED, evidence=("passed 3 times of 10",)),
        Finding(id="T16", rule="nothing is told", status=Status.WARNED, evidence=("a line",)),
    ]
    checked = [
        (name, certificate_of(task="t", rootfs="r", runs=10, integrity=Integrity.L4, findings=found))
        for name, found in (("good", findings[1:]), ("bad", findings))
    ]

    assert [
        "not certified: bad: T01 passed 3 times of 10",
        "unfit: odd: it has no test",
        "1 of 2 tasks are certified, 1 unfit",
    ] == list(checked_lines(checked, [Unfit(name="odd", why="it has no test")]))


@pytest.mark.slow
@pytest.mark.requires_root
def test_a_certificate_that_is_damaged_is_named(state_dir: Path, tmp_path: Path) -> None:
    """It is no reason to judge with a cap in silence."""
    folder = write_function_task(tmp_path / "double", certificate_dot_json="{")
    run = minisandbox(state_dir, "judge", "run", "--json", "--judge-dir", tmp_path / "j", folder, folder / "solution")

    assert 65 == run.returncode
    assert str(folder / "certificate.json") == json_of(run)["error"]["file"]
