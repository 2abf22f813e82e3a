"""Commands that are talked to while they run: on a terminal of the sandbox, or through pipes."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, StartError, Supervisor, Terminal
from tests import observer

PROMPT_S = 20.0


@pytest.fixture
async def sandbox(supervisor: Supervisor) -> AsyncIterator[Sandbox]:
    """An open sandbox that may have terminals."""
    async with supervisor.open_sandbox(terminal=True) as opened:
        yield opened


async def read_until(terminal: Terminal, wanted: bytes) -> bytes:
    """Return what is printed until the wanted bytes, or the end."""
    seen = b""
    with trio.fail_after(PROMPT_S):
        while wanted not in seen and (chunk := await terminal.receive_some()):
            seen += chunk
    return seen


async def read_all(terminal: Terminal) -> bytes:
    """Return everything that is printed until nobody has the terminal open any more."""
    return await read_until(terminal, b"\0 never \0")


async def test_a_command_has_a_terminal(sandbox: Sandbox) -> None:
    """Its three streams are one terminal of the sandbox's own, and it is the controlling one."""
    script = "tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo yes > /dev/tty; ls /dev/pts"
    async with await sandbox.open_terminal(script) as terminal:
        printed = await read_all(terminal)
        result = await terminal.wait()

    assert printed == b"/dev/pts/0\r\nall\r\nyes\r\n0  ptmx\r\n"
    assert (ExitReason.EXITED, 0) == (result.exit_reason, result.exit_code)


async def test_what_is_typed_is_read(sandbox: Sandbox) -> None:
    """With echo and line editing, as the kernel's terminals have."""
    async with await sandbox.open_terminal(["cat"]) as terminal:
        await terminal.send_all(b"hellp\x7fo\n")
        echoed = await read_until(terminal, b"hello\r\n")
        await terminal.send_all(b"\x04")
        result = await terminal.wait()

    assert echoed == b"hellp\x08 \x08o\r\nhello\r\n"
    assert result.exit_code == 0


async def test_its_size_is_the_one_given(sandbox: Sandbox) -> None:
    """At the start, and after a change of it, of which the program is told by SIGWINCH."""
    script = "stty size; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    async with await sandbox.open_terminal(script, columns=100, rows=30) as terminal:
        first = await read_until(terminal, b"ready\r\n")
        terminal.resize(132, 43)
        second = await read_all(terminal)

    assert (b"30 100\r\nready\r\n", b"43 132\r\n") == (first, second)


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
async def test_a_key_interrupts_the_foreground(sandbox: Sandbox, key: bytes, number: int) -> None:
    """Ctrl-C ends a program that does not care for it, and a shell goes on after it."""
    async with await sandbox.open_terminal("echo on; exec sleep 300") as terminal:
        await read_until(terminal, b"on\r\n")
        await terminal.send_all(key)
        with trio.fail_after(PROMPT_S):
            result = await terminal.wait()

    assert (ExitReason.SIGNALED, number) == (result.exit_reason, result.signal)


def in_foreground() -> bool:
    """Return whether the job of a shell has the terminal: it takes it between fork and exec."""
    return "sleep" in map(observer.name_of, observer.workload())


async def test_an_interactive_shell_works(sandbox: Sandbox) -> None:
    """Job control without complaint; Ctrl-C reaches its foreground job alone; its exit code is that of the command."""
    async with await sandbox.open_terminal(["bash", "--norc", "-i"], env={"PS1": "> "}) as terminal:
        await read_until(terminal, b"> ")
        await terminal.send_all(b"sleep 300\n")
        await read_until(terminal, b"300\r\n")
        await observer.wait_until(in_foreground, trio.lowlevel.checkpoint)
        await terminal.send_all(b"\x03")
        await read_until(terminal, b"> ")
        await terminal.send_all(b"exit 7\n")
        rest = await read_all(terminal)
        result = await terminal.wait()

    assert b"job control" not in rest
    assert (ExitReason.EXITED, 7) == (result.exit_reason, result.exit_code)


@pytest.mark.slow
async def test_50_megabytes_come_through_intact(sandbox: Sandbox) -> None:
    """Report 25: nothing is lost at the end, and it takes seconds, not minutes."""
    size = 50_000_000
    script = f"stty raw; head -c {size} /dev/zero | tr '\\0' x; printf END"
    count, last = 0, b""
    async with await sandbox.open_terminal(script) as terminal:
        with trio.fail_after(60):
            while chunk := await terminal.receive_some():
                count += len(chunk)
                last = (last + chunk)[-4:]
        result = await terminal.wait()

    assert (size + 3, b"xEND", 0) == (count, last, result.exit_code)


