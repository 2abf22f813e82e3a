"""What is printed: errors as one line, JSON as one object, tables for people. rich is loaded only where it draws."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from minisandbox.errors import LocatedError, SandboxError, StartError
from minisandbox.spec import ExitReason, Result, Timing

if TYPE_CHECKING:
    from rich.console import Console

FILE_COLUMNS = 200
"""Width of a table that goes into a file or a pipe."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def console_of(stream: str) -> Console:
    """Return a rich console for "stdout" or "stderr", with colours on a terminal alone."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # the BrokenPipeError that is being handled; rich itself would exit with 1 here

    console = PlainConsole(stderr=stream == "stderr", highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    return console


def print_json(value: object) -> None:
    """Print one JSON object on a line of stdout."""
    print_bytes(msgspec.json.encode(value, enc_hook=str) + b"\n")


def print_bytes(data: bytes) -> None:
    """Print bytes as they are on stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_error(error: Exception, *, as_json: bool) -> None:
    """Say what failed: one line on stderr, or one JSON object on stdout."""
    if as_json:
        print_json({"error": error_fields(error)})
    else:
        print(f"minisandbox: {_message(error)}", file=sys.stderr)
        if advice := _advice(error):
            print(f"minisandbox: {advice}", file=sys.stderr)


def error_fields(error: Exception) -> dict[str, object]:
    """Return what is known of an error; fields that its kind does not have are null."""
    return {
        "kind": type(error).__name__,
        "message": _message(error),
        "retryable": isinstance(error, SandboxError) and error.retryable,
        "stage": getattr(error, "stage", None),
        "errno": getattr(error, "errno", None),
        "item": getattr(error, "item", None),
        "file": str(error.file) if isinstance(error, LocatedError) else None,
        "line": error.line if isinstance(error, LocatedError) else None,
        "advice": _advice(error),
    }


def _advice(error: Exception) -> str | None:
    """Return what to do about a step that failed; loaded where there is one alone."""
    if not isinstance(error, StartError):
        return None
    from minisandbox.runtime.advice import advice_for

    return advice_for(error.stage, error.errno)


def _message(error: Exception) -> str:
    """Return the message and its notes as one line."""
    if isinstance(error, SandboxError):
        text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    else:
        text = f"{type(error).__name__}: {error}; this is a bug or a broken host: --debug shows where it came from"
    return " ".join(text.split("\n"))


def result_fields(result: Result) -> dict[str, object]:
    """Return a result as the object that `run --json` prints.

    Output is text where it is valid UTF-8; else the text is null and the bytes are in base64 beside it.
    """
    stdout, stdout_base64 = _text_or_base64(result.stdout)
    stderr, stderr_base64 = _text_or_base64(result.stderr)
    return {
        "exit_reason": result.exit_reason.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_base64": stdout_base64,
        "stderr_base64": stderr_base64,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "usage": result.usage,
        "limits": result.limits,
        "timing": result.timing,
        "degraded": result.degraded,
    }


def _text_or_base64(data: bytes) -> tuple[str | None, str | None]:
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def limit_reached(result: Result) -> str | None:
    """Say in a few words which limit ended a command; None when none did."""
    limits, usage = result.limits, result.usage
    if result.exit_reason is ExitReason.OUTPUT:
        over_stdout = limits.stdout_bytes is not None and usage.stdout_bytes > limits.stdout_bytes
        stream, most = ("stdout", limits.stdout_bytes) if over_stdout else ("stderr", limits.stderr_bytes)
        return f"ended by the limit of {size_text(most)} on {stream}"
    texts: Mapping[ExitReason, str] = {
        ExitReason.WALL_TIME: f"ended by the wall-time limit of {limits.wall_time_s or 0:g} s",
        ExitReason.CPU_TIME: f"ended by the CPU-time limit of {limits.cpu_time_s or 0:g} s",
        ExitReason.MEMORY: f"ended by the memory limit of {size_text(limits.memory_bytes)}",
        ExitReason.PROCESSES: f"ended by the limit of {limits.processes} processes",
        ExitReason.DISK: f"failed with its disk full: the limit is {size_text(limits.disk_bytes)}"
        f" and {limits.disk_inodes or 'any number of'} files",
    }
    return texts.get(result.exit_reason)


def exit_code_of(result: Result) -> int:
    """Return the exit code of the program, or 128 and its signal as a shell has it in `$?`."""
    return result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)


def size_text(size_bytes: int | None) -> str:
    """Return a size in the largest unit that it fills, as "512 MiB"."""
    if size_bytes is None:
        return "no limit"
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def timing_text(timing: Timing) -> str:
    """Return where the time of a start went, on a line."""
    stages = ", ".join(f"{name} {seconds * 1000:.2f}" for name, seconds in timing.stages.items())
    return f"slot {timing.slot_s * 1000:.2f} ms, start {timing.start_s * 1000:.2f} ms" + (
        f" ({stages})" if stages else ""
    )
