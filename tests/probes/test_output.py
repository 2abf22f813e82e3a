"""Output that is too much, never ends, or is no text, and input that nobody reads: the call returns all the same."""

from __future__ import annotations

import signal

import psutil
import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox

MIB = 1 << 20

FLOODS = {
    "lines": "while True: write(b'y\\n' * 32768)",
    "one line": "while True: write(bytes(65536).replace(b'\\0', b'x'))",
    "NULs": "while True: write(bytes(65536))",
    "byte by byte": "while True: write(b'x')",
    "terminal codes": "while True: write(b'\\x1b]0;x\\x07\\x1b[2J\\r' * 4096)",
    "not UTF-8": "while True: write(bytes(range(128, 256)) * 512)",
    "children": "for _ in range(4): os.fork()\nwhile True: write(bytes(65536))",
}


def flood(way: str, stream: int) -> list[str]:
    """Return a command that writes without end."""
    return ["python3", "-c", f"import os\nwrite = lambda data: os.write({stream}, data)\n{FLOODS[way]}"]


@pytest.mark.parametrize("way", FLOODS)
@pytest.mark.parametrize("stream", [1, 2], ids=["stdout", "stderr"])
async def test_flood_ends_at_its_limit(sandbox: Sandbox, way: str, stream: int) -> None:
    """Row 47: the tree is killed, the rest is counted, what is kept is bounded, and the sandbox serves on."""
    before = psutil.Process().memory_info().rss
    most = 128 << 10 if way == "byte by byte" else 8 * MIB
    limits = Limits(stdout_bytes=most, stderr_bytes=most, output_kept_bytes=65536, wall_time_s=60)
    with trio.fail_after(80):
        result = await sandbox.run(flood(way, stream), limits=limits)
        after = await sandbox.run(["echo", "serves"])
    grown = psutil.Process().memory_info().rss - before
    kept, other = (result.stdout, result.stderr) if stream == 1 else (result.stderr, result.stdout)

    assert (ExitReason.OUTPUT, signal.SIGKILL) == (result.exit_reason, result.signal)
    assert [stream == 1, stream == 2] == [result.stdout_truncated, result.stderr_truncated]
    assert 65536 <= len(kept) <= 65536 + 200
    assert b"" == other
    assert most < (result.usage.stdout_bytes if stream == 1 else result.usage.stderr_bytes) < most + 16 * MIB
    assert grown < 16 * MIB
    assert b"serves\n" == after.stdout


@pytest.mark.parametrize("way", [way for way in FLOODS if way not in ("byte by byte", "children")])
async def test_flood_goes_on_with_the_defence_off(sandbox: Sandbox, way: str) -> None:
    """Row 47, defence off: without a limit on output it goes on until its time is up, and is far beyond that limit."""
    code = flood(way, 1)[-1].replace("while True", "while total < 16 << 20").replace("write(b", "total += write(b")
    code = "total = 0\n" + code
    limits = Limits(stdout_bytes=64 * MIB, output_kept_bytes=65536, wall_time_s=20)
    result = await sandbox.run(["python3", "-c", code], limits=limits)

    assert ExitReason.EXITED is result.exit_reason
    assert 16 * MIB <= result.usage.stdout_bytes
    assert result.stdout_truncated


@pytest.mark.parametrize(
    "command", ["exit 0", "sleep 0.2", "exec <&-; sleep 0.1", "head -c 1 >/dev/null", "cat >/dev/null"]
)
async def test_stdin_that_is_not_read_keeps_nobody_waiting(sandbox: Sandbox, command: str) -> None:
    """Row 47: 16 MiB for a program that reads none of it, some, or closes it. Who reads it all gets it all."""
    with trio.fail_after(10):
        result = await sandbox.run(command, stdin=bytes(16 * MIB))
        counted = await sandbox.run("wc -c", stdin=bytes(16 * MIB))

    assert ExitReason.EXITED is result.exit_reason
    assert str(16 * MIB) == counted.stdout.decode().strip()


HOLD = "(setsid sleep 60 &) ; echo over"


@pytest.mark.parametrize("redirect", ["", "1>&2", "2>&1"])
async def test_background_child_holds_nothing_up(sandbox: Sandbox, redirect: str) -> None:
    """Row 48: a child that has the pipes open does not keep the call from returning when the main process ends.

    Defence off: with the main process waiting for the child, the call waits as well.
    """
    with trio.fail_after(5):
        result = await sandbox.run(f"({HOLD}) {redirect}")
    with trio.move_on_after(0.5) as scope:
        await sandbox.run("sleep 60 & wait")

    assert ExitReason.EXITED is result.exit_reason
    assert b"over\n" == result.stdout + result.stderr
    assert result.usage.wall_time_s < 1
    assert scope.cancelled_caught


async def test_background_child_that_writes_is_not_listened_to(sandbox: Sandbox) -> None:
    """Row 48: what it writes after the grace goes nowhere, and it does not get at the next command's output."""
    with trio.fail_after(5):
        first = await sandbox.run("(setsid sh -c 'while :; do echo noise; done' &) ; echo first")
        second = await sandbox.run("echo second")

    assert first.stdout.startswith((b"first\n", b"noise\n"))
    assert b"second\n" == second.stdout
