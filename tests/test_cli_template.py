"""`minisandbox template` and `run --template`: warm Pythons by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import minisandbox
from tests.templates import NEEDS_PYTHON, PYTHON

pytestmark = [*NEEDS_PYTHON, pytest.mark.slow]


def test_a_template_is_built_listed_measured_and_run(tmp_path: Path) -> None:
    """One after the other, by its name."""
    built = minisandbox(tmp_path, "template", "build", "plain", "--python", PYTHON, "--import", "json")
    listed = minisandbox(tmp_path, "template", "list", "--json")
    measured = minisandbox(tmp_path, "template", "warm", "plain", "--times", "2", "--json")
    code = "import sys; print(sys.argv, sys.stdin.read()); sys.exit(3)"
    ran = minisandbox(tmp_path, "run", "--template", "plain", "--", "-c", code, "a", stdin=b"in")

    assert 0 == built.returncode, built.stderr
    assert ["plain"] == [row["name"] for row in json.loads(listed.stdout)["templates"]]
    assert {"name", "times", "warm_s", "cold_s"} == set(json.loads(measured.stdout)), measured.stderr
    assert (3, b"['-c', 'a'] in\n") == (ran.returncode, ran.stdout), ran.stderr


def test_a_template_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A preload that fails is not saved; an unknown name, and a rootfs beside a template, are errors of usage."""
    failed = minisandbox(tmp_path, "template", "build", "bad", "--python", PYTHON, "--import", "no_such_module")
    unknown = minisandbox(tmp_path, "template", "warm", "bad")
    both = minisandbox(tmp_path, "run", "--template", "bad", "--rootfs", "busybox", "--", "-c", "1")

    assert 125 == failed.returncode and b"no_such_module" in failed.stderr
    assert (64, 125) == (unknown.returncode, both.returncode)
