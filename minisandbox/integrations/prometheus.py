"""Metrics of a supervisor for Prometheus, computed when it asks. Needs the extra `metrics`.

It reads the counts of `minisandbox.runtime.telemetry` and a few files of the kernel, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from minisandbox.runtime.telemetry import BOUNDS_S, Histogram
from minisandbox.spec import ExitReason

if TYPE_CHECKING:
    from minisandbox.runtime.supervisor import Supervisor

Labels = TypeVar("Labels", str, tuple[()], tuple[str, str])
"""The value of the one label, or of none or two."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9477

KILLS = tuple(reason.value for reason in ExitReason if reason not in (ExitReason.EXITED, ExitReason.SIGNALED))
"""The exit reasons that mean that a limit ended a command."""


class SupervisorCollector(Collector):
    """Every metric of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        yield from self._now()
        yield from self._counts()
        yield from self._durations()
        yield from pressure()

    def _now(self) -> Iterator[Metric]:
        supervisor, counts = self._supervisor, self._supervisor.telemetry
        parked = supervisor.parking.parked
        states = {"live": supervisor.live, "parked": parked, "starting": counts.starting, "queued": counts.queued}
        yield _gauges("sandboxes", "Sandboxes by what becomes of them now.", ("state",), states)
        yield _gauge("sandboxes_max", "The most that may be open at once.", supervisor.max_sandboxes)
        yield _gauge("quarantined_slots", "Slots out of use: not proved empty in time.", len(supervisor.quarantined))
        yield _gauge("leaked_instances", "Dead instances of which something could not be removed.", counts.leaked)
        yield _gauge("launcher_up", "Whether the launcher lives.", int(supervisor.serving))
        yield _gauge("opened_timestamp_seconds", "When the supervisor was opened.", counts.opened_at)
        promised_bytes = supervisor.queue.books.booked.memory_bytes
        yield _gauge("promised_bytes", "Memory limits of all open sandboxes together.", promised_bytes)
        memory_bytes = supervisor.memory_bytes()
        if memory_bytes is not None:
            yield _gauge("memory_bytes", "Memory charged to all sandboxes and the launcher.", memory_bytes)

    def _counts(self) -> Iterator[Metric]:
        counts = self._supervisor.telemetry
        starts = {("ok", ""): 0, **counts.starts}
        yield _counters("starts", "Starts, also ahead of demand, by outcome and failed stage.", OUTCOME_STAGE, starts)
        yield _counters("opens", "Sandboxes that were asked for.", ("outcome",), {"ok": 0, **counts.opens})
        reasons = {**{reason.value: 0 for reason in ExitReason}, "failed": 0, "dropped": 0, "lost": 0}
        yield _counters("commands", "Commands by how they ended.", ("reason",), reasons | dict(counts.commands))
        kills = {reason: counts.commands.get(reason, 0) for reason in KILLS}
        yield _counters("kills", "Commands that a limit ended.", ("reason",), kills)
        pools = {
            ("slot", "hit"): counts.slots_taken - counts.slots_made,
            ("slot", "miss"): counts.slots_made,
            ("parked", "hit"): counts.parked_taken,
            ("parked", "miss"): counts.parked_missing,
        }
        yield _counters("pool_requests", "What was found ready, or had to be made.", ("pool", "result"), pools)
        stuck = {"layer": 0, "disk": 0, "network": 0, **counts.stuck}
        yield _counters("stuck_cleanups", "Steps of clean-ups that did not end in time.", ("step",), stuck)
        yield _counters("lost_sandboxes", "Sandboxes that went before their owner closed them.", (), {(): counts.lost})
        yield _counters("lost_launchers", "Launchers that died.", (), {(): counts.launchers_lost})
        yield _counters("lost_events", "Events that could not be logged.", (), {(): counts.events_lost})

    def _durations(self) -> Iterator[Metric]:
        counts = self._supervisor.telemetry
        yield _histogram("open_seconds", "What a caller waited for an open sandbox.", counts.open)
        yield _histogram("queue_seconds", "Waits for admission, of those who had to wait.", counts.wait)
        yield _histogram("start_seconds", "A start, with the wait for its slot.", counts.start)
        yield _histogram("run_seconds", "A command, from request to end.", counts.run)
        yield _histogram("close_seconds", "From the order to close until every process was gone.", counts.close)


OUTCOME_STAGE = ("outcome", "stage")


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"minisandbox_{name}", text, value=value)


def _gauges(name: str, text: str, labels: tuple[str, ...], values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"minisandbox_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, labels: tuple[str, ...], values: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(f"minisandbox_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"minisandbox_{name}", text)
    bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    family.add_metric([], list(zip(bounds, accumulate(histogram.counts), strict=True)), sum_value=histogram.sum_s)
    return family


def pressure(proc: Path = Path("/proc/pressure")) -> Iterable[Metric]:
    """Yield how long the host was short of something (accounting/psi.rst); nothing where the kernel has no PSI."""
    family = CounterMetricFamily(
        "minisandbox_pressure_seconds",
        "Time in which some or all tasks of the host waited.",
        labels=("resource", "who"),
    )
    for resource in ("cpu", "io", "memory"):
        try:
            text = (proc / resource).read_text()
        except OSError:  # not configured, or switched off at boot: reading says EOPNOTSUPP then
            continue
        for line in text.splitlines():
            who, _, facts = line.partition(" ")
            family.add_metric([resource, who], int(facts.rpartition("total=")[2]) / 1e6)
    return [family] if family.samples else []


def registry_of(supervisor: Supervisor) -> CollectorRegistry:
    """Return a registry with the metrics of this supervisor and no others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SupervisorCollector(supervisor))
    return registry


async def serve_metrics(
    supervisor: Supervisor,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the metrics over HTTP until cancelled; `nursery.start` returns the addresses.

    They tell how busy this host is, and no secret of a workload. Whoever can connect may read them.
    """
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1.0
    await serve(make_asgi_app(registry_of(supervisor)), config, task_status=task_status)
