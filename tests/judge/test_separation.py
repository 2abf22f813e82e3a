"""Nothing of the judge can be read from where agents and submissions are."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox.binds import Bind
from minisandbox.errors import StateError
from minisandbox.images.manifest import LayerOrigin, Rootfs, write_manifest
from minisandbox.images.rootfs import build_rootfs
from minisandbox.judge.assignment import StdioWork, TestCase
from minisandbox.judge.driver import LIMITS
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from minisandbox.judge.store import Store
from minisandbox.judge.warm import open_program, open_warm
from tests.judge.submissions import DEADLINE_S, decision

SECRET = b"the expected answer is 8715309"
WORK = StdioWork(language="python", source="main.py", cases=(TestCase(id="hidden", input=b"1", answer=SECRET),))

SEARCH = """
import os, sys
found = []
wanted = [bytes(reversed(b"9035178")), KEY]
def look(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            content = file.read(1 << 20) or b""
    except OSError:
        return
    if any(word in content for word in wanted) and path != sys.argv[0]:
        found.append(path)
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for name in ("cmdline", "environ", "maps", "mem"):
        look(f"/proc/{pid}/{name}")
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        fds = []
    for fd in fds:
        if fd not in "012":
            look(f"/proc/{pid}/fd/{fd}")
for top in "FOLDERS STORE".split():
    for folder, _, names in os.walk(top):
        for name in names:
            look(os.path.join(folder, name))
print("found:", found)
"""


FOLDERS = "/tmp /run /dev /var /etc /home /root /submission /judge /mnt /srv /opt"


def search(store: Store, folders: str = FOLDERS) -> str:
    """A program that looks for the secrets of the judge everywhere it can."""
    key = (store.path / "key").read_bytes()
    return SEARCH.replace("KEY", repr(key)).replace("FOLDERS", folders).replace("STORE", str(store.path))


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """With the defence off: in a process that may, the secrets are found."""
    store = Store.open(tmp_path / "judge")
    digest = store.put(SECRET)
    program = tmp_path / "search.py"
    program.write_text(search(store, "/proc/self/fd"))
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=60)

    assert digest in run.stdout
    assert "judge/key" in run.stdout


@pytest.fixture
def opened(store: Store) -> Iterator[Store]:
    """The judge's directory with the defence off: everybody may read it."""
    store.put(SECRET)
    store.begin_ledger(store.new_episode()).close()
    for path in [store.path, *store.path.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o055)
    yield store
    for path in [store.path, *store.path.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o077)


async def test_an_agent_finds_what_is_shown_to_it(
    judge: Judge, opened: Store, supervisor: minisandbox.Supervisor
) -> None:
    """With the defence off: the judge's directory in its sandbox, and open to all."""
    bind = Bind(source=opened.path, target=str(opened.path))
    with trio.fail_after(DEADLINE_S):
        for policy in ("default", "agent", "strict"):
            async with supervisor.open_sandbox(policy=policy, binds=[bind]) as sandbox:
                await sandbox.write_file("/search.py", search(opened).encode())
                result = await sandbox.run(["python3", "/search.py"])

            assert str(opened.path / "key").encode() in result.stdout, result.stderr


async def test_a_submission_finds_what_is_shown_to_it(
    judge: Judge, opened: Store, supervisor: minisandbox.Supervisor, tmp_path: Path
) -> None:
    """With the defence off: the answer is read in its cell, and is accepted."""
    host = build_rootfs(supervisor.state, "host")
    binds = (*host.binds, Bind(source=opened.path, target="/srv"))
    origins = tuple(LayerOrigin(key="test") for _ in host.layers)
    rootfs = Rootfs("shows-the-judge", host.layers, binds, host.env)
    write_manifest(supervisor.state, rootfs, "sha256:0", origins, imported_from="test")
    program = "import glob\nfor path in glob.glob('/srv/blobs/*/*') + glob.glob('/srv/blobs/*'):\n"
    program += "    try: said = open(path, 'rb').read()\n    except OSError: continue\n"
    program += "    if b'expected answer' in said and len(said) < 99: print(said.decode())\n"
    opened.put(SECRET)
    seen = await decision(judge, tmp_path / "a", {"main.py": program}, WORK, rootfs="shows-the-judge")
    hidden = await decision(judge, tmp_path / "b", {"main.py": program}, WORK)

    assert (Outcome.AC, Outcome.WA) == (seen.verdict, hidden.verdict)


async def test_an_agent_finds_nothing(judge: Judge, supervisor: minisandbox.Supervisor) -> None:
    """Neither as root of its sandbox nor as nobody, with the answer and the key in the judge's directory."""
    judge.store.put(SECRET)
    with trio.fail_after(DEADLINE_S):
        for policy in ("default", "agent", "strict"):
            async with supervisor.open_sandbox(policy=policy) as sandbox:
                await sandbox.write_file("/search.py", search(judge.store).encode())
                result = await sandbox.run(["python3", "/search.py"])

            assert b"found: []\n" == result.stdout, result.stderr


async def test_a_submission_finds_nothing(judge: Judge, tmp_path: Path) -> None:
    """What it finds is its output, and would be the answer."""
    found = search(judge.store) + "\nif found: print(open(found[0], 'rb').read())\n"
    made = await decision(judge, tmp_path / "a", {"main.py": found}, WORK)
    work = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b"", answer=b"found: []"),))
    nothing = await decision(judge, tmp_path / "b", {"main.py": search(judge.store)}, work)

    assert Outcome.WA is made.verdict
    assert Outcome.AC is nothing.verdict


@pytest.mark.parametrize("is_warm", [False, True])
async def test_a_driver_finds_nothing(judge: Judge, is_warm: bool) -> None:
    """Whoever takes over what reads answers is where neither key nor ledger nor other tasks are, nor a network."""
    judge.store.put(SECRET)
    with trio.fail_after(DEADLINE_S):
        async with open_warm(judge.supervisor) as warm:
            opening = open_program("driver_program", LIMITS, judge.supervisor, warm if is_warm else None)
            async with opening as process:
                sandbox = process._sandbox
                await sandbox.write_file("/tmp/search.py", search(judge.store).encode())
                found = await sandbox.run(["python3", "/tmp/search.py"])
                network = await sandbox.run("cat /proc/self/net/route")

    assert b"found: []\n" == found.stdout, found.stderr
    assert 1 == len(network.stdout.splitlines())


def test_the_judges_directory_is_its_own(tmp_path: Path) -> None:
    """Everything in it can be entered and read by its owner alone, and one that others may enter is refused."""
    store = Store.open(tmp_path / "judge")
    store.put(SECRET)
    store.begin_ledger(store.new_episode()).close()
    for path in [store.path, *store.path.rglob("*")]:
        assert 0 == stat.S_IMODE(path.stat().st_mode) & 0o077, path

    store.path.chmod(0o710)
    with pytest.raises(StateError, match="alone"):
        Store.open(store.path)


@pytest.mark.requires_root
def test_another_user_reads_nothing(tmp_path: Path) -> None:
    """Also not by a name that it knows."""
    store = Store.open(tmp_path / "judge")
    blob = store.path / "blobs" / store.put(SECRET)[:2]
    tmp_path.chmod(0o755)
    for path in (store.path / "key", blob, store.path):
        run = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", "-l", path], capture_output=True
        )

        assert 0 != run.returncode
        assert b"ermission denied" in run.stderr
