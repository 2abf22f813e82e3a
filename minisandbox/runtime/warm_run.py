"""Running Python in a fork of a template's warm process; `Sandbox` inherits it."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from minisandbox.errors import StartError, UsageError
from minisandbox.kernel.protocol import Request, Stage, sealed_memfd, stage_name
from minisandbox.runtime.command import Command, CommandSpec, OnData
from minisandbox.runtime.pod import Place
from minisandbox.runtime.resolve import Streams, Wishes, look_up
from minisandbox.runtime.standing import Standing, fork_request
from minisandbox.runtime.text import check_path
from minisandbox.spec import Limits, Result

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox
    from minisandbox.runtime.template import Template


_NOBODY_THERE = (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN)
"""The warm process was gone before it was asked, so nothing was run: another may be asked."""


class Warmed:
    """What a sandbox of a template can do beside the rest."""

    filter_fds: Sequence[int] = ()
    """The seccomp programs of its policy, borrowed; the supervisor sets them."""
    place: Place
    """Where it was started; the supervisor sets it."""
    standing: Standing | None = None
    """The fork that stands by in it; the parking lot sets it."""

    async def drop_standing(self) -> None:
        """End the fork that stands by, if there is one."""
        standing, self.standing = self.standing, None
        if standing is not None:
            standing.close()  # one that is still on its way when the leaf is killed ends by itself
            await cast("Sandbox", self).abandon(standing.command)

    async def run_warm(
        self,
        code: str | None = None,
        *,
        file: str | None = None,
        call: str | None = None,
        argv: Sequence[str] = (),
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        on_stdout: OnData | None = None,
        on_stderr: OnData | None = None,
    ) -> Result:
        """Run Python in a fork of the template's warm process, to its end, and return what came of it as `run` does.

        Give one of: `code`, executed as by `python -c`; `file`, a path inside, as by `python FILE`; `call`, as in
        "package.module:function", a function that is called without arguments and returns the exit status. `argv` is
        what follows the name in sys.argv. `seed` seeds `random` and numpy; None takes the system's.
        Raises UsageError in a sandbox without a template, TemplateError or StartError when there is nothing to fork.
        """
        sandbox = cast("Sandbox", self)
        template = sandbox.options.template
        if template is None:
            raise UsageError("this sandbox has no warm process; open it with open_sandbox(template=...)")
        kind, text, name = _program(code, file, call)
        wishes, streams = Wishes(env, cwd, user, limits), Streams(stdin, on_stdout, on_stderr)
        spec = await look_up(sandbox, [name, *argv], wishes, streams)
        words = ("" if seed is None else str(seed), kind, text)
        return await self._run_standing(spec, words) or await self._run_fork(template, spec, words)

    async def _run_standing(self, spec: CommandSpec, words: Sequence[str]) -> Result | None:
        """Let the fork that stands by run it. Returns None when there is none that can, or it was gone."""
        sandbox, standing = cast("Sandbox", self), self.standing
        order = _order(spec, words, "" if spec.stdin else os.devnull)
        if standing is None:
            return None
        if not standing.fits(spec, order):
            standing.blame()
            await self.drop_standing()
            return None
        self.standing = None
        try:
            result = await sandbox.supervise_from(partial(standing.begin, spec, order), standing.command, spec)
        except StartError as error:
            if standing.took_order or error.stage != stage_name(Stage.COMMAND_WARM):
                raise
            standing.blame()
            return None
        return result if standing.took_order else None

    async def _run_fork(self, template: Template, spec: CommandSpec, words: Sequence[str]) -> Result:
        payload_fd = sealed_memfd("payload", _order(spec, words, ""))
        try:
            return await self._fork(template, spec, payload_fd)
        finally:
            os.close(payload_fd)

    async def _fork(self, template: Template, spec: CommandSpec, payload_fd: int) -> Result:
        sandbox = cast("Sandbox", self)
        for attempt in itertools.count():
            warm = await template.ensure()
            ask = partial(_fork_request, sandbox.filter_fds, warm.socket_fd, payload_fd)
            try:
                return await sandbox.run_to_end(spec, ask)
            except StartError as error:
                if error.stage != stage_name(Stage.COMMAND_WARM):
                    raise
                warm.lose(f"it did not fork: {error}")
                if attempt or error.errno not in _NOBODY_THERE:
                    raise
        raise AssertionError("a loop without an end")


def _order(spec: CommandSpec, words: Sequence[str], stdin: str) -> bytes:
    """Return what a fork is to do, as the stub reads it. Raises UsageError for a NUL, which no word of it can hold."""
    variables = (word[len("--env=") :] for word in spec.env)
    words = [*words, stdin, str(len(spec.argv)), *spec.argv, *variables]
    if any("\0" in word for word in words):
        raise UsageError("code, arguments and variables of a program cannot hold a NUL character")
    return os.fsencode("\0".join(words))


def _program(code: str | None, file: str | None, call: str | None) -> tuple[str, str, str]:
    """Return of what kind a program is, its text, and its name for sys.argv."""
    given = [wish for wish in (code, file, call) if wish is not None]
    if len(given) != 1 or not isinstance(given[0], str):
        raise UsageError("give run_warm one text: code, file or call")
    if file is not None:
        check_path("file", file)
        return "file", file, file
    if call is None:
        return "code", given[0], "-c"
    module, colon, function = call.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise UsageError(f"call is {call!r}; give it as MODULE:FUNCTION")
    return "call", call, module


def _fork_request(
    filter_fds: Sequence[int],
    template_fd: int,
    payload_fd: int,
    command: Command,
    spec: CommandSpec,
    stdio: Sequence[int],
) -> Request:
    request = fork_request(command, spec, filter_fds, stdio)
    return request.descriptor("template", template_fd).descriptor("payload", payload_fd)
