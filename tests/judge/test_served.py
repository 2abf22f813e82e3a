"""The judge under its own user: nobody but it and root can read what it knows, and its verdicts say so."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.judge.client import connect
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.spec import Integrity, Outcome
from minisandbox.launcher import binary_path
from minisandbox.tasks.certificate import Finding, Status, certificate_of
from minisandbox.tasks.directory import load_task_directory
from tests.judge.served import ROOT, Served, serving
from tests.judge.submissions import DEADLINE_S, write_files
from tests.judge.test_separation import SEARCH

pytestmark = [pytest.mark.requires_root, pytest.mark.slow]

NUMBER = str(secrets.randbelow(10**16))
SECRET = f"the expected answer is {NUMBER}"
TASK = """[minisandbox.stdio]
language = "python"
source = "main.py"
"""
ANSWERS = {"hidden": SECRET, "nothing": "found: []"}
FOLDERS = "/tmp /run /dev /var/lib /etc /home /root /submission /judge /mnt /srv /opt"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A judge with subordinate ids, as a user whom nobody else is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("this host has no C compiler")
    if any(not path.stat().st_mode & 1 for path in binary_path().parents):
        pytest.skip("an ordinary user cannot reach this checkout")
    with tempfile.TemporaryDirectory(prefix="minisandbox-judge-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "mappers").mkdir()
        for mapper in ("newuidmap", "newgidmap"):
            source = Path(__file__).parents[1] / "newidmap.c"
            subprocess.run([compiler, "-static", "-o", place / "mappers" / mapper, source], check=True)
            (place / "mappers" / mapper).chmod(0o4755)
        tasks = {name: certified(name, answer) for name, answer in ANSWERS.items()}
        with serving(place, 300_000_000 + secrets.randbelow(1_000_000), place / "mappers", tasks) as judge:
            yield judge


DIGEST = """
import os, sys, tempfile
from pathlib import Path
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.state import StateDir
os.chdir("/")
os.setresuid(1, 1, 1)
with tempfile.TemporaryDirectory() as name:
    print(build_rootfs(StateDir.open(Path(name) / "state"), "host").digest)
"""
"""An ordinary user's is not root's: all that he makes is root's inside (images/owner.py)."""


def certified(name: str, answer: str) -> dict[str, str]:
    """Return the files of a task with a certificate that is valid for such a judge. That of a check takes a while."""
    files = {"task.toml": TASK, "instruction.md": "Find it.", "tests/1.in": "", "tests/1.ans": answer}
    words = [sys.executable, "-c", DIGEST]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": str(ROOT)})
    with tempfile.TemporaryDirectory(prefix="minisandbox-task-") as place:
        task = load_task_directory(write_files(Path(place) / name, files))
    finding = Finding(id="T01", rule="as if it was checked", status=Status.PASSED)
    certificate = certificate_of(
        task=task.digest, rootfs=run.stdout.strip(), runs=1, integrity=Integrity.L4, findings=[finding]
    )
    return {**files, "certificate.json": msgspec.json.encode(certificate).decode()}


def search(served: Served) -> str:
    """A program that looks for the key and the answer wherever it can, and in all processes."""
    key = (served.place / "key").read_bytes()
    wanted = SEARCH.replace("9035178", NUMBER[::-1])
    return wanted.replace("KEY", repr(key)).replace("FOLDERS", FOLDERS).replace("STORE", str(served.place))


def searched_by(uid: int, served: Served, folder: Path) -> str:
    """Run the search as a user of the host."""
    program = folder / "search.py"
    program.write_text(search(served))
    program.chmod(0o644)
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", str(program)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100, cwd="/")
    return run.stdout


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can read."""
    with tempfile.TemporaryDirectory(prefix="minisandbox-search-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_user_of_the_host_finds_nothing(served: Served, shared: Path) -> None:
    """A supervisor's user who is not root, say; and with the defence off, the same search finds key and answer."""
    assert "found: []\n" == searched_by(1000, served, shared)

    assert f"{served.place}/key" in searched_by(served.uid, served, shared)
    opened = [served.place, served.place / "key", *_below(served.place / "tasks")]
    for path in opened:
        path.chmod(path.stat().st_mode | 0o055)
    try:
        found = searched_by(1000, served, shared)
    finally:
        for path in opened:
            path.chmod(path.stat().st_mode & ~0o077)
    assert f"{served.place}/key" in found
    assert f"{served.place}/tasks/hidden/tests/1.ans" in found


