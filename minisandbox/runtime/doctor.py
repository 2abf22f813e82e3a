"""The doctor: looks at the host, then really opens sandboxes on it and tries what they promise, one finding each.

It changes nothing but the state directory, which gets the rootfs that a sandbox needs. It prints nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from minisandbox.degradation import Degradation, parse_degradations
from minisandbox.errors import DeadlineError, SandboxError, StartError
from minisandbox.kernel.capacity import Ceiling, read_capacity
from minisandbox.kernel.host import read_host_facts
from minisandbox.policy import check_policy, filters
from minisandbox.runtime.advice import advice_for
from minisandbox.runtime.features import Seen, find_features
from minisandbox.runtime.finding import Finding
from minisandbox.runtime.host_checks import check_host
from minisandbox.runtime.opening import open_supervisor
from minisandbox.runtime.probes import LIMIT_PROBES, PROBES, SMALL, LimitProbe, Probe
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Timing

POLICY, LAUNCHER, START, FILES, END = "policy", "launcher", "start", "files", "end"
TRIALS = (POLICY, LAUNCHER, START, *(p.name for p in PROBES), FILES, *(p.name for p in LIMIT_PROBES), END)
"""The names of all trials, in the order in which they are shown."""

DEADLINE_S = 120.0
"""For all trials together; they take one or two seconds."""

_FILE = "/tmp/minisandbox-doctor"
_FILE_BYTES = bytes(range(256)) * 4096

FILTER_STEP_BYTES = 8
"""Size of struct sock_filter (linux/filter.h)."""

UNSAFE = "do not run here what you do not trust; report this with the output of `minisandbox doctor --json`"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found out."""

    findings: tuple[Finding, ...]
    timing: Timing | None
    """Where the time of a start went; None when there was none."""

    degraded: tuple[str, ...] = ()
    """What was agreed to be done without, and had to be."""

    capacity: tuple[Ceiling, ...] = ()
    """How many sandboxes each limit of this host allows, the first to be reached before the others."""

    @property
    def enforceable(self) -> bool:
        """Whether a sandbox with the default policy holds on this host, but for what is `degraded`."""
        return all(finding.ok is not False for finding in self.findings)


async def diagnose(state_dir: Path | None = None, degrade: Collection[str] = ()) -> Diagnosis:
    """Look at this host and try sandboxes on it, without what `degrade` names. Cancelled: nothing is left."""
    facts, agreed = read_host_facts(), parse_degradations(degrade)
    trials = _Trials(state_dir, facts.landlock_abi, agreed)
    await trials.run()
    return Diagnosis(
        findings=(*check_host(facts, agreed), *trials.features, *trials.findings()),
        timing=trials.timing,
        degraded=trials.degraded,
        capacity=read_capacity(),
    )


