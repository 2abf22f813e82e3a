"""What a command writes: complete, exact, bounded, and never a reason to wait for somebody else."""

from __future__ import annotations

import time

import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox
from tests import observer

PROMPT_S = 10.0
"""Far less than the sleepers below, and far more than a busy machine needs."""


async def test_a_megabyte_comes_whole_within_a_second(sandbox: Sandbox) -> None:
    """Report 21: a program that prints more than a pipe holds is read while it runs."""
    result = await sandbox.run(["python3", "-c", 'print("x" * 1_000_000)'], limits=Limits(wall_time_s=10))

    assert (1_000_001, False) == (result.usage.stdout_bytes, result.stdout_truncated)
    assert b"x" * 1_000_000 + b"\n" == result.stdout
    assert result.usage.wall_time_s < 1.0


async def test_stderr_is_read_too(sandbox: Sandbox) -> None:
    """Report 26: 300 KB on stderr do not hold up stdout."""
    result = await sandbox.run("head -c 300000 /dev/zero >&2; echo ok")

    assert (b"ok\n", bytes(300_000)) == (result.stdout, result.stderr)


async def test_both_streams_are_read_at_once(sandbox: Sandbox) -> None:
    """Tool report 54: a megabyte on each, in turns."""
    script = "import os\nfor _ in range(64): os.write(1, b'o' * 16384); os.write(2, b'e' * 16384)"
    result = await sandbox.run(["python3", "-c", script])

    assert (b"o" * (1 << 20), b"e" * (1 << 20)) == (result.stdout, result.stderr)


async def test_bytes_that_are_no_text_come_as_they_are(sandbox: Sandbox) -> None:
    """Report 22: nothing is decoded."""
    result = await sandbox.run(["printf", r"\377\376\303(\0\r\n\033"])

    assert result.stdout == b"\xff\xfe\xc3(\0\r\n\x1b"


async def test_characters_are_whole_across_chunks(sandbox: Sandbox) -> None:
    """Report 23: live chunks may end anywhere; together they are the very bytes that were written."""
    chunks: list[bytes] = []
    script = "import sys\nfor _ in range(100): sys.stdout.buffer.write('☕'.encode() * 1000); sys.stdout.flush()"
    result = await sandbox.run(["python3", "-c", script], on_stdout=chunks.append)

    assert "☕" * 100_000 == result.stdout.decode()
    assert b"".join(chunks) == result.stdout


async def test_output_is_seen_while_the_command_runs(sandbox: Sandbox) -> None:
    """A live reader gets what was written to either stream long before the end."""
    complained = trio.Event()

    def on_stderr(_chunk: bytes) -> None:
        complained.set()

    async with trio.open_nursery() as nursery:
        script = "echo first; echo oops >&2; exec sleep 300"
        running = await observer.start(nursery, sandbox, script, on_stderr=on_stderr)
        with trio.fail_after(PROMPT_S):
            await complained.wait()
        seen = running.ended.is_set()
        nursery.cancel_scope.cancel()

    assert not seen


async def test_a_reader_that_fails_ends_the_command(sandbox: Sandbox) -> None:
    """What the caller's own function raises comes out of `run`, and the sandbox can be used on."""

    def fail(_chunk: bytes) -> None:
        raise ZeroDivisionError("of the caller")

    with trio.fail_after(PROMPT_S), pytest.raises(ZeroDivisionError, match="of the caller"):
        await sandbox.run("echo x; exec sleep 60", on_stdout=fail)
    again = await sandbox.run(["echo", "alive"])

    assert again.stdout == b"alive\n"


async def test_a_slow_reader_holds_the_command_and_loses_nothing(sandbox: Sandbox) -> None:
    """A reader that returns an event is given nothing more until it is set, also when the command is over by then."""
    chunks: list[bytes] = []
    resume = trio.Event()

    def pause(chunk: bytes) -> trio.Event:
        chunks.append(chunk)
        return resume

    script = "printf x; until [ -e /tmp/go ]; do :; done; head -c 60000 /dev/zero"  # the rest fits into the pipe
    async with trio.open_nursery() as nursery:
        running = await observer.start(nursery, sandbox, script, on_stdout=pause)
        with observer.watched(observer.workload()) as pidfds:
            await sandbox.write_file("/tmp/go", b"")
            await observer.wait_ended(pidfds)
        await sandbox.run(["sleep", "0.3"])  # longer than a background process would be waited for
        resume.set()
        result = (await running.wait()).result

    assert result is not None
    assert b"x" + bytes(60_000) == result.stdout == b"".join(chunks)


@pytest.mark.parametrize(
    "script",
    ["(sleep 300 &) ; echo done", "sleep 300 & echo done", "setsid sh -c 'sleep 300' & echo done"],
)
async def test_a_background_process_that_holds_the_pipe_is_not_waited_for(sandbox: Sandbox, script: str) -> None:
    """Reports 29, 30: `run` returns at the end of the main process, with all that was written."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(script)

    assert (b"done\n", ExitReason.EXITED, 0) == (result.stdout, result.exit_reason, result.exit_code)
    assert observer.workload()


async def test_a_timed_out_command_does_not_wait_for_what_left_its_session(sandbox: Sandbox) -> None:
    """Report 30: the time-out kills what holds the pipe as well, and returns."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run("setsid sh -c 'sleep 300' & sleep 300", limits=Limits(wall_time_s=0.2))

    assert result.exit_reason is ExitReason.WALL_TIME
    await observer.wait_no_workload(sandbox)


