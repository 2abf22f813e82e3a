"""INGEST: a submission becomes a manifest and blobs, and is read by a process of its own that holds nothing.

Theory of operation. The stream of a tree goes, unread, from the process that packs it, in the submission's sandbox, to
the ingest process (`ingest_program`) in another sandbox: no network, an ordinary user, small limits, nothing to read
but a Python. What that says comes back as frames of plain data, of which every name, size and number is checked here,
as if the submission had written it. Whatever goes wrong on the way is the submission's fault, and rejects it; only an
ingest process that never began is ours.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import trio

import minisandbox
from minisandbox.binds import Bind
from minisandbox.errors import SandboxError
from minisandbox.images.prefix import with_prefix
from minisandbox.images.rootfs import Rootfs
from minisandbox.judge.assignment import Declared
from minisandbox.judge.bench import cell_policy
from minisandbox.judge.decide import sort_evidence
from minisandbox.judge.evidence import Code, Evidence, evidence
from minisandbox.judge.frames import FrameError, Value, decode, frame, frame_size
from minisandbox.judge.ingest_program import CHUNK_BYTES
from minisandbox.judge.spec import Artifact, Manifest
from minisandbox.judge.store import Store
from minisandbox.runtime.process import Process
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.tree_stream import check_path, leads_out
from minisandbox.spec import Limits

PACKAGE = "/judge/minisandbox"
BOOT = (
    "import sys, types; package = types.ModuleType('minisandbox'); package.__path__ = ['" + PACKAGE + "'];"
    " sys.modules['minisandbox'] = package; from minisandbox.judge.ingest_program import main; main()"
)
"""Imports our modules without the package's own, which would want what is not there."""

LIMITS = Limits(
    wall_time_s=600.0,
    cpu_time_s=120.0,
    memory_bytes=256 << 20,
    processes=4,
    disk_bytes=1 << 20,
    disk_inodes=64,
    open_files=16,
)
EVIDENCE_MAX = 2000
_PYTHON = os.path.join(sys.base_prefix, "bin", "python3")

Send = Callable[[Value], Awaitable[None]]
Feed = Callable[[Send], Awaitable[None]]
"""Sends a submission, as `ingest_program` wants it."""


class _BadAnswerError(Exception):
    """The ingest process said something that it never says by itself."""


async def ingest(supervisor: Supervisor, store: Store, declared: Declared, feed: Feed) -> Manifest:
    """Take a submission in and return its manifest; its blobs are in the store.

    Raises SandboxError when we failed. Cancelled: blobs may be left, which nothing names.
    """
    rootfs = await toolbox(supervisor)
    outlet = _Outlet(store, declared)
    async with _open_process(supervisor, rootfs) as process:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, process, declared, feed, nursery.cancel_scope)
                await outlet.read(process)
                nursery.cancel_scope.cancel()
        except* (FrameError, _BadAnswerError, trio.BrokenResourceError):
            outlet.rejected = True
            outlet.note(Code.E11_FORBIDDEN_FILE, "(the ingest process failed)")
        if outlet.rejected:
            await process.kill()
            await process.wait()  # raises where its sandbox went first, which is no fault of the submission
    return outlet.manifest()


async def toolbox(supervisor: Supervisor) -> Rootfs:
    """Return the rootfs of our own tools: the host's, with the Python that runs this, if its user can reach it."""
    host = await supervisor.find_rootfs("host")
    shown = Path(sys.base_prefix).is_relative_to("/usr")
    if shown or not os.access(_PYTHON, os.X_OK):
        return host
    return await trio.to_thread.run_sync(with_prefix, supervisor.state, host, Path(sys.base_prefix))


@contextlib.asynccontextmanager
async def _open_process(supervisor: Supervisor, rootfs: Rootfs) -> AsyncIterator[Process]:
    package = Bind(source=Path(minisandbox.__file__).parent, target=PACKAGE)
    async with supervisor.open_sandbox(
        rootfs=rootfs, policy=cell_policy(), limits=LIMITS, binds=[package], hostname="ingest"
    ) as sandbox:
        python = _PYTHON if os.access(_PYTHON, os.X_OK) else "python3"
        async with await sandbox.start([python, "-I", "-S", "-B", "-c", BOOT]) as process:
            yield process


