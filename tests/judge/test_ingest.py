"""What is taken in of a submission: what was declared, as data, within bounds; whatever else is there hurts nobody."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import BrokenError
from minisandbox.judge.assignment import Assignment, Declared, StdioWork, TestCase
from minisandbox.judge.frames import frame
from minisandbox.judge.ingest import Send, ingest
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox, seal
from minisandbox.judge.spec import Manifest, Outcome
from tests import observer
from tests.judge.submissions import DEADLINE_S, decision, take_in, write_files

WORK = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b"", answer=b"1"),))


def assignment(**declared: object) -> Assignment:
    """A task that declares this."""
    return Assignment(name="test", work=WORK, declared=msgspec.convert(declared, Declared))


def codes(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """The evidence of a manifest."""
    return {item.code[:3]: item.paths for item in manifest.evidence}


async def test_files_are_taken_in(judge: Judge, tmp_path: Path) -> None:
    """With their content and executable bits; links within stay links, other names of a file are files."""
    folder = write_files(tmp_path / "a", {"main.py": "1", "deep/er/x": b"\0" * 3_000_000, "run": "#!"})
    (folder / "run").chmod(0o6755)
    (folder / "link").symlink_to("deep/er/x")
    os.link(folder / "main.py", folder / "same")
    manifest = await take_in(judge, folder, assignment())

    assert ["deep/er/x", "link", "main.py", "run", "same"] == [file.path for file in manifest.files]
    assert {"run"} == {file.path for file in manifest.files if file.executable}
    assert b"\0" * 3_000_000 == judge.store.get(manifest.files[0].sha256)
    assert "deep/er/x" == manifest.files[1].link
    assert manifest.files[2].sha256 == manifest.files[4].sha256
    assert ((), False) == (manifest.evidence, manifest.rejected)
    assert manifest.digest == (await take_in(judge, folder, assignment())).digest


async def test_what_was_not_declared_stays(judge: Judge, tmp_path: Path) -> None:
    """Only the named files and directories come along."""
    folder = write_files(tmp_path / "a", {"main.py": "1", "src/x": "2", "srcs": "3", "tests/t": "4"})
    manifest = await take_in(judge, folder, assignment(paths=["main.py", "src"]))

    assert ["main.py", "src/x"] == [file.path for file in manifest.files]


@pytest.mark.requires_root
async def test_special_files_are_left_out_and_told(judge: Judge, tmp_path: Path) -> None:
    """FIFOs, sockets, devices, links that lead out, and names that are no text: none is opened, and nothing hangs."""
    folder = write_files(tmp_path / "a", {"main.py": "1"})
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "device", 0o020666, os.makedev(1, 5))
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../../etc/passwd")
    (folder / "bad\nname").write_text("x")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("x")
    manifest = await take_in(judge, folder, assignment())

    assert ["main.py"] == [file.path for file in manifest.files]
    assert {"device", "fifo", "out", "up"} < set(codes(manifest)["E11"])
    assert 6 == len(codes(manifest)["E11"])
    assert not manifest.rejected


async def test_code_that_python_would_run_by_itself_is_left_out(judge: Judge, tmp_path: Path) -> None:
    """Planted bytecode and start-up files are told; what every run of Python leaves is not."""
    files = {
        "main.py": "1",
        "__pycache__/main.cpython-311.pyc": "x",
        "m.pyc": "x",
        "a.pth": "x",
        "sitecustomize.py": "x",
    }
    manifest = await take_in(judge, write_files(tmp_path / "a", files), assignment())

    assert ["main.py"] == [file.path for file in manifest.files]
    assert {"E09": ("a.pth", "m.pyc", "sitecustomize.py")} == codes(manifest)


@pytest.mark.parametrize(
    "bound", [{"max_files": 2}, {"max_total_bytes": 2500}, {"max_file_bytes": 999}, {"max_depth": 1}], ids=str
)
async def test_beyond_its_bounds_it_is_rejected(judge: Judge, tmp_path: Path, bound: dict[str, int]) -> None:
    """By a verdict with its reason, and no score."""
    folder = write_files(tmp_path / "a", {"a": "x" * 1000, "b": "x" * 1000, "c/d/e": "x" * 1000})
    task = assignment(**bound)
    manifest = await take_in(judge, folder, task)
    made = (await judge.judge(task, manifest)).verdict.decision

    assert (True, ()) == (manifest.rejected, manifest.files)
    assert {"E23"} == codes(manifest).keys()
    assert (Outcome.REJ, 0.0) == (made.verdict, made.score)


async def test_a_sparse_file_is_rejected_at_its_size(judge: Judge, tmp_path: Path) -> None:
    """A tebibyte of nothing takes no time and no room."""
    folder = write_files(tmp_path / "a", {"main.py": "1"})
    with (folder / "big").open("wb") as file:
        file.truncate(1 << 40)
    manifest = await take_in(judge, folder, assignment())

    assert (True, ("big",)) == (manifest.rejected, codes(manifest)["E23"])


async def test_more_than_fits_into_a_cell_is_rejected(judge: Judge, tmp_path: Path) -> None:
    """What is within the bounds of the artifacts and beyond the budget of the task is no failure of ours."""
    made = await decision(judge, tmp_path / "a", {"main.py": "print(1)", "big": b"x" * (60 << 20)}, WORK)

    assert Outcome.AC is made.verdict

    made = await decision(
        judge,
        tmp_path / "b",
        {"main.py": "print(1)", "big": b"x" * (63 << 20), "more": b"x" * (63 << 20), "most": b"x" * (9 << 20)},
        WORK,
    )

    assert (Outcome.REJ, 0.0) == (made.verdict, made.score)


JUNK = [
    [["file", "main.py"], b"x"],
    [["tree", ""], b"junk" * 1000, b""],
    [["tree", ""], b"x"],
    [["tree", ""], 5],
    [["what", "ever"]],
    [17],
    ["x"],
    [["tree", 5], b"x" * 512, b""],
]


@pytest.mark.parametrize("values", JUNK, ids=str)
async def test_junk_is_rejected(judge: Judge, values: list[object]) -> None:
    """Whatever reaches the ingest process, the submission is rejected, and we did not fail."""

    async def feed(tell: Send) -> None:
        for value in values:
            await tell(value)

    with trio.fail_after(DEADLINE_S):
        manifest = await ingest(judge.supervisor, judge.store, Declared(), feed)

    assert (True, ()) == (manifest.rejected, manifest.files)
    assert manifest.evidence


async def test_a_sandbox_that_we_lost_is_no_fault_of_the_submission(judge: Judge) -> None:
    """The init of the ingest process is killed in the middle: that is an error of ours, and rejects nothing."""

    async def feed(tell: Send) -> None:
        await tell(["file", "main.py"])
        observer.inits()[-1].kill()
        for _ in range(1000):
            await tell(b"x" * 1000)

    with trio.fail_after(DEADLINE_S), pytest.raises(BrokenError):
        await ingest(judge.supervisor, judge.store, Declared(), feed)


async def test_a_sandbox_is_sealed_and_taken_in(judge: Judge, supervisor: minisandbox.Supervisor) -> None:
    """What its processes would still write after the seal, they do not: none of them is left."""
    loop = "while :; do date +%N > /submission/clock; done"
    busy = f"setsid sh -c '{loop}' >/dev/null 2>&1 </dev/null & until [ -e clock ]; do :; done"
    task = assignment(paths=["main.py", "src", "missing", "fifo", "link"])
    with trio.fail_after(DEADLINE_S):
        async with supervisor.open_sandbox() as sandbox:
            made = "mkdir -p /submission/src; cd /submission; echo 'print(1)' > main.py; echo 2 > src/x; mkfifo fifo;"
            await sandbox.run(f"{made} ln -s /etc/passwd link; {busy}")
            await seal(sandbox)
            before = await sandbox.read_file("/submission/clock")
            manifest = await ingest(judge.supervisor, judge.store, task.declared, feed_sandbox(sandbox, task.declared))
            after = await sandbox.read_file("/submission/clock")

    assert before == after
    assert ["main.py", "src/x"] == [file.path for file in manifest.files]
    assert ("fifo", "link") == codes(manifest)["E11"]
    assert (await judge.judge(task, manifest)).verdict.decision.verdict is Outcome.AC


def test_frames_of_the_ingest_are_those_of_everything() -> None:
    """One codec."""
    assert b"\0\0\0\1N" == frame(None)
