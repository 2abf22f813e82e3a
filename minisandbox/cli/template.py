"""`minisandbox template`: definitions of warm Pythons, and how much faster one is than a cold one."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from minisandbox.cli.options import add_common_options, state_dir
from minisandbox.cli.output import console_of, print_json
from minisandbox.cli.signals import run_until_signal
from minisandbox.errors import UsageError
from minisandbox.images.state import StateDir
from minisandbox.images.template_file import TemplateFile, load_template, save_template, template_names
from minisandbox.runtime.opening import open_supervisor
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.spec import Result

EXAMPLES = """examples:
  minisandbox template build numbers --rootfs python --import numpy --import json
  minisandbox template build mine --preload warm.py
  minisandbox template warm numbers            (measures a fork against a fresh start)
  minisandbox run --template numbers -- -c 'import numpy; print(numpy.pi)'

A template is a Python that has done its imports and waits: a run is a fork of it in a sandbox of its own."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "template", help="define and measure warm Pythons", description="Define warm Pythons.", epilog=EXAMPLES
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="start a template once, and save its definition", epilog=EXAMPLES)
    build.add_argument("name", metavar="NAME", help="to save it by")
    build.add_argument("--rootfs", default="host", metavar="NAME", help="root file system (%(default)s)")
    build.add_argument("--python", default="python3", metavar="PROGRAM", help="the Python inside (%(default)s)")
    build.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help="repeatable")
    build.add_argument("--preload", type=Path, metavar="FILE", help="a file of Python code, instead of --import")
    build.set_defaults(serve=serve_build)
    listing = actions.add_parser("list", help="list what is saved", epilog=EXAMPLES)
    listing.set_defaults(serve=serve_list)
    warm = actions.add_parser("warm", help="start one and measure forks of it against fresh starts", epilog=EXAMPLES)
    warm.add_argument("name", metavar="NAME", help="a saved template")
    warm.add_argument("--times", type=int, default=20, metavar="N", help="how often each is measured (%(default)s)")
    warm.set_defaults(serve=serve_warm)
    for action in (build, listing, warm):
        add_common_options(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")


def serve_build(options: argparse.Namespace) -> int:
    """Start the template once, so that what is saved is known to work."""
    if options.modules and options.preload is not None:
        raise UsageError("give --import or --preload, not both")
    code = _read(options.preload) if options.preload is not None else None
    wanted = TemplateFile(rootfs=options.rootfs, python=options.python, modules=tuple(options.modules), code=code)
    ready_s = run_until_signal(partial(_build, state_dir(options), options.name, wanted))
    if options.json:
        print_json({"name": options.name, "ready_s": ready_s})
    else:
        print(f"{options.name}: ready in {ready_s:.3f} s, saved")
    return 0


def serve_list(options: argparse.Namespace) -> int:
    """Print what is saved."""
    state = StateDir.open(state_dir(options))
    saved = {name: load_template(state, name) for name in template_names(state)}
    if options.json:
        rows = [{"name": name, "rootfs": one.rootfs, "python": one.python, "modules": one.modules, "code": one.code}
                for name, one in saved.items()]  # fmt: skip
        print_json({"templates": rows})
        return 0
    from rich.table import Table

    table = Table("template", "rootfs", "python", "preload", box=None)
    for name, one in saved.items():
        table.add_row(name, one.rootfs, one.python, ", ".join(one.modules) or ("code" if one.code else "-"))
    console_of("stdout").print(table)
    return 0


def serve_warm(options: argparse.Namespace) -> int:
    """Measure the whole life of a sandbox with one Python in it, warm and cold, one after the other."""
    if options.times < 1:
        raise UsageError(f"--times is {options.times}, it must be at least 1")
    warm_s, cold_s = run_until_signal(partial(_measure, state_dir(options), options.name, options.times))
    if options.json:
        print_json({"name": options.name, "times": options.times, "warm_s": warm_s, "cold_s": cold_s})
    else:
        print(f"{options.name}: warm {warm_s * 1e3:.1f} ms, cold {cold_s * 1e3:.1f} ms, {cold_s / warm_s:.1f} x")
    return 0


def open_saved(supervisor: Supervisor, name: str) -> Any:
    """Return the context manager that opens a saved template."""
    saved = load_template(supervisor.state, name)
    preload = saved.code if saved.code is not None else saved.modules
    return supervisor.open_template(saved.rootfs, python=saved.python, preload=preload)


async def _build(place: Path | None, name: str, wanted: TemplateFile) -> float:
    async with open_supervisor(state_dir=place, self_test=False) as supervisor:
        preload = wanted.code if wanted.code is not None else wanted.modules
        async with supervisor.open_template(wanted.rootfs, python=wanted.python, preload=preload) as template:
            save_template(supervisor.state, name, wanted)
            return template.ready_s


async def _measure(place: Path | None, name: str, times: int) -> tuple[float, float]:
    async with open_supervisor(state_dir=place, self_test=False, max_parked=0) as supervisor:
        saved = load_template(supervisor.state, name)
        code = f"import {', '.join(saved.modules)}" if saved.modules else saved.code or ""
        async with open_saved(supervisor, name) as template:
            warm, cold = [], []
            for _ in range(times):
                warm.append(await _timed(partial(_one_warm, supervisor, template, f"{code}\nprint(1)")))
                cold.append(await _timed(partial(_one_cold, supervisor, saved, f"{code}\nprint(1)")))
    return statistics.median(warm), statistics.median(cold)


async def _timed(act: Callable[[], Awaitable[Result]]) -> float:
    begun = time.monotonic()
    result = await act()
    if not result.ok:
        raise UsageError(f"the preload does not run by itself: {result.stderr.decode(errors='replace')}")
    return time.monotonic() - begun


async def _one_warm(supervisor: Supervisor, template: Template, code: str) -> Result:
    async with supervisor.open_sandbox(template=template) as sandbox:
        return await sandbox.run_warm(code)


async def _one_cold(supervisor: Supervisor, saved: TemplateFile, code: str) -> Result:
    async with supervisor.open_sandbox(rootfs=saved.rootfs) as sandbox:
        return await sandbox.run([saved.python, "-c", code])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