async def test_an_agent_finds_nothing(served: Served, supervisor: minisandbox.Supervisor) -> None:
    """In a sandbox of root's supervisor, as its root and as nobody."""
    with trio.fail_after(DEADLINE_S):
        for policy in ("default", "agent", "strict"):
            async with supervisor.open_sandbox(policy=policy) as sandbox:
                await sandbox.write_file("/search.py", search(served).encode())
                result = await sandbox.run(["python3", "/search.py"])

            assert b"found: []\n" == result.stdout, result.stderr


async def test_a_submission_finds_nothing_and_is_worth_the_level_of_its_kind(served: Served, tmp_path: Path) -> None:
    """What it finds is its output. The judge's user is its own, so that nothing but the task could lower the level."""
    folder = write_files(tmp_path / "a", {"main.py": search(served)})
    with trio.fail_after(DEADLINE_S):
        async with connect(served.socket, uid=served.uid) as remote:
            given = await remote.submit("nothing", partial(feed_directory, folder))
            wrong = await remote.submit("hidden", partial(feed_directory, folder))

    assert Outcome.AC is given.verdict.decision.verdict
    assert (Integrity.L4, ()) == (given.verdict.decision.integrity, given.verdict.decision.integrity_cap_reasons)
    assert Outcome.WA is wrong.verdict.decision.verdict
    assert SECRET.encode() not in repr(wrong).encode()


def test_everything_it_writes_is_its_own(served: Served) -> None:
    """Key, blobs, ledgers and tasks: its user's, and for nobody else."""
    for path in (
        served.place,
        *(path for name in ("key", "blobs", "episodes") for path in _below(served.place / name)),
    ):
        status = path.lstat()

        assert (served.uid, 0) == (status.st_uid, status.st_mode & 0o077), path
    process = Path(f"/proc/{served.pid}/status").read_text()

    assert f"Uid:\t{served.uid}\t{served.uid}\t{served.uid}\t{served.uid}" in process
    assert "CapEff:\t0000000000000000" in process


async def test_nothing_that_it_starts_is_roots(served: Served, tmp_path: Path) -> None:
    """Its launcher, and all that runs in its cells, is its user's or one of its subordinate ids."""
    folder = write_files(tmp_path / "a", {"main.py": "import time\ntime.sleep(1)\nprint('found: []')"})
    seen: dict[str, set[int]] = {}
    with trio.fail_after(DEADLINE_S):
        async with connect(served.socket, uid=served.uid) as remote, trio.open_nursery() as nursery:

            async def look() -> None:
                while True:
                    for pid in _descendants(served.pid):
                        with contextlib.suppress(OSError):
                            name = Path(f"/proc/{pid}/comm").read_text().strip()
                            seen.setdefault(name, set()).add(Path(f"/proc/{pid}").stat().st_uid)
                    await trio.sleep(0.01)

            nursery.start_soon(look)
            await remote.submit("nothing", partial(feed_directory, folder))
            nursery.cancel_scope.cancel()
    uids = {uid for found in seen.values() for uid in found}

    assert {name for name in seen if "python" in name}, seen
    assert 0 not in uids, seen
    assert 1000 not in uids, seen


def _descendants(pid: int) -> set[int]:
    """Return a process and all below it, as far as they are there while one looks."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


async def test_its_own_user_is_no_separation(served: Served, tmp_path: Path) -> None:
    """Who submits as the judge's user gets a verdict that says so."""
    folder = write_files(tmp_path / "a", {"main.py": "print('found: []')"})
    folder.chmod(0o755)
    words = f"""
import os, socket
from minisandbox.judge.messages import *
os.setresuid({served.uid}, {served.uid}, {served.uid})
s = socket.socket(socket.AF_UNIX); s.connect({str(served.socket)!r})
f = s.makefile("rb")
def ask(*messages):
    for message in messages: s.sendall(encode_message(message))
    return decode_answer(f.read(int.from_bytes(f.read(4), "big")))
ask(Hello())
print(ask(Submit(task="nothing"), End()).verdict.decision.integrity_cap_reasons)
"""
    run = await trio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": str(ROOT)},
        )
    )

    assert "not its own" in run.stdout, run.stderr


def _below(path: Path) -> list[Path]:
    return [path, *path.rglob("*")]
