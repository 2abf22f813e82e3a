#!/usr/bin/env python3
"""A soak: starts without number, of which some fail or are killed; at the end nothing is left and no memory grew.

With --kills, owners of sandboxes are killed instead: see kills.py.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import psutil
import trio

import minisandbox
from bench.kills import LeftBehind, kill_rounds, own
from minisandbox import Bind, Limits, Supervisor

AT_ONCE = 8
SAMPLES = 200
"""How often memory is looked at."""

EXAMPLES = """examples:
  bench/soak.py --starts 100000 --plot soak.png    a mix of success, limits, kills, cancellations and faults
  bench/soak.py --kills 200 --sandboxes 50         kill -9 of supervisor, launcher or both, at random points"""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes held at one moment."""

    starts: int
    seconds: float
    supervisor_bytes: int
    launcher_bytes: int
    descriptors: int


class Soak(msgspec.Struct, kw_only=True):
    """What came of it."""

    starts: int
    seconds: float
    outcomes: dict[str, int]
    moments: list[Moment]
    left: dict[str, int]
    """What was still there when all was closed; each should be 0."""


# ---- what is done in a sandbox


async def succeed(supervisor: Supervisor) -> str:
    """Run a program to its end."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["true"])
    return result.exit_reason.value


async def reach_wall_time(supervisor: Supervisor) -> str:
    """Be ended by a limit, with a process in the background."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run("sleep 60 & sleep 60", limits=Limits(wall_time_s=0.02))
    return result.exit_reason.value


async def reach_memory(supervisor: Supervisor) -> str:
    """Fill the file system, which is memory."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=16 << 20, disk_bytes=64 << 20)) as sandbox:
        result = await sandbox.run("head -c 40000000 /dev/zero >/tmp/x")
    return result.exit_reason.value


async def reach_output(supervisor: Supervisor) -> str:
    """Print without end."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run("yes", limits=Limits(stdout_bytes=10000))
    return result.exit_reason.value


async def be_killed(supervisor: Supervisor) -> str:
    """Be killed by the caller."""
    async with supervisor.open_sandbox() as sandbox:
        async with await sandbox.start(["sleep", "60"]) as process:
            await process.kill()
            result = await process.wait()
    return result.exit_reason.value


async def be_cancelled(supervisor: Supervisor) -> str:
    """Be given up, in the start or later."""
    with trio.move_on_after(random.uniform(0, 0.02)):
        async with supervisor.open_sandbox() as sandbox:
            await sandbox.run(["sleep", "60"])
    return "cancelled"


async def lack_a_bind(supervisor: Supervisor) -> str:
    """Fail to start: what is to be shown is not there."""
    async with supervisor.open_sandbox(binds=[Bind(source=Path("/dev/null"), target="/etc/passwd/x")]):
        return "opened"


async def lack_inodes(supervisor: Supervisor) -> str:
    """Fail for want of room, in the start or in the command."""
    async with supervisor.open_sandbox(limits=Limits(disk_bytes=16 << 10, disk_inodes=16)) as sandbox:
        result = await sandbox.run("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do : >/tmp/$i || exit 1; done")
    return result.exit_reason.value


async def lose_init(supervisor: Supervisor) -> str:
    """Have a lifetime that ends while something runs."""
    async with supervisor.open_sandbox(lifetime_s=0.05) as sandbox:
        await sandbox.run(["sleep", "60"])
    return "outlived"


MIX: tuple[tuple[Callable[[Supervisor], Awaitable[str]], int], ...] = (
    (succeed, 10), (reach_wall_time, 2), (reach_memory, 1), (reach_output, 1), (be_killed, 1), (be_cancelled, 3),
    (lack_a_bind, 1), (lack_inodes, 1), (lose_init, 1),
)  # fmt: skip
"""What is done, and how often of their sum."""


# ---- the soak


