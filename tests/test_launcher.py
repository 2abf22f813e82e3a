"""The launcher as a program: what it is, what it refuses, and that it ends with its supervisor."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from minisandbox.errors import BrokenError
from minisandbox.kernel.launcher import Launcher, open_launcher
from minisandbox.kernel.protocol import RecordKind, Request, Stage, decode_record
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import binary_path
from minisandbox.runtime.background import background

LAUNCHER_DIR = Path(binary_path()).parent
UID_BASE = 1 << 29


@contextlib.contextmanager
def raw_launcher() -> Iterator[tuple[socket.socket, int]]:
    """A launcher and our end of its socket, without the code that is to be tested in between."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    with theirs:
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        pid = os.posix_spawn(binary_path(), ["launcher", "serve", "4"], {}, file_actions=actions)
    try:
        with ours:
            yield ours, pid
    finally:
        os.waitpid(pid, 0)


def ask(sock: socket.socket, *words: str, fds: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Send raw words and return the record that comes back."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg(["".join(word + "\0" for word in words).encode()], ancillary)
    return decode_record(sock.recv(64))


def test_the_binary_is_static_and_hardened() -> None:
    """No interpreter to be replaced, no writable and executable stack, relocations read-only."""
    headers = subprocess.run(["readelf", "-lWd", binary_path()], capture_output=True, text=True, check=True).stdout

    assert "INTERP" not in headers
    assert (
        "DYN (Position-Independent" in headers
        or "Type:                              DYN" in headers
        or "PIE" in headers
    )
    assert "GNU_RELRO" in headers
    stack = next(line for line in headers.splitlines() if "GNU_STACK" in line)
    assert "RWE" not in stack


@pytest.mark.requires_root
@pytest.mark.parametrize(
    ("words", "fds", "error"),
    [
        (("nonsense",), 0, errno.EINVAL),
        (("",), 0, errno.EINVAL),
        (("slot", "--slot=4", "--uid-base=65536"), 0, errno.ERANGE),
        (("slot", "--slot=-1", "--uid-base=65536"), 0, errno.EINVAL),
        (("slot", "--slot=1", "--uid-base=4294967295"), 0, errno.ERANGE),
        (("slot", "--slot=1"), 0, errno.EINVAL),
        (("slot", "--slot=1", "--uid-base=65536", "--cwd=/"), 0, errno.EINVAL),
        (("start", "--slot=1", "--hostname=x"), 0, errno.EINVAL),
        (("start", "--slot=1", "--hostname=x", "--control", "--layer"), 1, errno.EBADF),
        (("end", "--slot=1"), 3, errno.EBADF),
        (("listen", "--slot=1", "--id=1"), 0, errno.EINVAL),
        (("listen", "--slot=1", "--id=1", "--port=0"), 0, errno.EINVAL),
        (("listen", "--slot=1", "--id=1", "--port=65536"), 0, errno.ERANGE),
        (("listen", "--slot=4", "--id=1", "--port=80"), 0, errno.ERANGE),
        (("run", "--id=1", "--cwd=/", "--stdio", "--stdio", "--stdio", "--", "true"), 3, errno.EINVAL),
        (("start", "--slot=1", "--hostname=" + "x" * 65, "--control", "--layer"), 2, errno.EINVAL),
    ],
)
def test_a_wrong_request_is_refused_and_the_launcher_serves_on(words: tuple[str, ...], fds: int, error: int) -> None:
    """Each gets a FAILED record of the request stage; descriptors that were counted wrong are never used."""
    with raw_launcher() as (sock, _pid), open(os.devnull, "rb") as null:
        kind, stage, _id, got, _item, _value, _time = ask(sock, *words, fds=(null.fileno(),) * fds)
        after = ask(sock, "configure", "--warden-gid=5")

    assert (RecordKind.FAILED, Stage.REQUEST, error) == (kind, stage, got)
    assert after[0] == RecordKind.HELLO


@pytest.mark.requires_root
def test_there_is_no_listener_where_no_sandbox_runs() -> None:
    """Neither in a slot that is not there, nor in one that is free, and the launcher stays in its own network."""
    with raw_launcher() as (sock, pid):
        answers = [ask(sock, "listen", "--slot=1", "--id=7", "--port=1021")]
        ask(sock, "slot", "--slot=1", f"--uid-base={UID_BASE}")
        answers.append(ask(sock, "listen", "--slot=1", "--id=7", "--port=1021"))
        network = os.readlink(f"/proc/{pid}/ns/net")

    assert [(RecordKind.FAILED, Stage.LISTEN, 7, errno.ESRCH)] * 2 == [answer[:4] for answer in answers]
    assert os.readlink("/proc/self/ns/net") == network


@pytest.mark.requires_root
def test_descriptors_of_a_refused_request_are_closed() -> None:
    """A thousand wrong requests with descriptors leave the launcher with as many as before."""
    with raw_launcher() as (sock, pid), open(os.devnull, "rb") as null:
        ask(sock, "configure", "--warden-gid=5")
        before = len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(1000):
            ask(sock, "end", "--slot=1", fds=(null.fileno(),) * 4)
        ask(sock, "end", "--slot=1")  # it answers before it closes what came along
        after = len(os.listdir(f"/proc/{pid}/fd"))

    assert before == after


@pytest.mark.requires_root
def test_it_runs_from_a_sealed_memory_file() -> None:
    """Whoever reaches /proc/PID/exe cannot change the binary on disk: it is not the file that runs."""
    with raw_launcher() as (sock, pid):
        ask(sock, "configure", "--warden-gid=5")
        link = os.readlink(f"/proc/{pid}/exe")
        with pytest.raises(OSError, match=r"Text file busy|Operation not permitted"):
            os.close(os.open(f"/proc/{pid}/exe", os.O_WRONLY))

    assert link.startswith("/memfd:minisandbox-launcher")


@pytest.mark.requires_root
def test_its_mount_namespace_is_small_and_its_own() -> None:
    """Each mount in it would be copied at every start."""
    with raw_launcher() as (sock, pid):
        ask(sock, "configure", "--warden-gid=5")
        mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()

    assert 1 <= len(mounts) <= 2  # the second one is only there before Linux 6.15
    assert all(" ro," in mount for mount in mounts)


@pytest.mark.requires_root
def test_it_ends_with_its_supervisor() -> None:
    """The end of the socket is the end of the launcher."""
    with raw_launcher() as (sock, pid):
        ask(sock, "configure", "--warden-gid=5")
        ended = os.pidfd_open(pid)
        sock.close()
        readable, _, _ = select.select([ended], [], [], 10)
        os.close(ended)

    assert readable


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Launcher]:
    """A launcher behind the class that the supervisor uses."""
    reactor = Reactor()
    async with background(reactor.run):
        with open(os.devnull, "rb") as lock:
            launcher = await open_launcher(
                binary_path(),
                reactor,
                slots=4,
                lock_fd=lock.fileno(),
                inits_fds=(),
                warden_gid=5,
            )
            try:
                yield launcher
            finally:
                await launcher.aclose()
    reactor.close()


