"""Python packages on top of another rootfs: wheels made here, installed by the host's pip, used in a sandbox."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from minisandbox import Supervisor
from minisandbox.errors import HostError, UsageError
from minisandbox.images import StateDir, build_rootfs, list_rootfs, measure_tree
from minisandbox.images.python import PythonRecipe
from minisandbox.images.recipe import load_recipe
from minisandbox.images.rootfs import KINDS

PYTHON = "/usr/bin/python3"


def _has_pip() -> bool:
    if not Path(PYTHON).exists():
        return False
    return subprocess.run([PYTHON, "-I", "-m", "pip", "--version"], capture_output=True).returncode == 0


needs_pip = pytest.mark.skipif(not _has_pip(), reason=f"this host has no {PYTHON} with pip")

PROGRAM = b"import sys\n\ndef main():\n    print('greeting', *sys.argv[1:])\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A directory with a wheel that has a module and a program, and one that needs it."""
    place = tmp_path / "wheels"
    place.mkdir()
    write_wheel(place, "greeting", {"greeting.py": PROGRAM}, "Requires-Dist: nothing\n", "greet = greeting:main")
    write_wheel(place, "nothing", {"nothing/__init__.py": b""})
    return place


def write_wheel(place: Path, name: str, files: dict[str, bytes], needs: str = "", program: str = "") -> None:
    """Write a wheel (Binary Distribution Format, packaging.python.org)."""
    info = f"{name}-1.0.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if program:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{program}\n".encode()
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for path, data in content.items()
    }
    record = "".join(f"{path},sha256={digest.decode()},{len(content[path])}\n" for path, digest in digests.items())
    with zipfile.ZipFile(place / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, data in content.items():
            wheel.writestr(path, data)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


def recipe(place: Path, **keys: str) -> Path:
    """Write a recipe of the wheels in the directory beside it."""
    keys = {"packages": '["greeting"]', "wheels": '"wheels"', **keys}
    lines = ["format = 1", 'kind = "python"', *(f"{key} = {value}" for key, value in keys.items() if value)]
    (place / "mine.toml").write_text("\n".join(lines) + "\n")
    return place / "mine.toml"


@needs_pip
@pytest.mark.slow
async def test_wheels_are_there_in_a_sandbox(supervisor: Supervisor, tmp_path: Path, wheels: Path) -> None:
    """Their modules and programs, compiled, and what they need; the base's layer is that of the base itself."""
    rootfs = build_rootfs(supervisor.state, recipe(tmp_path))
    script = f"greet you; {PYTHON} -c 'import greeting, nothing; print(greeting.__cached__)'; stat -c %u /opt/python/*"
    async with supervisor.open_sandbox(rootfs=rootfs) as sandbox:
        result = await sandbox.run(script)
    host = build_rootfs(supervisor.state, "host")

    greeted, cached, *owners = result.stdout.decode().split("\n")[:-1]
    assert "greeting you" == greeted
    assert cached.startswith("/opt/python/__pycache__/greeting.cpython-")
    assert (rootfs.layers[0].path / cached[1:]).is_file()
    assert {"0"} == set(owners)
    assert (host.layers, host.binds) == (rootfs.layers[1:], rootfs.binds)


@needs_pip
@pytest.mark.slow
def test_same_wheels_are_the_same_layer(state: StateDir, tmp_path: Path, wheels: Path) -> None:
    """Built anew, and in another directory; a changed wheel is another."""
    first = build_rootfs(state, recipe(tmp_path))
    again = build_rootfs(state, recipe(tmp_path), rebuild=True)
    write_wheel(wheels, "nothing", {"nothing/__init__.py": b"# something"})
    other = build_rootfs(state, recipe(tmp_path))

    assert first == again
    assert first.layers[0] != other.layers[0]
    assert measure_tree(first.layers[0].path).digest == first.layers[0].digest


@needs_pip
def test_base_is_any_other_recipe(state: StateDir, tmp_path: Path, wheels: Path) -> None:
    """By a path that is relative to the recipe's file; its environment stays below ours."""
    (tmp_path / "tree" / "bin").mkdir(parents=True)
    (tmp_path / "base.toml").write_text(
        'format = 1\nkind = "directory"\npath = "tree"\n[env]\nPATH = "/mine"\nMINE = "1"\n'
    )
    rootfs = build_rootfs(state, recipe(tmp_path, base='"./base.toml"'))

    assert 2 == len(rootfs.layers)
    assert ("/opt/python/bin:/mine", "/opt/python", "1") == tuple(
        rootfs.env[name] for name in ("PATH", "PYTHONPATH", "MINE")
    )


@needs_pip
def test_no_code_of_a_package_runs_on_the_host(state: StateDir, tmp_path: Path, wheels: Path) -> None:
    """A source distribution, whose setup.py would, is not taken for a wheel."""
    setup = (
        f"open({str(tmp_path / 'canary')!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    )
    with tarfile.open(wheels / "evil-1.0.tar.gz", "w:gz") as archive:
        for name, content in {"evil-1.0/setup.py": setup, "evil-1.0/PKG-INFO": "Name: evil\nVersion: 1.0\n"}.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content.encode()))

    with pytest.raises(HostError, match=r"pip could not install the packages .*evil"):
        build_rootfs(state, recipe(tmp_path, packages='["evil"]'))

    assert not (tmp_path / "canary").exists()
    assert [] == [*os.listdir(state.path / "tmp"), *list_rootfs(state)]


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"packages": "[]"}, UsageError, "without packages"),
        ({"packages": '["--editable=."]'}, UsageError, "is no package that pip could install"),
        ({"packages": '[""]'}, UsageError, "is no package that pip could install"),
        ({"interpreter": '"python3"'}, UsageError, "interpreter 'python3' is relative"),
        ({"interpreter": '"/nowhere/python3"'}, HostError, "/nowhere/python3 is no Python that runs: .*python3-pip"),
        ({"interpreter": '"/bin/false"'}, HostError, "/bin/false is no Python that runs"),
        ({"base": '"nowhere"'}, UsageError, "there is no rootfs 'nowhere'"),
        ({"base": '"./mine.toml"'}, UsageError, "is of the kind python too"),
        ({"wheels": '"nowhere"'}, UsageError, "nowhere' is no directory"),
    ],
)
def test_mistake_in_a_recipe_is_told(
    state: StateDir, tmp_path: Path, wheels: Path, keys: dict[str, str], error: type[Exception], message: str
) -> None:
    """Before anything is installed."""
    with pytest.raises(error, match=message):
        build_rootfs(state, recipe(tmp_path, **keys))

    assert [] == os.listdir(state.layers)


def test_python_without_pip_is_an_error_that_names_the_package(state: StateDir, tmp_path: Path, wheels: Path) -> None:
    """What to install is in the message."""
    environment = tmp_path / "environment"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", environment], check=True)

    with pytest.raises(HostError, match=r"No module named pip.*apt-get install python3-pip"):
        build_rootfs(state, recipe(tmp_path, interpreter=f'"{environment}/bin/python3"'))


def test_python_recipe_of_the_package_names_no_registry() -> None:
    """Where packages come from is up to the host's pip."""
    loaded = load_recipe("python", KINDS)

    assert isinstance(loaded.recipe, PythonRecipe)
    assert "://" not in loaded.file.read_text()
    assert ("host", None) == (loaded.recipe.base, loaded.recipe.wheels)