class _Soaking:
    def __init__(self, supervisor: Supervisor, starts: int) -> None:
        self._supervisor, self._starts = supervisor, starts
        self._me = psutil.Process()
        self._begun = time.monotonic()
        self.done = 0
        self.outcomes: Counter[str] = Counter()
        self.moments: list[Moment] = []

    async def work(self) -> None:
        acts, weights = zip(*MIX, strict=True)
        while self.done < self._starts:
            self.done += 1
            if self.done % max(1, self._starts // SAMPLES) == 0:
                self.moments.append(self.look())
            act = random.choices(acts, weights)[0]
            try:
                with trio.fail_after(60):
                    outcome = await act(self._supervisor)
            except minisandbox.SandboxError as error:
                outcome = type(error).__name__
            self.outcomes[f"{act.__name__}: {outcome}"] += 1

    def look(self) -> Moment:
        (launcher,) = self._me.children()
        return Moment(
            starts=self.done,
            seconds=time.monotonic() - self._begun,
            supervisor_bytes=self._me.memory_info().rss,
            launcher_bytes=launcher.memory_info().rss,
            descriptors=len(os.listdir("/proc/self/fd")),
        )


async def soak(state_dir: Path, starts: int) -> Soak:
    """Do the mix so often, and return what was seen and what is left."""
    before = len(os.listdir("/proc/self/fd"))
    async with minisandbox.open_supervisor(state_dir=state_dir, max_sandboxes=4 * AT_ONCE) as supervisor:
        soaking = _Soaking(supervisor, starts)
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(soaking.work)
        (launcher,) = psutil.Process().children()
        await supervisor.parking.aclose()
        left = {"sandboxes": supervisor.live, "quarantined": len(supervisor.quarantined)}
        left["inits"] = len(launcher.children())
        last = soaking.look()
    left["processes"] = len(psutil.Process().children())
    left["descriptors"] = len(os.listdir("/proc/self/fd")) - before
    left["instances"] = len(os.listdir(state_dir / "instances"))
    return Soak(
        starts=soaking.done,
        seconds=last.seconds,
        outcomes=dict(soaking.outcomes),
        moments=[*soaking.moments, last],
        left=left,
    )


def growth(report: Soak, name: str) -> float:
    """Return by how much a curve is higher in its last quarter than in its second, where all caches are full."""
    values = [getattr(moment, name) for moment in report.moments]
    quarter = max(1, len(values) // 4)
    early, late = values[quarter : 2 * quarter] or values, values[-quarter:]
    return float(sum(late) / len(late) / (sum(early) / len(early)) - 1)


def draw(report: Soak, file: Path) -> None:
    """Write the memory curves as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    starts = [moment.starts for moment in report.moments]
    axes.plot(starts, [moment.supervisor_bytes / 2**20 for moment in report.moments], label="supervisor, MiB")
    axes.plot(starts, [moment.launcher_bytes / 2**20 for moment in report.moments], label="launcher, MiB")
    axes.plot(starts, [moment.descriptors for moment in report.moments], label="descriptors")
    axes.set_xlabel("starts")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Memory over {report.starts:,} starts of a mix that also fails", loc="left", fontsize=10.5)
    axes.legend(frameon=False)
    figure.savefig(file)


@contextmanager
def _state_dir(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main(arguments: Sequence[str]) -> int:
    """Soak or kill, and print what came of it; 1 when anything was left."""
    options = parse(arguments)
    if options.own:
        trio.run(own, options.state_dir, options.own)
    with _state_dir(options.state_dir) as state_dir:
        if options.kills:
            return kill(state_dir, options)
        random.seed(options.seed)
        report = trio.run(soak, state_dir, options.starts)
    return conclude(report, options)


def kill(state_dir: Path, options: argparse.Namespace) -> int:
    """Kill owners; return 1 when anything outlived one."""
    try:
        print(trio.run(kill_rounds, state_dir, options.kills, options.sandboxes, options.seed))
    except LeftBehind as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    return 0


def conclude(report: Soak, options: argparse.Namespace) -> int:
    """Print and draw a soak; return 1 when anything is left."""
    print(f"{report.starts} starts in {report.seconds:.1f} s; left: {report.left}")
    for outcome, count in sorted(report.outcomes.items()):
        print(f"  {count:7} {outcome}")
    for name in ("supervisor_bytes", "launcher_bytes", "descriptors"):
        print(f"  {name}: {growth(report, name):+.1%} from the second to the last quarter")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(report))
    if options.plot:
        draw(report, options.plot)
    return 1 if any(report.left.values()) else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=1000, metavar="N")
    parser.add_argument("--kills", type=int, metavar="N", help="kill so many owners instead")
    parser.add_argument("--sandboxes", type=int, default=50, metavar="N", help="that each of them holds (50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state-dir", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the memory curves")
    parser.add_argument("--own", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