async def test_a_flood_from_the_background_is_cut_off(sandbox: Sandbox) -> None:
    """A child that goes on writing keeps `run` for a short grace only."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run("yes & read x </dev/null; echo main >&2", limits=Limits(stdout_bytes=1 << 40))

    assert (b"main\n", ExitReason.EXITED) == (result.stderr, result.exit_reason)


@pytest.mark.parametrize(("redirect", "limit"), [("1>&1", "stdout_bytes"), (">&2", "stderr_bytes")])
async def test_a_flood_ends_at_its_limit(sandbox: Sandbox, redirect: str, limit: str) -> None:
    """Tool report 24: each stream has its own limit, for pipes too; what is beyond is counted but not kept."""
    limits = Limits(**{limit: 1 << 20}, output_kept_bytes=2000)
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(f"yes {redirect}", limits=limits)
    usage = result.usage
    total, kept = (
        (usage.stdout_bytes, result.stdout) if limit == "stdout_bytes" else (usage.stderr_bytes, result.stderr)
    )

    assert result.exit_reason is ExitReason.OUTPUT
    assert 1 << 20 < total <= 3 << 20
    assert kept.startswith(b"y\n" * 500)
    assert len(kept) < 2100


async def test_as_much_as_the_limit_is_allowed(sandbox: Sandbox) -> None:
    """The limit itself is no excess, one byte more is, even of a program that ended by itself."""
    limits = Limits(stdout_bytes=4)
    results = [await sandbox.run(["printf", "%s", word], limits=limits) for word in ("1234", "12345")]

    assert [ExitReason.EXITED, ExitReason.OUTPUT] == [result.exit_reason for result in results]


async def test_the_beginning_and_the_end_are_kept(sandbox: Sandbox) -> None:
    """Between them stands how much is missing; the totals count everything."""
    result = await sandbox.run(["seq", "100000"], limits=Limits(output_kept_bytes=100))
    everything = b"".join(b"%d\n" % number for number in range(1, 100_001))
    between = b"\n[minisandbox: %d bytes omitted]\n" % (len(everything) - 100)

    assert everything[:50] + between + everything[-50:] == result.stdout
    assert (len(everything), True) == (result.usage.stdout_bytes, result.stdout_truncated)
    assert not result.stderr_truncated


@pytest.mark.parametrize("kept", [1, 2, 3, 9, 10, 11])
async def test_output_that_fits_is_kept_whole(sandbox: Sandbox, kept: int) -> None:
    """It is truncated when it is longer than what is to be kept, and only then."""
    result = await sandbox.run(["printf", "0123456789"[:kept]], limits=Limits(output_kept_bytes=kept))
    longer = await sandbox.run(["printf", "0123456789ab"[: kept + 1]], limits=Limits(output_kept_bytes=kept))

    assert (b"0123456789"[:kept], False) == (result.stdout, result.stdout_truncated)
    assert longer.stdout_truncated


@pytest.mark.slow
async def test_a_line_of_a_gigabyte_is_counted_in_little_memory(sandbox: Sandbox) -> None:
    """Nothing grows with the output: neither what is kept nor the time for each byte."""
    script = "import os\nchunk = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, chunk)"
    started = time.monotonic()
    result = await sandbox.run(["python3", "-c", script], limits=Limits(stdout_bytes=2 << 30, output_kept_bytes=1000))

    assert (1 << 30, ExitReason.EXITED) == (result.usage.stdout_bytes, result.exit_reason)
    assert len(result.stdout) < 1100
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("program", ["true", "exec sleep 0.05", "head -c 3", "exec 0<&-; exec sleep 0.05"])
async def test_stdin_that_is_not_read_holds_nothing_up(sandbox: Sandbox, program: str) -> None:
    """16 MB are offered; a program that takes none or little of it ends when it wants to."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(program, stdin=b"x" * (16 << 20))

    assert (ExitReason.EXITED, 0) == (result.exit_reason, result.exit_code)


async def test_a_program_may_close_its_output(sandbox: Sandbox) -> None:
    """The end of the streams is not the end of the command."""
    result = await sandbox.run("exec >&- 2>&-; sleep 0.1; exit 3")

    assert (b"", b"", 3) == (result.stdout, result.stderr, result.exit_code)


async def test_an_enlarged_pipe_is_read_to_its_end(sandbox: Sandbox) -> None:
    """A megabyte that a program leaves in its pipe when it ends is not lost."""
    script = "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)\nos.write(1, bytes(1 << 20))\nos._exit(0)"
    result = await sandbox.run(["python3", "-c", script])

    assert (1 << 20, 0) == (len(result.stdout), result.exit_code)


async def test_every_pipe_is_closed_afterwards(sandbox: Sandbox) -> None:
    """Fifty commands of all kinds leave as many descriptors open as there were."""
    await sandbox.run("true", stdin=b"x")
    before = observer.descriptors()
    for number in range(50):
        await sandbox.run(["echo", "x"], stdin=b"x" * number * 10_000, on_stdout=bytes, on_stderr=bytes)
    await sandbox.run("yes", limits=Limits(stdout_bytes=1000))
    await sandbox.run("sleep 300 & echo")

    assert before == observer.descriptors()
