"""From what a caller writes to a `CommandSpec`: all is looked up, and what cannot be is refused before it begins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from minisandbox.errors import UsageError
from minisandbox.runtime.command import CommandSpec, OnData
from minisandbox.runtime.files import resolve_user
from minisandbox.runtime.text import check_path, encoded_size
from minisandbox.spec import WHOLE_SANDBOX, Limits

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

ARGUMENTS_MAX_BYTES = 2 << 20
"""execve(2): a quarter of the stack limit, which is 8 MiB by default, for arguments, variables and their pointers."""

ARGUMENT_MAX_BYTES = 131071
"""MAX_ARG_STRLEN (execve(2)), 32 pages less the final NUL: the longest single argument or variable."""


class Wishes(NamedTuple):
    """How a command is to run; None leaves it as the sandbox has it."""

    env: Mapping[str, str] | None
    cwd: str
    user: str | int | None
    limits: Limits | None


class Streams(NamedTuple):
    """What a command reads, and who sees what it writes."""

    stdin: bytes = b""
    on_stdout: OnData | None = None
    on_stderr: OnData | None = None


NO_STREAMS = Streams()


async def resolve(
    sandbox: Sandbox, command: Sequence[str] | str, wishes: Wishes, streams: Streams = NO_STREAMS
) -> CommandSpec:
    """Return a command that is about to run, with everything resolved; a fork that stands by goes before it.

    Raises UsageError, with what to do, for what cannot be.
    """
    spec = await look_up(sandbox, command, wishes, streams)
    await sandbox.drop_standing()
    return spec


async def look_up(
    sandbox: Sandbox, command: Sequence[str] | str, wishes: Wishes, streams: Streams = NO_STREAMS
) -> CommandSpec:
    """Return a command with everything resolved. Raises UsageError, with what to do, for what cannot be."""
    await sandbox.settled()
    argv = argument_vector(command)
    leading = sandbox.network.variables
    words = sandbox.env_words
    if wishes.env or leading:
        words = env_words({**leading, **sandbox.env, **(wishes.env or {})})
    check_arguments(argv, words, wishes.cwd)
    if not isinstance(streams.stdin, bytes | bytearray | memoryview):
        raise UsageError(f"stdin is bytes, not {type(streams.stdin).__name__}; encode text first")
    if wishes.limits is not None:
        _check_own(wishes.limits, sandbox.limits)
    uid, gid = await resolve_user(sandbox, sandbox.policy.user if wishes.user is None else wishes.user)
    return CommandSpec(
        argv=argv,
        env=words,
        cwd=wishes.cwd,
        uid=uid,
        gid=gid,
        capabilities=sandbox.capabilities,
        limits=sandbox.limits.overridden_by(wishes.limits),
        stdin=streams.stdin,
        on_stdout=streams.on_stdout,
        on_stderr=streams.on_stderr,
    )


def env_words(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that give a command these variables. Raises UsageError for a name that cannot be one."""
    for name in env:
        if not name or "=" in name:
            raise UsageError(f"{name!r} cannot be the name of an environment variable")
    return tuple(f"--env={name}={value}" for name, value in env.items())


def _check_own(limits: Limits, sandbox: Limits) -> None:
    for name in WHOLE_SANDBOX:
        value = getattr(limits, name)
        if value is not None and value != getattr(sandbox, name):
            raise UsageError(f"limit {name} holds for the whole sandbox; give it to open_sandbox")


def argument_vector(command: object) -> list[str]:
    """Return the words of a command; a string is a line for /bin/sh. Raises UsageError when there is none."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    if isinstance(command, bytes | bytearray):
        raise UsageError("a command is a string for /bin/sh or a sequence of words, not bytes")
    try:
        words = [os.fsdecode(word) for word in cast("Iterable[str]", command)]
    except TypeError as error:
        raise UsageError(f"the words of a command are text, bytes or paths: {error}") from error
    if not words:
        raise UsageError("the command is empty; give a program and its arguments")
    return words


def check_arguments(argv: Sequence[str], env: Sequence[str], cwd: str) -> None:
    """Raise UsageError, with what to do, when the kernel would refuse these arguments and variables."""
    total = 0
    for word in (*argv, *env):
        size = encoded_size(word)
        total += size + 9  # its NUL and its pointer
        if size > ARGUMENT_MAX_BYTES:
            raise UsageError(
                f"an argument or variable of {size} bytes is longer than the {ARGUMENT_MAX_BYTES} that Linux takes;"
                " put it into a file or stdin"
            )
    if total > ARGUMENTS_MAX_BYTES:
        raise UsageError(
            f"arguments and variables take {total} bytes, more than the {ARGUMENTS_MAX_BYTES} that Linux takes;"
            " put large data into a file or stdin"
        )
    check_path("working directory", cwd)
