"""Metrics: what Prometheus reads is what happened; the dashboard and the alerts ask for nothing that there is not."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import trio

from minisandbox import BrokenError, Limits, StartError, Supervisor, open_supervisor
from minisandbox.integrations.prometheus import pressure, registry_of, serve_metrics
from minisandbox.runtime.slots import Slot
from tests import observer

PATIENCE_S = 20.0
DASHBOARDS = Path(__file__).parents[1] / "dashboards"
ALERTS = DASHBOARDS / "alerts.yml"
GRAFANA = DASHBOARDS / "grafana.json"


def value(supervisor: Supervisor, name: str, **labels: str) -> float:
    """Return the value of one metric."""
    found = registry_of(supervisor).get_sample_value(f"minisandbox_{name}", labels)
    assert found is not None, f"no {name} {labels}"
    return found


# ---- what is counted


async def test_a_sandbox_and_its_commands_are_counted(supervisor: Supervisor) -> None:
    """Live ones, starts, ends by reason, kills by limit, and durations that add up to what was seen."""
    async with supervisor.open_sandbox() as sandbox:
        live = value(supervisor, "sandboxes", state="live")
        await sandbox.run(["true"])
        await sandbox.run(["sleep", "60"], limits=Limits(wall_time_s=0.05))

    assert (1, 0) == (live, value(supervisor, "sandboxes", state="live"))
    assert 1 == value(supervisor, "starts_total", outcome="ok", stage="")
    assert [1, 1] == [value(supervisor, "commands_total", reason=reason) for reason in ("exited", "wall_time")]
    assert 1 == value(supervisor, "kills_total", reason="wall_time")
    assert [1, 1, 2, 1] == [value(supervisor, f"{name}_seconds_count") for name in ("open", "start", "run", "close")]
    assert 0.05 <= value(supervisor, "run_seconds_sum") < PATIENCE_S


async def test_live_commands_and_sessions_are_counted(supervisor: Supervisor) -> None:
    """A process that ended, one that was given up, and each command of a session count once."""
    async with supervisor.open_sandbox() as sandbox:
        async with await sandbox.start(["true"]) as process:
            await process.wait()
        async with await sandbox.start(["sleep", "60"]):
            pass
        async with sandbox.open_session() as session:
            await session.run("true")
            await session.run("true")

    counted = [value(supervisor, "commands_total", reason=reason) for reason in ("exited", "dropped", "failed")]
    assert [3, 1, 0] == counted


async def test_a_command_that_never_ran_is_counted_as_failed(supervisor: Supervisor) -> None:
    """It has no exit reason, and no time."""
    async with supervisor.open_sandbox() as sandbox:
        with pytest.raises(Exception, match="not found"):
            await sandbox.run(["/no/such/program"])

    assert (1, 0) == (value(supervisor, "commands_total", reason="failed"), value(supervisor, "run_seconds_count"))


async def test_the_self_test_is_not_counted(state_dir: Path) -> None:
    """Nobody asked for its sandbox, and an alarm about its kills would be a false one."""
    async with open_supervisor(state_dir=state_dir) as supervisor:
        assert 0 == value(supervisor, "starts_total", outcome="ok", stage="")
        assert 0 == value(supervisor, "kills_total", reason="memory")


async def test_a_failed_start_is_counted_by_its_stage(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is a label, and nothing is left of it as starting."""

    async def fail(*_: object) -> Slot:
        raise StartError("cannot make namespaces for a sandbox", "slot_userns", 28)

    monkeypatch.setattr(supervisor._slots, "_make", fail)
    with pytest.raises(StartError):
        async with supervisor.open_sandbox():
            pass

    assert 1 == value(supervisor, "starts_total", outcome="start", stage="slot_userns")
    assert [0, 0] == [value(supervisor, "sandboxes", state=state) for state in ("starting", "queued")]


async def test_a_lost_sandbox_is_counted_once(supervisor: Supervisor) -> None:
    """One whose init was killed is lost; one that its owner closed is not."""
    async with supervisor.open_sandbox():
        async with supervisor.open_sandbox() as sandbox, trio.open_nursery() as nursery:
            running = await observer.start(nursery, sandbox, "echo on; exec sleep 60")
            observer.inits()[-1].kill()
            await running.wait()

    assert isinstance(running.error, BrokenError)
    assert 1 == value(supervisor, "lost_sandboxes_total")


