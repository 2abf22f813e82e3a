"""The import contracts of pyproject.toml hold, and can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts in `checkout`, not those of an installed package."""
    return subprocess.run([LINT_IMPORTS, "--no-cache", "--no-logo"], cwd=checkout, capture_output=True, text=True)


def test_imports_keep_the_contracts() -> None:
    """Imports point down the layers, values do no I/O, and only the command line draws."""
    run = lint_imports(ROOT)

    assert (0, "") == (run.returncode, run.stderr), run.stdout


@pytest.mark.parametrize(
    ("module", "statement", "broken"),
    [
        ("errors.py", "import minisandbox.spec", "Imports point down BROKEN"),
        ("spec.py", "import subprocess", "Values do no I/O BROKEN"),
        ("policy.py", "import rich", "Only the command line draws BROKEN"),
        ("novelty.py", "", "Imports point down BROKEN"),
    ],
)
def test_a_wrong_import_breaks_a_contract(tmp_path: Path, module: str, statement: str, broken: str) -> None:
    """An import that points up, I/O in a value, drawing below the command line and a module of no layer are found."""
    shutil.copytree(ROOT / "minisandbox", tmp_path / "minisandbox")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "minisandbox" / module).open("a") as file:
        file.write(f"\n{statement}\n")

    run = lint_imports(tmp_path)

    assert 1 == run.returncode
    assert broken in run.stdout
