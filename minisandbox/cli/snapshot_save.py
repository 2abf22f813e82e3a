"""`minisandbox snapshot save`: runs a command in a sandbox of its own, and stores what it leaves there."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from minisandbox.cli.options import add_sandbox_options, read_sandbox_options
from minisandbox.cli.output import exit_code_of, limit_reached, print_json, result_fields
from minisandbox.cli.run import Finish, print_notes, read_stdin, run_silent, run_streaming
from minisandbox.cli.signals import raising_signals, run_until_signal
from minisandbox.errors import UsageError
from minisandbox.images import StoredSnapshot
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

EXAMPLES = """examples:
  minisandbox snapshot save tools -- sh -c 'mkdir -p /work && cp -r /usr/share/doc /work'
  minisandbox snapshot save solved --snapshot tools --memory 2G --wall-time 600 -- sh /work/solve.sh
  minisandbox snapshot save built --rootfs busybox --bind "$PWD:/src" -- sh -c 'cp -r /src /built'
  minisandbox run --snapshot built -- ls /built

What the command leaves running is killed. When it fails, nothing is stored, and the exit code is its own.
Its output is passed on; with --json it is in the object that is printed."""


def add_action(actions: Any) -> None:
    """Add it to the actions of `minisandbox snapshot`."""
    parser = actions.add_parser(
        "save",
        help="run a command, and store what it leaves",
        description="Run a command in a sandbox of its own, and store what it leaves there as a snapshot.",
        epilog=EXAMPLES,
    )
    parser.usage = "%(prog)s NAME [OPTION ...] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("snapshot_name", metavar="NAME", help="what it will be called")
    add_sandbox_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(serve=serve, command=[])


def serve(options: argparse.Namespace) -> int:
    """Run the command and store the snapshot. Returns the command's exit code."""
    if not options.command:
        raise UsageError("no command to run; write it after --, as in: minisandbox snapshot save mine -- touch /mine")
    chosen = read_sandbox_options(options)
    with raising_signals():
        stdin = read_stdin()
    stored: list[StoredSnapshot] = []
    finish: Finish = partial(_save, options.snapshot_name, stored)
    run = run_silent if options.json else run_streaming
    result = run_until_signal(partial(run, chosen, options.command, stdin, finish))
    if options.json:
        saved = stored[0] if stored else None
        fields = {"name": saved.name, "digest": saved.digest} if saved else None
        print_json({"snapshot": fields, **result_fields(result)})
        return exit_code_of(result)
    said = f"{stored[0].name}: {stored[0].digest}" if stored else "the command failed, so nothing is stored"
    print_notes(result, [limit_reached(result), said])
    return exit_code_of(result)


async def _save(name: str, stored: list[StoredSnapshot], sandbox: Sandbox, result: Result) -> None:
    if not result.ok:
        return
    await sandbox.kill_all()
    async with await sandbox.snapshot() as snapshot:
        stored.append(await snapshot.save(name))