def test_pressure_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    """Microseconds become seconds; a resource without a file is left out, and so is all of it on a host without any."""
    (tmp_path / "memory").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n"
    )
    (family,) = pressure(tmp_path)

    assert [("some", 1.5), ("full", 0.25)] == [(sample.labels["who"], sample.value) for sample in family.samples]
    assert [] == list(pressure(tmp_path / "missing"))


def test_the_engine_needs_no_library_of_metrics() -> None:
    """Neither prometheus_client nor the HTTP server is loaded with the package and its command line."""
    code = "import sys, minisandbox.cli.main; print([n for n in sys.modules if 'hypercorn' in n or 'prometheus' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=DASHBOARDS.parent)

    assert ("[]\n", "") == (done.stdout, done.stderr)


# ---- the dashboard and the alerts


def names_in(text: str) -> set[str]:
    """Return the metrics that an expression asks for."""
    return set(re.findall(r"\bminisandbox_\w+", text))


def expressions() -> list[str]:
    """Return every expression of the dashboard and of the alerts."""
    targets = [target for panel in json.loads(GRAFANA.read_text())["panels"] for target in panel["targets"]]
    alerts = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", ALERTS.read_text())
    return [*(target["expr"] for target in targets), *alerts]


@pytest.mark.enforces("control-groups")
async def test_every_metric_that_is_asked_for_is_there(supervisor: Supervisor) -> None:
    """What the dashboard and the alerts name is what the exporter gives, and each metric of it is in one of them."""
    samples = {sample.name for family in registry_of(supervisor).collect() for sample in family.samples}
    samples |= {"minisandbox_pressure_seconds_total"}  # where this kernel has it
    asked = set().union(*map(names_in, expressions()))

    assert set() == asked - samples
    assert {"minisandbox_opened_timestamp_seconds"} == {
        name for name in samples - asked if not name.endswith(("_count", "_sum"))
    }


@pytest.mark.enforces("control-groups")
async def test_every_metric_is_in_the_manual(supervisor: Supervisor) -> None:
    """Each family has a row, and there is no other row."""
    families = {
        family.name + ("_total" if family.type == "counter" else "") for family in registry_of(supervisor).collect()
    }
    families |= {"minisandbox_pressure_seconds_total"}
    manual = (DASHBOARDS.parent / "docs" / "manual.md").read_text()

    assert families == set(re.findall(r"^\| `(minisandbox_\w+)` \|", manual, re.MULTILINE))


def test_every_alert_is_in_the_manual() -> None:
    """With what to do about it."""
    alerts = set(re.findall(r"alert: (\w+)", ALERTS.read_text()))
    manual = (DASHBOARDS.parent / "docs" / "manual.md").read_text()

    assert alerts == set(re.findall(r"^\| `(Minisandbox\w+)` \|", manual, re.MULTILINE))


def program(name: str) -> str:
    """Return the path of a program of Prometheus, or skip."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"this host has no {name} (Debian: apt-get install prometheus)")
    return found


def test_prometheus_takes_the_rules() -> None:
    """Each is one that it can load."""
    done = subprocess.run([program("promtool"), "check", "rules", ALERTS], capture_output=True, text=True)

    assert 0 == done.returncode, done.stdout + done.stderr


RULES_TEST = """
rule_files: [{alerts}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'minisandbox_launcher_up{{instance="a"}}', values: '1 1 0 0 0 0'}}
      - {{series: 'minisandbox_quarantined_slots{{instance="a"}}', values: '0 0 0 2 2 2'}}
      - {{series: 'minisandbox_starts_total{{instance="a",outcome="ok",stage=""}}', values: '0+60x20'}}
      - {{series: 'minisandbox_starts_total{{instance="a",outcome="start",stage="clone"}}', values: '0+20x20'}}
      - {{series: 'minisandbox_starts_total{{instance="a",outcome="cancelled",stage=""}}', values: '0+20x20'}}
      - {{series: 'minisandbox_starts_total{{instance="b",outcome="ok",stage=""}}', values: '0+60x20'}}
    alert_rule_test:
      - {{eval_time: 1m, alertname: MinisandboxLauncherDown}}
      - eval_time: 4m
        alertname: MinisandboxLauncherDown
        exp_alerts: [{{exp_labels: {{instance: a, severity: critical}}, exp_annotations: {{summary: "{down}"}}}}]
      - {{eval_time: 2m, alertname: MinisandboxQuarantine}}
      - eval_time: 5m
        alertname: MinisandboxQuarantine
        exp_alerts: [{{exp_labels: {{instance: a, severity: warning}}, exp_annotations: {{summary: "{quarantine}"}}}}]
      - {{eval_time: 3m, alertname: MinisandboxStartsFail}}
      - eval_time: 12m
        alertname: MinisandboxStartsFail
        exp_alerts: [{{exp_labels: {{instance: a, severity: critical}}, exp_annotations: {{summary: "{fail}"}}}}]
