"""Where cells are run: fresh sandboxes from the trusted rootfs, with a submission's files laid down in them.

It owns no sandbox itself: each is closed, and everything in it gone, at the end of its block.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from minisandbox.images.rootfs import Rootfs
from minisandbox.judge.assignment import INNER_ROOT, Assignment, TaskFile
from minisandbox.judge.driver import Driver, open_driver
from minisandbox.judge.evidence import printable
from minisandbox.judge.idle import IdleGuard
from minisandbox.judge.layout import ManifestArchive, TaskArchive
from minisandbox.judge.spec import Budget, CellUsage, Manifest, Outcome
from minisandbox.judge.store import Store
from minisandbox.judge.toolbox import cell_policy
from minisandbox.judge.warm import Warm
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.spec import ExitReason, Result

PINNED = {
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables that would otherwise differ from host to host, and that programs depend on."""

_OUTCOMES = {
    ExitReason.CPU_TIME: Outcome.TLE,
    ExitReason.WALL_TIME: Outcome.ILE,
    ExitReason.MEMORY: Outcome.MLE,
    ExitReason.OUTPUT: Outcome.OLE,
    ExitReason.DISK: Outcome.OLE,
    ExitReason.PROCESSES: Outcome.RTE,
    ExitReason.SIGNALED: Outcome.RTE,
}


@dataclass(slots=True, kw_only=True)
class Bench:
    """What a kind runs its cells with."""

    supervisor: Supervisor
    rootfs: Rootfs
    store: Store
    assignment: Assignment
    manifest: Manifest
    seed: bytes
    driver: Driver
    """Who says what answers are worth."""
    warm: Warm | None = None
    """What is kept warm, if anything."""
    products: dict[str, bytes] = field(default_factory=dict)
    """What build cells made, by name."""

    @contextlib.asynccontextmanager
    async def open_cell(
        self, budget: Budget, *, manifest: Manifest | None = None, template: Template | None = None
    ) -> AsyncIterator[Sandbox]:
        """Open a fresh sandbox for the block, with the files of a manifest in it when one is given."""
        async with self.supervisor.open_sandbox(
            rootfs=self.rootfs if template is None else None,
            template=template,
            policy=cell_policy(),
            limits=budget.limits(),
            env=self.variables,
            hostname="cell",
        ) as sandbox:
            if manifest is not None:
                await sandbox.put_tree(ManifestArchive(manifest, self.store), INNER_ROOT)
            yield sandbox

    @contextlib.asynccontextmanager
    async def open_calls(self, budget: Budget, *, manifest: Manifest | None = None) -> AsyncIterator[Sandbox]:
        """Open a cell in which functions are called; of a warm Python, if there is one."""
        template = None if self.warm is None else await self.warm.shim(self.rootfs, self.variables)
        async with self.open_cell(budget, manifest=manifest, template=template) as sandbox:
            yield sandbox

    @property
    def variables(self) -> dict[str, str]:
        """What programs of this environment find in theirs."""
        return {**PINNED, **self.assignment.environment.variables}

    async def lay_down(self, sandbox: Sandbox, files: Iterable[TaskFile], place: str) -> None:
        """Put files of the task into a directory of a cell; they replace what is there."""
        await sandbox.put_tree(TaskArchive(files), place)

    async def lay_submission(self, sandbox: Sandbox, manifest: Manifest, root: str, own: Sequence[str] = ()) -> None:
        """Put a submission where it belongs in a cell.

        What the rootfs has at its declared paths, or at `own` ones of the task below the root, is removed before.
        """
        if root != INNER_ROOT:  # which no rootfs has
            gone = [os.path.normpath(os.path.join(root, path)) for path in (*self.assignment.declared.paths, *own)]
            await sandbox.run(["rm", "-rf", "--", *gone], user="root")
        await sandbox.put_tree(ManifestArchive(manifest, self.store), root)

    def usage(self, name: str, result: Result, *notes: str) -> CellUsage:
        """Return what was measured of the command that a cell is about."""
        return usage_of(name, result, self.assignment.budget, notes)


@contextlib.asynccontextmanager
async def open_bench(
    supervisor: Supervisor,
    store: Store,
    assignment: Assignment,
    manifest: Manifest,
    seed: bytes,
    warm: Warm | None = None,
) -> AsyncIterator[Bench]:
    """Open a bench, with a driver of its own, for the block. Raises SandboxError where there is no such rootfs."""
    rootfs = await supervisor.find_rootfs(assignment.environment.rootfs)
    async with open_driver(supervisor, warm) as driver:
        yield Bench(
            supervisor=supervisor,
            rootfs=rootfs,
            store=store,
            assignment=assignment,
            manifest=manifest,
            seed=seed,
            driver=driver,
            warm=warm,
        )


def outcome_of(result: Result, guard: IdleGuard) -> Outcome:
    """Return what the end of a program says about it; AC means that it ended well, whatever it answered."""
    if guard.ended_it:
        return Outcome.ILE
    if result.exit_reason is not ExitReason.EXITED:
        return _OUTCOMES[result.exit_reason]
    if result.stdout_truncated:
        return Outcome.OLE
    return Outcome.AC if result.exit_code == 0 else Outcome.RTE


def usage_of(name: str, result: Result, budget: Budget, notes: tuple[str, ...] = ()) -> CellUsage:
    """Return the usage of a cell whose budget this was."""
    cpu_time_s, memory_bytes = result.usage.cpu_time_s, result.usage.memory_peak_bytes
    return CellUsage(
        name=name,
        cpu_time_s=cpu_time_s,
        wall_time_s=result.usage.wall_time_s,
        memory_peak_bytes=memory_bytes,
        marginal=(cpu_time_s or 0.0) > 0.5 * budget.cpu_time_s or (memory_bytes or 0) > 0.5 * budget.memory_bytes,
        notes=tuple(printable(note) for note in notes if note),
    )
