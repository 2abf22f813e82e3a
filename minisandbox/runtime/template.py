"""Templates: a Python that has done its imports and waits, forked on demand into fresh sandboxes.

Owns a pod with one warm process (pod.py, warm_process.py), and replaces both when they are gone. Nothing that a sandbox
does reaches them: what is forked is a copy, in other namespaces, with no descriptor of the original.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import ClosedError, DeadlineError, UsageError
from minisandbox.images.rootfs import Rootfs
from minisandbox.runtime.pod import Place
from minisandbox.runtime.warm_process import Preload, WarmProcess, WarmSpec

if TYPE_CHECKING:
    from minisandbox.runtime.supervisor import Supervisor

OpenPod = Callable[[], contextlib.AbstractAsyncContextManager[Place]]
"""Opens a pod that shows the root file system of a template."""

SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Numerical libraries start threads when they are loaded, of which a fork would have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """What a template is made of."""

    rootfs: Rootfs
    warm: WarmSpec


class Template:
    """An open template. `Supervisor.open_template` makes it and closes it."""

    def __init__(self, spec: TemplateSpec, supervisor: Supervisor, open_pod: OpenPod) -> None:
        self.spec = spec
        self.replaced = 0
        """How often the warm process was replaced, since it was gone or did not answer."""
        self._open_pod = open_pod
        self._supervisor = supervisor
        self._changing = trio.Lock()
        self._pod: contextlib.AsyncExitStack | None = None
        self._place: Place | None = None
        self._warm: WarmProcess | None = None
        self._closed = False

    @property
    def place(self) -> Place:
        """Where its sandboxes are started. Call `ensure` before."""
        if self._place is None:
            raise ClosedError("this template is closed; open another")
        return self._place

    @property
    def ready_s(self) -> float:
        """Seconds that the warm process took to start and to do its preload."""
        return self._warm.ready_s if self._warm is not None else 0.0

    async def ensure_place(self) -> Place:
        """Return where its sandboxes are started, once there is a warm process."""
        await self.ensure()
        return self.place

    async def ensure(self) -> WarmProcess:
        """Return a warm process that can be asked for forks, starting one where there is none.

        Raises TemplateError when it cannot be made.
        """
        if self._warm is not None and self._warm.has_grown():
            self._warm.lose("it grew")
        if (ready := self._ready()) is not None:
            return ready
        async with self._changing:
            if self._closed:
                raise ClosedError("this template is closed; open another")
            if self._place is not None and self._place.launcher.broken:
                if self._warm is not None:
                    self._warm.lose("its pod is gone")
                await self._close_pod()
            if self._warm is not None and self._warm.lost is not None:
                await self._close_warm()
                self.replaced += 1
            if self._warm is None:
                self._warm = await self._open()
            return self._warm

    def _ready(self) -> WarmProcess | None:
        """Return the warm process if it can be asked now; not while it is being started, or its pod being closed."""
        warm, place = self._warm, self._place
        if warm is None or warm.lost is not None or place is None or place.launcher.broken:
            return None
        return warm if warm.ready.is_set() else None

    async def _open(self) -> WarmProcess:
        is_new = self._place is None
        try:
            if self._place is None:
                async with contextlib.AsyncExitStack() as stack:
                    place = await stack.enter_async_context(self._open_pod())
                    place.launcher.on_broken = partial(self._supervisor.on_launcher_broken, place)
                    place.template = self
                    self._place = place
                    self._pod = stack.pop_all()
            return await self._start_warm(self._place)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._close_warm()
                if is_new:  # in another one there are sandboxes, whose commands go on
                    await self._close_pod()
            raise

    async def _start_warm(self, place: Place) -> WarmProcess:
        slot = await place.slots.acquire(self.spec.warm.limits)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number, reactor = self._supervisor.next_number(), self._supervisor.reactor
        self._warm = warm = WarmProcess(number, slot, place, ours, reactor)
        await warm.start(self.spec.warm, theirs)
        return warm

    async def _close_warm(self) -> None:
        warm, self._warm = self._warm, None
        if warm is None:
            return
        warm.close()
        warm.leaf.close_fds()  # where its pod is gone, the slots of that are, too, and nobody comes for the leaf
        try:
            await warm.place.launcher.end(warm.slot.number, warm.number)
        except DeadlineError:
            warm.place.slots.quarantine(warm.slot)
            raise
        warm.place.slots.release(warm.slot, [warm.leaf])

    async def _close_pod(self) -> None:
        pod, self._pod = self._pod, None
        place, self._place = self._place, None
        if pod is not None and place is not None:
            for sandbox in self._supervisor.sandboxes_in(place):
                await self._supervisor.close_sandbox(sandbox)
            await pod.aclose()

    def kill(self) -> None:
        """Kill the pod, and all that is in it. `ensure` makes another."""
        if self._place is not None:
            self._place.launcher.kill()

    async def aclose(self) -> None:
        """Close it and every sandbox that was opened from it. Shielded; a second call does nothing."""
        self._closed = True
        with trio.CancelScope(shield=True):
            async with self._changing:
                try:
                    await self._close_warm()
                finally:
                    await self._close_pod()


def read_preload(preload: str | Path | Sequence[str]) -> Preload:
    """Return what is to be preloaded: a path is a file of code, a text is code, several texts are names of modules."""
    if isinstance(preload, Path):
        try:
            return Preload(code=preload.read_text(), filename=str(preload))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the preload {preload}: {error}") from error
    if isinstance(preload, str):
        return Preload(code=preload)
    names = tuple(preload)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} cannot be the name of a module; give code as one text, a file as a Path")
    return Preload(modules=names)


def warm_env(rootfs: Rootfs, env: Mapping[str, str] | None, hash_seed: int | None) -> dict[str, str]:
    """Return the variables of a warm process. Raises UsageError for a hash seed that Python does not take."""
    if hash_seed is not None and not 0 <= hash_seed < 1 << 32:
        raise UsageError(f"hash_seed is {hash_seed}, it must be 0 to 4294967295, or None for a random one")
    seed = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
    return {**rootfs.env, "PYTHONDONTWRITEBYTECODE": "1", **SINGLE_THREADED, **seed, **(env or {})}
