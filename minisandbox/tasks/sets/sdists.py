"""Source distributions that carry their tests: which, by their digests, and their files. None of it is unpacked here.

pip fetches them from where it is set to, checks the digest, and then asks the archive's own build backend for its
name, which runs code of it on the host as an installation does; that is why a digest is given for each. Their tests
run in sandboxes alone.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from minisandbox.errors import HostError, TaskError
from minisandbox.tasks.task import File, Files

MAX_FILES = 2000
MAX_BYTES = 32 << 20
KEPT = ("LICENSE", "README", "COPYING", "NOTICE")
"""Files beside the packages that come along, by how their names begin."""


class Sdist(msgspec.Struct, frozen=True, kw_only=True):
    """A release, and what of it is code and what tests."""

    project: str
    version: str
    sha256: str
    packages: tuple[str, ...]
    """Directories of its code, which are imported by these names."""
    test_roots: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """How ids of tests begin that take too long, or what they measure is time."""
    dropped: tuple[str, ...] = ()
    """Directories that are in no task."""


SDISTS = (
    Sdist(
        project="more-itertools",
        version="11.2.1",
        sha256="cbf08fd0af284dc69718b9b76a8e6203df624d70209ea511e4219d350c856f63",
        packages=("more_itertools",),
        test_roots=("tests",),
        left_out=(
            "tests/test_recipes.py::PrimeFunctionTests",
            "tests/test_more.py::DiscreteFourierTransformTests",
            "tests/test_more.py::TestConcurrentTee",
        ),
    ),
    Sdist(
        project="toolz",
        version="1.2.0",
        sha256="9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490",
        packages=("toolz", "tlz"),
        test_roots=("toolz/tests",),
        dropped=("toolz/sandbox/tests",),
    ),
    Sdist(
        project="boltons",
        version="26.2.0",
        sha256="d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
        packages=("boltons",),
        test_roots=("tests",),
        left_out=("tests/test_gcutils.py", "tests/test_funcutils.py::test_once_thread_safety"),
    ),
    Sdist(
        project="inflection",
        version="0.5.1",
        sha256="1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417",
        packages=("inflection",),
        test_roots=("test_inflection.py",),
    ),
    Sdist(
        project="parse",
        version="1.22.4",
        sha256="706d458feed5a81b02768d3156e8070baf6cee7d150a3a3c0cd43101a875c3b5",
        packages=("parse",),
        test_roots=("tests",),
    ),
)


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a release."""

    sdist: Sdist
    code: Files
    """What whoever solves a task sees."""
    tests: Files


def fetch(sdist: Sdist) -> Release:
    """Have pip fetch a release, and return its files. Raises HostError when it cannot, else as `read_release`."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-sdist-") as folder:
        wanted = Path(folder, "requirements.txt")
        wanted.write_text(f"{sdist.project}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
        pip: list[str | Path] = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        pip += ["--disable-pip-version-check", "--require-hashes", "--no-binary", sdist.project]
        pip += ["--dest", folder, "--requirement", wanted]
        ran = subprocess.run(pip, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True)
        found = list(Path(folder).glob("*.tar.gz"))
        if ran.returncode != 0 or len(found) != 1:
            said = "; ".join(line for line in ran.stderr.splitlines() if "ERROR" in line or "No module" in line)[:500]
            raise HostError(
                f"pip could not fetch {sdist.project} {sdist.version} ({ran.returncode}): {said or 'it says nothing'}; "
                "it needs pip in the Python that runs this, and an index"
            )
        return read_release(sdist, found[0])


def read_release(sdist: Sdist, archive: Path) -> Release:
    """Return the files of an archive. Raises TaskError for one that is damaged, too large or lacks code or tests."""
    files: Files = {}
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = member.name.partition("/")[2]
                if not member.isreg() or not _is_plain(path):
                    continue
                total += member.size
                if len(files) >= MAX_FILES or total > MAX_BYTES:
                    raise TaskError(f"more than {MAX_FILES} files or {MAX_BYTES} bytes", archive)
                content = tar.extractfile(member)
                assert content is not None
                files[path] = File(content=content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise TaskError(f"no archive: {error}", archive) from error
    tests = {path: file for path, file in files.items() if _below(path, sdist.test_roots)}
    hidden = (*sdist.test_roots, *sdist.dropped)
    code = {
        path: file
        for path, file in files.items()
        if not _below(path, hidden) and (_below(path, sdist.packages) or path.startswith(KEPT))
    }
    if not tests or not any(_below(path, (package,)) for package in sdist.packages for path in code):
        raise TaskError(f"neither code nor tests of {sdist.project} are where they should be", archive)
    return Release(sdist=sdist, code=code, tests=tests)


def _is_plain(path: str) -> bool:
    return path.isprintable() and all(name not in ("", ".", "..") for name in path.split("/"))


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)