class _Trials:
    """What was tried so far. What could not be tried, since something before it failed, counts as not tried."""

    def __init__(self, state_dir: Path | None, landlock_abi: int, agreed: frozenset[Degradation]) -> None:
        self._state_dir, self._landlock_abi, self._agreed = state_dir, landlock_abi, agreed
        self._tried: dict[str, Finding] = {}
        self._step = POLICY
        self.timing: Timing | None = None
        self.degraded: tuple[str, ...] = ()
        self.features: list[Finding] = []
        """What newer kernels do better, where a sandbox could be opened."""

    def findings(self) -> list[Finding]:
        """Return one finding for each trial."""
        return [self._tried.get(name, Finding(name=name, ok=None, detail="not tried")) for name in TRIALS]

    async def run(self) -> None:
        """Try everything, until something fails that the rest needs."""
        try:
            with trio.fail_after(DEADLINE_S):
                await self._run()
        except SandboxError as error:
            self._fail(error)
        except trio.TooSlowError:
            self._fail(DeadlineError(f"the trials did not end within {DEADLINE_S:g} s; is this host overloaded?"))

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            policy = check_policy("default")
            sizes = " and ".join(str(len(program) // FILTER_STEP_BYTES) for program in filters(policy))
            self._pass(f"default, with system call filters of {sizes} steps")
            self._step = LAUNCHER
            opening = open_supervisor(state_dir=self._state_dir, max_sandboxes=2, self_test=False, degrade=self._agreed)
            supervisor = await stack.enter_async_context(opening)
            self.degraded = supervisor.degraded
            self._pass("started and answers")
            self._step = START
            sandbox = await stack.enter_async_context(supervisor.open_sandbox(policy=policy, trace=True))
            self.timing = sandbox.timing
            self._pass(_timing_text(sandbox.timing))
            await self._look(sandbox, supervisor.state.path)
            await self._try(FILES, partial(_transfer, sandbox))
            self._step = LIMIT_PROBES[0].name
            small = await stack.enter_async_context(supervisor.open_sandbox(policy=policy, limits=SMALL))
            for probe in LIMIT_PROBES:
                if without := probe.without & set(supervisor.degraded):
                    self._leave_out(probe.name, *without)
                    continue
                await self._try(probe.name, partial(_reach_limit, small, probe))
            self.features = find_features(await _see(sandbox, self._landlock_abi))
            self._step = END
        self._pass("both sandboxes and the launcher are gone, and their control groups")

    async def _look(self, sandbox: Sandbox, state_path: Path) -> None:
        with tempfile.NamedTemporaryFile(prefix="minisandbox-doctor-") as canary:
            for probe in PROBES:
                await self._try(probe.name, partial(_look_with, sandbox, probe, (str(state_path), canary.name)))

    async def _try(self, name: str, trial: Callable[[], Awaitable[tuple[bool, str]]]) -> None:
        """Take down what a trial showed; its failure is no reason not to try the others."""
        self._step = name
        try:
            ok, detail = await trial()
        except SandboxError as error:
            self._fail(error)
        else:
            self._tried[name] = Finding(name=name, ok=ok, detail=detail, advice="" if ok else UNSAFE)

    def _leave_out(self, name: str, *without: Degradation) -> None:
        self._tried[name] = Finding(name=name, ok=None, detail=f"not tried: done without {', '.join(without)}")

    def _pass(self, detail: str) -> None:
        self._tried[self._step] = Finding(name=self._step, ok=True, detail=detail)

    def _fail(self, error: SandboxError) -> None:
        advice = advice_for(error.stage, error.errno) if isinstance(error, StartError) else ""
        self._tried[self._step] = Finding(name=self._step, ok=False, detail=str(error), advice=advice)


async def _look_with(sandbox: Sandbox, probe: Probe, paths: Sequence[str]) -> tuple[bool, str]:
    result = await sandbox.run(["/bin/sh", "-c", probe.script, "sh", *paths])
    if not result.ok:
        return False, f"the probe ended with {result.exit_reason.value} {result.exit_code}: {_text(result.stderr)}"
    return probe.judge(_text(result.stdout), sandbox.policy)


async def _see(sandbox: Sandbox, landlock_abi: int) -> Seen:
    await sandbox.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=32M", "count=1"])
    result = await sandbox.run(["cat", "/proc/self/mountinfo"])
    return Seen(mounts=_text(result.stdout), usage=result.usage, landlock_abi=landlock_abi)


async def _transfer(sandbox: Sandbox) -> tuple[bool, str]:
    await sandbox.write_file(_FILE, _FILE_BYTES)
    same = await sandbox.read_file(_FILE) == _FILE_BYTES
    return same, f"{len(_FILE_BYTES) >> 10} KiB written and read back, {'' if same else 'not '}the same"


async def _reach_limit(sandbox: Sandbox, probe: LimitProbe) -> tuple[bool, str]:
    result = await sandbox.run(probe.command, limits=probe.limits)
    reached = result.exit_reason is probe.reason
    return reached, f"ended with {result.exit_reason.value} after {result.usage.wall_time_s:.2f} s"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _timing_text(timing: Timing) -> str:
    """Return the time of a start and its longest steps."""
    longest = sorted(timing.stages.items(), key=lambda stage: -stage[1])[:3]
    steps = ", ".join(f"{name} {seconds * 1000:.2f}" for name, seconds in longest)
    return f"slot {timing.slot_s * 1000:.2f} ms, start {timing.start_s * 1000:.2f} ms; longest steps: {steps}"
