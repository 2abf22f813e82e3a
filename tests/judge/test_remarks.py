"""What is told of a submission by its sources and names, before it is run: weakly, and nobody is punished for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.judge.assignment import Assignment, Declared, SuiteWork, TaskFile
from minisandbox.judge.evidence import Code, Severity, evidence
from minisandbox.judge.introspection import FILE_MAX_BYTES, introspects, may_introspect
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.remarks import remarked
from minisandbox.judge.spec import Artifact, Manifest
from minisandbox.judge.store import Store
from tests.judge.submissions import take_in, write_files
from tests.judge.test_ingest import WORK

LOOKING = (
    *("import sys\nsys._getframe(1)", "from sys import _getframe as f", "e.__traceback__.tb_frame.f_locals"),
    *("import inspect\ninspect.currentframe()", "import gc\ngc.get_referrers(x)", "getattr(sys, '_getframe')()"),
    *("import ctypes.util", "from _pytest import runner", "__import__('_pytest.runner')"),
    *("open('/proc/self/mem')", "open(f'/proc/{pid}/environ')", "open(b'/proc/1/maps')"),
)
NOT_LOOKING = (
    *("# sys._getframe and ctypes", "'the f_locals of /proc/self'", "ctypes_like = 1", "import pytest", "import gc"),
    *("import inspect\ninspect.signature(f)", "x = 'a/proc/'", "import sys\nsys.exc_info()"),
)
BROKEN = (
    *(b"f_back(", b"f_back\0", b"'f_back'\n" + b"(" * 50_000, b"'f_back'\n" + b"-" * 50_000 + b"1"),
    *(b"f_back = " + b"9" * 50_000, b"\xff\xfef_back", b"# coding: nothing\nf_back"),
)


@pytest.mark.parametrize("source", LOOKING)
def test_what_looks_into_its_interpreter_is_seen(source: str) -> None:
    """Names, imports, and paths, also where they are texts that are looked up."""
    assert may_introspect(source.encode())
    assert introspects(source.encode())


@pytest.mark.parametrize("source", NOT_LOOKING)
def test_what_only_speaks_of_it_is_not(source: str) -> None:
    """Comments, sentences and names that are alike are nothing."""
    assert not introspects(source.encode())


@pytest.mark.parametrize("source", BROKEN)
def test_what_is_no_source_is_nothing(source: bytes) -> None:
    """It ends, and raises nothing."""
    assert introspects(source) in (False, True)


async def test_sources_are_looked_at_while_they_are_taken_in(judge: Judge, tmp_path: Path) -> None:
    """Of Python alone, and none that is too large; files come along as they are."""
    frames = "import sys\nsys._getframe()\n"
    written = {
        "looks.py": frames,
        "deep/looks.py": frames,
        "plain.py": "# sys._getframe()\n",
        "notes.txt": frames,
        "broken.py": "f_back(\n",
        "large.py": frames + "#" * FILE_MAX_BYTES,
    }
    task = Assignment(name="test", work=WORK)
    manifest = await take_in(judge, write_files(tmp_path / "a", written), task)

    assert [("E13_INTROSPECTION", Severity.WEAK, ("deep/looks.py", "looks.py"))] == [
        (item.code, item.severity, item.paths) for item in manifest.evidence
    ]
    assert sorted(written) == [file.path for file in manifest.files]
    assert {len(text) for text in written.values()} == {file.size for file in manifest.files}
    assert not manifest.rejected


def manifest_of(store: Store, files: dict[str, bytes], *looking: str) -> Manifest:
    """Return the manifest of these files, of which some were seen to look into their interpreter."""
    taken = [Artifact(path=path, sha256=store.put(files[path]), size=len(files[path])) for path in sorted(files)]
    found = (evidence(Code.E13_INTROSPECTION, paths=looking),) if looking else ()
    return Manifest(files=tuple(taken), evidence=found)


def test_sources_of_the_task_are_not_told(store: Store) -> None:
    """What a repository had before is not the submission's doing, unless that changed it."""
    base = tuple(TaskFile(path=path, content=b"1") for path in ("old.py", "changed.py"))
    task = Assignment(name="test", work=SuiteWork(fail_to_pass=("tests/t.py::t",), files=(), base=base))
    manifest = manifest_of(store, {"old.py": b"1", "changed.py": b"2"}, "old.py", "changed.py")
    only = manifest_of(store, {"old.py": b"1"}, "old.py")

    assert [("changed.py",)] == [item.paths for item in remarked(manifest, task).evidence]
    assert () == remarked(only, task).evidence


SYSTEM = {
    "packages that are installed": ("/submission", (".",), "v/site-packages/x.py", True),
    "what the loader reads": ("/submission", (".",), "ld.so.preload", True),
    "a program": ("/", (".",), "usr/local/bin/python3", True),
    "a setting": ("/", (".",), "etc/profile", True),
    "what the task asked for": ("/", ("etc/nginx",), "etc/nginx/site", False),
    "where the task has its root": ("/usr/lib/python3/site-packages/lib", (".",), "core.py", False),
    "a file": ("/submission", (".",), "usr/bin/x", False),
    "elsewhere": ("/", ("home", "srv"), "home/x.py", False),
}


@pytest.mark.parametrize("name", SYSTEM)
def test_files_for_places_of_the_system_are_told(store: Store, name: str) -> None:
    """Where they come from, unless the task declares just that; telling it twice is telling it once."""
    root, paths, path, is_told = SYSTEM[name]
    task = Assignment(name="test", work=WORK, declared=Declared(root=root, paths=paths))
    told = remarked(manifest_of(store, {path: b"", "main.py": b""}), task)

    assert ([("E10_SYSTEM_PATH_CHANGED", (path,))] if is_told else []) == [(i.code, i.paths) for i in told.evidence]
    assert told == remarked(told, task)