@pytest.mark.requires_root
async def test_a_slot_is_made_once() -> None:
    """A second request for the same slot is an error of ours, with its stage."""
    async with opened() as launcher:
        assert isinstance(launcher, Launcher)
        await launcher.make_slot(0, UID_BASE)
        with pytest.raises(Exception, match="File exists") as caught:
            await launcher.make_slot(0, UID_BASE)

    assert getattr(caught.value, "stage", None) == "request"


@pytest.mark.requires_root
async def test_a_killed_launcher_is_noticed_and_answers_nothing() -> None:
    """Who waits for it gets BrokenError at once, and so does who asks later."""
    async with opened() as launcher:
        assert isinstance(launcher, Launcher)
        os.kill(launcher.pid, signal.SIGKILL)
        with trio.fail_after(10):
            with pytest.raises(BrokenError):
                while True:
                    await launcher.make_slot(1, UID_BASE)
        with pytest.raises(BrokenError):
            await launcher.send(Request("end").option("slot", 1))


@pytest.mark.requires_root
async def test_descriptors_of_the_supervisor_do_not_reach_it() -> None:
    """Not even one that the embedding program made inheritable, whatever its number."""
    leaked = os.open("/", os.O_RDONLY)
    high = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)
    os.dup2(leaked, high, inheritable=True)
    try:
        async with opened() as launcher:
            assert isinstance(launcher, Launcher)
            held = {os.readlink(f"/proc/{launcher.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{launcher.pid}/fd")}
    finally:
        os.close(leaked)
        os.close(high)

    assert "/" not in held


@pytest.mark.slow
def test_the_request_parser_withstands_mutated_requests(tmp_path: Path) -> None:
    """Seconds of mutations of the kept corpus under ASan and UBSan give no finding."""
    subprocess.run(["make", "-s", "-C", LAUNCHER_DIR, "fuzz"], check=True)
    fuzz = LAUNCHER_DIR / "fuzz"
    done = subprocess.run(
        [fuzz / "words_fuzz", "4", fuzz / "corpus"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "no finding" in done.stdout
