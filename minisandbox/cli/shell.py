"""`minisandbox shell`: a person at a terminal in a sandbox. Our own is raw meanwhile, and restored at the end."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import trio

from minisandbox.cli.options import SandboxOptions, add_command, add_sandbox_options, read_sandbox_options
from minisandbox.cli.output import exit_code_of, limit_reached
from minisandbox.cli.session import open_session
from minisandbox.cli.signals import run_until_signal
from minisandbox.errors import SandboxError, UsageError
from minisandbox.runtime.process import Terminal
from minisandbox.spec import Result

EXAMPLES = """examples:
  minisandbox shell
  minisandbox shell --rootfs busybox --memory 256M
  minisandbox shell --bind ~/project:/work:rw --cwd /work
  minisandbox shell -- python3

It needs a terminal. Without a command it starts /bin/bash, or /bin/sh where there is none.
The exit code is the program's. A person may take hours: the policy's wall-time and CPU-time limits do not hold here,
only those given on the command line."""

SHELL = ("/bin/sh", "-c", "if [ -x /bin/bash ]; then exec /bin/bash; fi; exec /bin/sh")

LINGER_S = 0.2
"""How long the last output is waited for when background processes keep the terminal open."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "shell",
        help="a terminal in a sandbox",
        description="Work in a sandbox by hand, on a terminal.",
        epilog=EXAMPLES,
    )
    add_sandbox_options(parser)
    add_command(parser)
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Give the terminal to the sandbox until its shell ends, and return its exit code."""
    if not os.isatty(0):
        raise UsageError("stdin is no terminal, and a shell needs one; use `minisandbox run` for commands in a script")
    chosen = read_sandbox_options(options)
    result = run_until_signal(partial(_serve, _for_a_person(chosen, vars(options)), options.command or SHELL))
    if reason := limit_reached(result):
        print(f"minisandbox: {reason}", file=sys.stderr)
    return exit_code_of(result)


def _for_a_person(chosen: SandboxOptions, given: dict[str, object]) -> SandboxOptions:
    """Return the options with a terminal, its kind as TERM, and no limit of time but those that were given."""
    timeless = {field: None for field in ("wall_time_s", "cpu_time_s") if field not in given}
    limits = msgspec.structs.replace(chosen.policy.limits, **timeless)
    return replace(
        chosen,
        terminal=True,
        env={"TERM": os.environ.get("TERM", "linux"), **chosen.env},
        policy=msgspec.structs.replace(chosen.policy, limits=limits),
    )


async def _serve(chosen: SandboxOptions, command: Sequence[str]) -> Result:
    columns, rows = os.get_terminal_size(0)
    async with open_session(chosen) as sandbox:
        terminal = await sandbox.open_terminal(command, columns=columns, rows=rows, cwd=chosen.cwd)
        async with terminal:
            with raw_mode(0):
                return await _connect(terminal)


@contextlib.contextmanager
def raw_mode(fd: int) -> Iterator[None]:
    """Let every key pass through the terminal for the block: Ctrl-C is the sandbox's."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def _connect(terminal: Terminal) -> Result:
    """Pass keys, output and size between the two terminals until the command ends."""
    outcome: Result | SandboxError
    async with trio.open_nursery() as nursery:
        printed = trio.Event()
        nursery.start_soon(_pass_keys, terminal)
        nursery.start_soon(_pass_output, terminal, printed)
        nursery.start_soon(_pass_size, terminal)
        try:
            outcome = await terminal.wait()
        except SandboxError as error:  # out of the nursery it would come as a group
            outcome = error
        with trio.move_on_after(LINGER_S):
            await printed.wait()
        nursery.cancel_scope.cancel()
    if isinstance(outcome, SandboxError):
        raise outcome
    return outcome


async def _pass_keys(terminal: Terminal) -> None:
    """Pass keys on. When our terminal is gone, none will ever come, so the command is ended."""
    while True:
        await trio.lowlevel.wait_readable(0)
        try:
            keys = os.read(0, 65536)
        except OSError:
            keys = b""
        if not keys:
            return await terminal.kill()
        await terminal.send_all(keys)


async def _pass_output(terminal: Terminal, printed: trio.Event) -> None:
    try:
        while data := await terminal.receive_some():
            await trio.to_thread.run_sync(_write_all, data, abandon_on_cancel=True)
    except OSError:  # our terminal is gone
        await terminal.kill()
    printed.set()


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


async def _pass_size(terminal: Terminal) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            columns, rows = os.get_terminal_size(0)
            terminal.resize(columns, rows)