"""


def test_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """By promtool, over made-up series: one fires after its time and not before; cancelled is no failure."""
    down = "The launcher of a is gone, and no sandbox can be started"
    quarantine = "2 slots of a are out of use: something in them could not be proved gone"
    fail = "20% of the starts on a fail"
    test = tmp_path / "test.yml"
    test.write_text(RULES_TEST.format(alerts=ALERTS, down=down, quarantine=quarantine, fail=fail))
    done = subprocess.run([program("promtool"), "test", "rules", test], capture_output=True, text=True)

    assert 0 == done.returncode, done.stdout + done.stderr


# ---- a real Prometheus


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def fetch(address: str, path: str) -> bytes:
    """Return what a server on loopback says to GET."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join([piece async for piece in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return body


@contextlib.asynccontextmanager
async def a_prometheus(place: Path, target: str) -> AsyncIterator[str]:
    """Run one of our own on loopback that scrapes a target, and end it; it keeps its data in `place`."""
    listen = f"127.0.0.1:{free_port()}"
    config = place / "prometheus.yml"
    scrape = {"job_name": "minisandbox", "static_configs": [{"targets": [target.rpartition("//")[2]]}]}
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "rule_files": [str(ALERTS)], "scrape_configs": [scrape]})
    )
    options = [f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}", f"--web.listen-address={listen}"]
    with subprocess.Popen([program("prometheus"), *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            async for line in trio.wrap_file(process.stderr):
                if "Server is ready" in line:
                    break
            yield listen
        finally:
            process.kill()


async def query(listen: str, expression: str) -> list[Any]:
    """Ask Prometheus until it has an answer; each question is real work."""
    with trio.fail_after(PATIENCE_S):
        while True:
            body = msgspec.json.decode(_unchunked(await fetch(listen, f"/api/v1/query?query={quote(expression)}")))
            if body["data"]["result"]:
                return [(each["metric"], each["value"][1]) for each in body["data"]["result"]]
            await trio.lowlevel.checkpoint()


def _unchunked(body: bytes) -> bytes:
    """Return the JSON object in a body, whatever its transfer coding puts around it."""
    return body[body.index(b"{") : body.rindex(b"}") + 1]


@pytest.mark.slow
async def test_a_real_prometheus_reads_a_real_run(supervisor: Supervisor, tmp_path: Path) -> None:
    """What it answers is what was done: three commands ended, one by its limit, and one sandbox is live."""
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(serve_metrics, supervisor, "127.0.0.1", 0)
        async with supervisor.open_sandbox() as sandbox:
            for _ in range(2):
                await sandbox.run(["true"])
            await sandbox.run(["sleep", "60"], limits=Limits(wall_time_s=0.05))
            with trio.fail_after(60):
                async with a_prometheus(tmp_path, address) as listen:
                    live = await query(listen, 'minisandbox_sandboxes{state="live"}')
                    ended = await query(listen, "sum by (reason) (minisandbox_commands_total > 0)")
                    kills = await query(listen, 'minisandbox_kills_total{reason="wall_time"}')
        nursery.cancel_scope.cancel()

    assert ["1"] == [number for _, number in live]
    assert {"exited": "2", "wall_time": "1"} == {labels["reason"]: number for labels, number in ended}
    assert ["1"] == [number for _, number in kills]


async def test_metrics_are_served_without_a_thread(supervisor: Supervisor) -> None:
    """Over HTTP in the supervisor's own loop, on loopback by default."""
    import threading

    before = threading.active_count()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(serve_metrics, supervisor, "127.0.0.1", 0)
        with trio.fail_after(PATIENCE_S):
            body = await fetch(address, "/metrics")
        threads = threading.active_count()
        nursery.cancel_scope.cancel()

    assert b"\nminisandbox_launcher_up 1.0\n" in body
    assert before == threads
