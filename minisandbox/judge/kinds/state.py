"""The kind *state*: what a submission left is looked at: files, and the answers of services that are started from it.

Files are compared by the driver. Services are started from the artifacts in a cell, since all that ran in an episode
was killed; a client of ours, another user of the cell, asks them, and their answers are compared by the driver as well.
What is expected is in no cell.
"""

from __future__ import annotations

import contextlib

import trio

from minisandbox.errors import CommandNotExecutableError, CommandNotFoundError
from minisandbox.judge.assignment import Assignment, FileCheck, RequestCheck, StateWork
from minisandbox.judge.bench import Bench
from minisandbox.judge.integrity import Cap
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Outcome, Plan, TestRecord
from minisandbox.runtime.process import Process
from minisandbox.runtime.sandbox import Sandbox

CEILING = Integrity.L4

FILES_CELL, SERVICES_CELL = "files", "services"
REPLY_MAX_BYTES = 1 << 20
CLIENT = """
import socket, sys, time
port, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
request, reply = sys.stdin.buffer.read(), b""
while True:
    try:
        link = socket.create_connection(("127.0.0.1", port), timeout=1.0)
        break
    except OSError:
        if time.monotonic() > until:
            sys.exit(1)
        time.sleep(0.02)  # a service that begins to listen tells nobody
link.settimeout(max(1.0, until - time.monotonic()))
link.sendall(request)
link.shutdown(socket.SHUT_WR)
while len(reply) <= MOST and (chunk := link.recv(65536)):
    reply += chunk
sys.stdout.buffer.write(reply)
""".replace("MOST", str(REPLY_MAX_BYTES))
_CHUNK_BYTES = 1 << 16


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return a cell for the files, and one in which services run."""
    checks = _work(assignment).checks
    files = tuple(check.id for check in checks if isinstance(check, FileCheck))
    requests = tuple(check.id for check in checks if isinstance(check, RequestCheck))
    cells = [Cell(name=name, tests=tests) for name, tests in ((FILES_CELL, files), (SERVICES_CELL, requests)) if tests]
    return Plan(cells=tuple(cells))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none: what is expected is in no cell."""
    return ()


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Compare the files, or start the services and ask them."""
    work = _work(bench.assignment)
    if cell.name == FILES_CELL:
        found = [await _look(check, bench) for check in work.checks if isinstance(check, FileCheck)]
        return CellRecord(cell=cell.name, tests=tuple(found))
    tests: list[TestRecord] = []
    async with bench.open_cell(bench.assignment.budget) as sandbox:
        await bench.lay_submission(sandbox, bench.manifest, work.root)
        async with contextlib.AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            for service in work.services:
                process = await _start(service.command, sandbox, work.root, stack)
                if process is not None:
                    nursery.start_soon(_discard, process)
            for check in work.checks:
                if isinstance(check, RequestCheck):
                    tests.append(await _ask(check, sandbox, bench))
            await sandbox.kill_all()
            nursery.cancel_scope.cancel()
    return CellRecord(cell=cell.name, tests=tuple(tests))


async def _look(check: FileCheck, bench: Bench) -> TestRecord:
    """Compare a file of the submission; a link is none."""
    found = next((file for file in bench.manifest.files if file.path == check.path and not file.link), None)
    if found is None:
        return TestRecord(id=check.id, outcome=Outcome.WA)
    content = bench.store.get(found.sha256)
    is_right = check.answer is None or await bench.driver.accepts(check.checker, content, check.answer)
    return TestRecord(id=check.id, outcome=Outcome.AC if is_right else Outcome.WA)


async def _start(
    command: tuple[str, ...], sandbox: Sandbox, root: str, stack: contextlib.AsyncExitStack
) -> Process | None:
    """Start a service; None when it is a program of the submission that is not there."""
    try:
        return await stack.enter_async_context(await sandbox.start(list(command), cwd=root))
    except (CommandNotFoundError, CommandNotExecutableError):
        return None


async def _ask(check: RequestCheck, sandbox: Sandbox, bench: Bench) -> TestRecord:
    command = ["python3", "-I", "-S", "-B", "-c", CLIENT, str(check.port), str(check.within_s)]
    result = await sandbox.run(command, stdin=check.request, user="root")
    if not result.ok or len(result.stdout) > REPLY_MAX_BYTES:
        return TestRecord(id=check.id, outcome=Outcome.RTE)
    is_right = await bench.driver.accepts(check.checker, result.stdout, check.answer, http=check.http)
    return TestRecord(id=check.id, outcome=Outcome.AC if is_right else Outcome.WA)


async def _discard(process: Process) -> None:
    """Read what a service says for people, so that it is not held up."""
    async with trio.open_nursery() as nursery:
        for stream in (process.stdout, process.stderr):
            nursery.start_soon(_drain, stream)


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    while await stream.receive_some(_CHUNK_BYTES):
        pass


def _work(assignment: Assignment) -> StateWork:
    assert isinstance(assignment.work, StateWork)
    return assignment.work
