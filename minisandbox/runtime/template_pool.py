"""Templates that many share: each opened when it is first asked for, a bounded number of them, all closed together.

It knows nothing of what they are for. Where one cannot be had there is none, and whoever asked starts cold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager

import trio

from minisandbox.errors import BusyError, DeadlineError, SandboxError
from minisandbox.runtime.template import Template

MOST_TEMPLATES = 4
"""How many Pythons are kept warm. Each holds memory and the place of a sandbox."""

OpenTemplate = Callable[[], AbstractAsyncContextManager[Template]]


class TemplatePool:
    """Templates by what they are asked for with. They are closed with `stack`."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.failures: dict[Hashable, SandboxError] = {}
        """Why one cannot be had, of those that failed last; one that does not fail by chance is not tried again."""
        self._stack = stack
        self._opening = trio.Lock()
        self._templates: dict[Hashable, Template] = {}

    async def find(self, key: Hashable, open_one: OpenTemplate) -> Template | None:
        """Return the template of a key, opened if need be and ready; None where there is no room, or it cannot be."""
        if not self._may_try(key):
            return None
        try:
            if key not in self._templates:
                await self._open(key, open_one)
            template = self._templates.get(key)
            if template is not None:
                await template.ensure()
        except SandboxError as error:
            self.failures[key] = error
            return None
        self.failures.pop(key, None)
        return template

    async def _open(self, key: Hashable, open_one: OpenTemplate) -> None:
        async with self._opening:
            if key not in self._templates and self._may_try(key) and len(self._templates) < MOST_TEMPLATES:
                self._templates[key] = await self._stack.enter_async_context(open_one())

    def _may_try(self, key: Hashable) -> bool:
        error = self.failures.get(key)
        return error is None or _is_passing(error)


def _is_passing(error: SandboxError) -> bool:
    """Return whether it may go better another time. What took too long does so again, and others wait for it."""
    return isinstance(error, BusyError) or (error.retryable and not isinstance(error, DeadlineError))
