"""The command `minisandbox`: its parser, and what becomes of errors and signals. The commands are modules beside it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from minisandbox.cli import (
    doctor,
    export,
    judge,
    policy,
    recover,
    report,
    rollout,
    rootfs,
    run,
    shell,
    show,
    snapshot,
    task,
    template,
    top,
)
from minisandbox.cli.output import print_error, print_json
from minisandbox.cli.signals import Interrupted
from minisandbox.errors import LAUNCHER_EXIT, SandboxError, UsageError, exit_code

PROGRAM_COMMANDS = ("run", "shell")
"""Their exit code is the program's, so that of our own failures is 125 alone, besides 126 and 127 as in a shell."""

COMMANDS = (
    *(run, shell, doctor, policy, rootfs, snapshot, template, top, judge, task),
    *(rollout, report, show, export, recover),
)

EXAMPLES = """examples:
  minisandbox doctor                                    can this host run sandboxes, and what is missing?
  minisandbox run -- python3 -c 'print(6 * 7)'          run a program in a sandbox of its own
  minisandbox run --memory 64M --wall-time 5 -- make    the same under limits
  minisandbox shell                                     look around inside
  minisandbox top                                       what runs in all sandboxes of this host
  minisandbox COMMAND --help                            more about a command, with examples

exit codes: that of the program for run and shell (128 + N after signal N), 125 when minisandbox failed,
126 when the program cannot be executed, 127 when it is not there; see the manual for the others."""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of exiting, and takes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and where to read on."""
        raise UsageError(f"{message}; see: {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"minisandbox {version('minisandbox')}")
        except PackageNotFoundError:
            print("minisandbox, not installed")
        sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; --help and --version exit by themselves."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    hold_standard_streams()
    try:
        return _run(words)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:  # stdout does not even take the object that says what failed
        print_error(error, as_json=False)
        return LAUNCHER_EXIT
    finally:
        _settle_stdout()


def _run(words: Sequence[str]) -> int:
    try:
        options = parse(words)
        code: int = options.serve(options)
        sys.stdout.flush()
        return code
    except SandboxError as error:
        return _fail(error, words)
    except KeyboardInterrupt:
        return _end(Interrupted(signal.SIGINT), words)
    except Interrupted as error:
        return _end(error, words)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is becomes one line and an exit code
        return _fail(error, words)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command, `serve` among them: the function that does it. Raises UsageError.

    What follows "--" is the command to run, untouched, as `options.command`.
    """
    parser = Parser(prog="minisandbox", description="Run commands in sandboxes on this host.", epilog=EXAMPLES)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="name", required=True)
    for module in COMMANDS:
        module.add_parser(commands)
    own = _own_words(words)
    options = parser.parse_args(own)
    if len(own) < len(words):
        before, after = getattr(options, "command", None), words[len(own) + 1 :]
        if before is None:
            raise UsageError(f"minisandbox {options.name} runs no command, so it takes no --")
        options.command = [*before, "--", *after] if before else list(after)
    return options


def hold_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams, or the next file that is opened would become one."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is fd
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w", closefd=False))


def _own_words(words: Sequence[str]) -> Sequence[str]:
    return words[: list(words).index("--")] if "--" in words else words


def _fail(error: Exception, words: Sequence[str]) -> int:
    """Say what failed, as JSON where that was asked for, and return the exit code."""
    own = _own_words(words)
    if "--debug" in own:
        import traceback

        traceback.print_exception(error)
    code = exit_code(error) if isinstance(error, SandboxError) else LAUNCHER_EXIT
    if own and own[0] in PROGRAM_COMMANDS and code not in (126, 127):
        code = LAUNCHER_EXIT
    print_error(error, as_json="--json" in own)
    return code


def _end(error: Interrupted, words: Sequence[str]) -> int:
    if "--json" in _own_words(words):
        print_json({"error": {"kind": "Interrupted", "message": str(error), "signal": error.number}})
    return 128 + error.number


def _settle_stdout() -> None:
    """Let what cannot be written any more go nowhere, or Python would complain about it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
