"""`minisandbox run`: one command in a sandbox of its own, its output passed on as it comes, or all of it as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from minisandbox.cli.options import SandboxOptions, add_command, add_sandbox_options, read_sandbox_options
from minisandbox.cli.outlet import Outlet
from minisandbox.cli.output import exit_code_of, limit_reached, print_json, result_fields, timing_text
from minisandbox.cli.session import open_session
from minisandbox.cli.signals import raising_signals, run_until_signal
from minisandbox.errors import UsageError
from minisandbox.runtime.command import OnData
from minisandbox.runtime.disk import Disk
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

Finish = Callable[[Sandbox, Result], Awaitable[None]]
"""What is done with a sandbox after its command."""

STDIN_MAX_BYTES = 64 << 20
"""All of stdin is read before the start, so there must be an end to it."""

EXAMPLES = """examples:
  minisandbox run -- python3 -c 'print(6 * 7)'
  minisandbox run --memory 256M --wall-time 5 --processes 32 -- ./a.out     (with --bind "$PWD:/work" --cwd /work)
  minisandbox run --policy strict --json -- python3 - < program.py
  minisandbox run --rootfs busybox -- ls -la /
  minisandbox run --template numbers -- -c 'print(1)'      (see: minisandbox template --help)
  minisandbox run --python-prefix ~/.pyenv/versions/3.12.4 -- python3 --version

stdin is read to its end first, 64 MiB at most; a terminal counts as empty (use `minisandbox shell`).
The exit code is the program's, 128 + N after signal N. When a limit ended it, a line on stderr says which.
With --json, stdout and stderr are text; what is not UTF-8 is in stdout_base64 and stderr_base64, and the text is null.
Failures of minisandbox itself exit with 125 (126: cannot be executed, 127: not found); with --json they are
{"error": {"kind": ..., "message": ..., "stage": ..., "errno": ...}}."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "run",
        help="run a command in a sandbox of its own",
        description="Run a command in a sandbox of its own.",
        epilog=EXAMPLES,
    )
    add_sandbox_options(parser)
    add_command(parser)
    parser.add_argument(
        "--template", metavar="NAME", help="a fork of this warm Python; the command is -c CODE or FILE, and arguments"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the command's output")
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if not options.command:
        raise UsageError("no command to run; write it after --, as in: minisandbox run -- ls /")
    chosen = dataclasses.replace(read_sandbox_options(options), template=options.template)
    _check_template(options, chosen)
    with raising_signals():
        stdin = read_stdin()
    if options.json:
        result = run_until_signal(partial(run_silent, chosen, options.command, stdin))
        print_json(result_fields(result))
        return exit_code_of(result)
    result = run_until_signal(partial(run_streaming, chosen, options.command, stdin))
    print_notes(result, [limit_reached(result), timing_text(result.timing) if chosen.trace else None])
    return exit_code_of(result)


def print_notes(result: Result, notes: Sequence[str | None]) -> None:
    """Print lines of ours on stderr, after what the command printed there."""
    if any(notes) and result.stderr and not result.stderr.endswith(b"\n"):
        print(file=sys.stderr)
    for note in filter(None, notes):
        print(f"minisandbox: {note}", file=sys.stderr)


def read_stdin() -> bytes:
    """Return all of stdin, or nothing when it is a terminal. Raises UsageError when it is larger than 64 MiB."""
    if os.isatty(0):
        return b""
    data = bytearray()
    try:
        while chunk := os.read(0, 1 << 20):
            data += chunk
            if len(data) > STDIN_MAX_BYTES:
                raise UsageError(f"stdin is larger than {STDIN_MAX_BYTES >> 20} MiB; show it as a file with --bind")
    except OSError as error:
        raise UsageError(
            f"cannot read stdin: {error.strerror}; redirect it from a file, a pipe or /dev/null"
        ) from error
    return bytes(data)


def _check_template(options: argparse.Namespace, chosen: SandboxOptions) -> None:
    """The root file system of a template is its own, and so is what it runs."""
    if chosen.template is None:
        return
    own = options.rootfs or chosen.snapshot or options.python_prefix or options.bind
    if chosen.deterministic or chosen.disk is not Disk.MEMORY:
        raise UsageError("a fork of a template can neither be deterministic nor write to disk; leave the option out")
    if own or options.command[0] == "-":
        raise UsageError("--template has its own rootfs, Python and binds; give -c CODE or FILE after --")
    if options.command[0] == "-c" and len(options.command) < 2:
        raise UsageError("no code after -c, as in: minisandbox run --template NAME -- -c 'print(1)'")


async def _start(
    chosen: SandboxOptions,
    sandbox: Sandbox,
    command: list[str],
    stdin: bytes,
    on_stdout: OnData | None = None,
    on_stderr: OnData | None = None,
) -> Result:
    if chosen.template is None:
        return await sandbox.run(command, stdin=stdin, cwd=chosen.cwd, on_stdout=on_stdout, on_stderr=on_stderr)
    code, file, argv = (command[1], None, command[2:]) if command[0] == "-c" else (None, command[0], command[1:])
    return await sandbox.run_warm(
        code, file=file, argv=argv, stdin=stdin, cwd=chosen.cwd, on_stdout=on_stdout, on_stderr=on_stderr
    )


async def _end(sandbox: Sandbox, result: Result) -> None:
    """Do nothing more with a sandbox."""


async def run_silent(chosen: SandboxOptions, command: list[str], stdin: bytes, finish: Finish = _end) -> Result:
    """Run a command, then call `finish` while its sandbox is open."""
    async with open_session(chosen) as sandbox:
        result = await _start(chosen, sandbox, command, stdin)
        await finish(sandbox, result)
        return result


async def run_streaming(chosen: SandboxOptions, command: list[str], stdin: bytes, finish: Finish = _end) -> Result:
    """Run a command and pass on what it prints, then call `finish` while its sandbox is open.

    A reader that went away ends the command, as SIGPIPE would.
    """
    stdout, stderr = outlets = Outlet(1), Outlet(2)
    async with open_session(chosen) as sandbox:
        result = await _start(chosen, sandbox, command, stdin, stdout.write, stderr.write)
        await finish(sandbox, result)
    for outlet in outlets:
        try:
            await trio.to_thread.run_sync(outlet.finish, abandon_on_cancel=True)
        except BrokenPipeError:
            if limit_reached(result) is None:  # the limit ended it before it could notice
                raise
    return result