async def _feed(process: Process, declared: Declared, feed: Feed, scope: trio.CancelScope) -> None:
    """Send all there is, as long as it is wanted."""

    async def send_value(value: Value) -> None:
        await process.stdin.send_all(frame(value))

    bounds = ("max_files", "max_total_bytes", "max_file_bytes", "max_depth")
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, BrokenPipeError):
        await send_value({name: getattr(declared, name) for name in bounds})
        await feed(send_value)
        await send_value(None)
        await process.stdin.aclose()


class _Outlet:
    """Reads what the ingest process says, and believes nothing of it."""

    def __init__(self, store: Store, declared: Declared) -> None:
        self._store, self._declared = store, declared
        self._files: dict[str, Artifact] = {}
        self._evidence: dict[Code, set[str]] = {}
        self._bytes = self._notes = 0
        self._buffer = bytearray()
        self.rejected = False

    def note(self, code: Code, path: str) -> None:
        """Take note of evidence."""
        self._notes += 1
        if self._notes > EVIDENCE_MAX:
            raise _BadAnswerError
        self._evidence.setdefault(code, set()).add(path)

    def manifest(self) -> Manifest:
        """Return what was taken in."""
        found: list[Evidence] = [evidence(code, paths=tuple(paths)) for code, paths in self._evidence.items()]
        files = () if self.rejected else tuple(self._files[path] for path in sorted(self._files))
        return Manifest(files=files, evidence=sort_evidence(found), rejected=self.rejected)

    async def read(self, process: Process) -> None:
        """Read until the end that is said. Raises FrameError or _BadAnswerError for what cannot be."""
        while True:
            message = await self._next(process)
            if message == ["end"]:
                return
            if message == ["rejected"]:
                self.rejected = True
                return
            if type(message) is not list or not message:
                raise _BadAnswerError
            await self._take(message, process)

    async def _take(self, message: list[Value], process: Process) -> None:
        match message:
            case ["evidence", str(code), str(path)] if code in Code.__members__:
                self.note(Code[code], path)
            case ["file", str(path), int(size), bool(executable)] if size >= 0:
                self._check(path, size)
                self._files[path] = await self._file(path, size, executable, process)
            case ["same", str(path), str(first)] if first in self._files:
                self._check(path, 0)
                self._files[path] = Artifact(
                    path=path,
                    sha256=self._files[first].sha256,
                    size=self._files[first].size,
                    executable=self._files[first].executable,
                )
            case ["symlink", str(path), str(target)] if not leads_out(path, target):
                self._check(path, len(target))
                self._files[path] = Artifact(path=path, sha256="", size=0, link=target)
            case _:
                raise _BadAnswerError

    def _check(self, path: str, size: int) -> None:
        declared = self._declared
        self._bytes += size
        wanted = any(root == "." or path == root or path.startswith(root + "/") for root in declared.paths)
        over = len(self._files) >= declared.max_files or self._bytes > declared.max_total_bytes
        if not wanted or over or path in self._files or path == "." or not path.isprintable():
            raise _BadAnswerError
        if size > declared.max_file_bytes or path.count("/") > declared.max_depth:
            raise _BadAnswerError
        try:
            check_path(path)
        except SandboxError as error:
            raise _BadAnswerError from error

    async def _file(self, path: str, size: int, executable: bool, process: Process) -> Artifact:
        content = bytearray()
        while len(content) < size:
            chunk = await self._next(process)
            if type(chunk) is not bytes or not chunk or len(content) + len(chunk) > size:
                raise _BadAnswerError
            content += chunk
        digest = self._store.put(bytes(content))
        return Artifact(path=path, sha256=digest, size=size, executable=executable)

    async def _next(self, process: Process) -> Value:
        size = frame_size(await self._exactly(4, process))
        return decode(await self._exactly(size, process))

    async def _exactly(self, size: int, process: Process) -> bytes:
        while len(self._buffer) < size:
            chunk = await process.stdout.receive_some(CHUNK_BYTES)
            if not chunk:
                raise _BadAnswerError
            self._buffer += chunk
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