async def test_closing_a_terminal_kills_what_is_on_it(sandbox: Sandbox) -> None:
    """Even what ignores the hang-up, in the background too."""
    async with await sandbox.open_terminal("trap '' HUP; setsid sleep 300 & echo on; sleep 300") as terminal:
        await read_until(terminal, b"on\r\n")
        pids = observer.workload()
        with observer.watched(pids) as pidfds:
            await terminal.aclose()
            await observer.wait_ended(pidfds)

    assert len(pids) >= 2  # the last of them may not have begun when the line was read
    assert (await sandbox.run(["true"])).ok


async def test_limits_hold_on_a_terminal(sandbox: Sandbox) -> None:
    """Wall time ends it whether or not anybody reads or waits."""
    async with await sandbox.open_terminal(["sleep", "300"], limits=Limits(wall_time_s=0.2)) as terminal:
        with trio.fail_after(PROMPT_S):
            result = await terminal.wait()

    assert result.exit_reason is ExitReason.WALL_TIME


async def test_nothing_can_be_typed_for_somebody_else(sandbox: Sandbox) -> None:
    """Tool report 48: neither TIOCSTI, nor with bits above the 32 that the kernel looks at, nor TIOCLINUX."""
    script = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for request in (0x5412, 0x5412 | 1 << 32, 0x541C, 0x541C | 7 << 40):\n"
        "    print(libc.ioctl(0, ctypes.c_ulong(request), b'x'), ctypes.get_errno())\n"
    )
    async with await sandbox.open_terminal(["python3", "-c", script]) as terminal:
        printed = await read_all(terminal)

    assert printed == b"-1 1\r\n" * 4


async def test_a_terminal_needs_a_sandbox_that_has_them(supervisor: Supervisor) -> None:
    """The error says how to get one, and the sandbox can be used on."""
    async with supervisor.open_sandbox() as plain:
        with pytest.raises(StartError, match="terminal=True"):
            await plain.open_terminal(["true"])

        assert (await plain.run(["echo", "alive"])).stdout == b"alive\n"


async def test_terminals_are_given_back(sandbox: Sandbox) -> None:
    """Twenty of them, ended in all ways, leave no descriptor open."""
    async with await sandbox.open_terminal(["true"]) as terminal:
        await terminal.wait()
    before = observer.descriptors()
    for number in range(20):
        with trio.move_on_after(number / 1000):
            async with await sandbox.open_terminal("echo on; exec sleep 300") as terminal:
                await terminal.receive_some()
    async with await sandbox.open_terminal(["echo", "x"]) as terminal:
        printed = await read_all(terminal)

    assert printed == b"x\r\n"
    assert before == observer.descriptors()


# ---- pipes


async def test_a_process_is_talked_to_through_pipes(sandbox: Sandbox) -> None:
    """Lines go in and come out while it runs; the end of its stdin ends it."""
    async with await sandbox.start(["cat"]) as process:
        with trio.fail_after(PROMPT_S):
            await process.stdin.send_all(b"one\n")
            first = await process.stdout.receive_some()
            await process.stdin.aclose()
            rest = b"".join([chunk async for chunk in process.stdout])
            result = await process.wait()

    assert (b"one\n", b"", True) == (first, rest, result.ok)


async def test_a_process_that_nobody_reads_waits(sandbox: Sandbox) -> None:
    """Nothing is kept for a slow reader, and nothing lost."""
    async with await sandbox.start("head -c 1000000 /dev/zero; echo END >&2") as process:
        with trio.fail_after(PROMPT_S):
            read = 0
            async for chunk in process.stdout:
                read += len(chunk)
            error = await process.stderr.receive_some()
            result = await process.wait()

    assert (1_000_000, b"END\n", 0) == (read, error, result.exit_code)


async def test_a_process_is_killed_with_its_tree(sandbox: Sandbox) -> None:
    """By `kill`, or by leaving the block; another signal goes to the main process alone."""
    async with await sandbox.start("trap 'exit 5' TERM; sleep 300 & echo on; wait") as process:
        await process.stdout.receive_some()
        await process.kill(signal.SIGTERM)
        with trio.fail_after(PROMPT_S):
            politely = await process.wait()
    async with await sandbox.start("setsid sleep 300 & echo on; exec sleep 300") as process:
        await process.stdout.receive_some()
        with observer.watched(observer.workload()) as pidfds:
            await process.kill()
            await observer.wait_ended(pidfds)
            killed = await process.wait()
    usage = (await sandbox.run(["true"])).usage

    assert (5, signal.SIGKILL) == (politely.exit_code, killed.signal)
    assert usage.memory_peak_bytes is None or usage.memory_peak_bytes < 8 << 20
