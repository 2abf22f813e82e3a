"""Tasks and findings as lines for a person and as fields for a program. It prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from minisandbox.judge.kind import kind_of
from minisandbox.judge.spec import Manifest
from minisandbox.tasks.certificate import Certificate, Finding, Status
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import Task

if TYPE_CHECKING:
    from rich.text import Text

MOST_SHOWN = 80
_COLOURS = {Status.PASSED: "green", Status.WARNED: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"}


def task_fields(task: Task) -> dict[str, object]:
    """Return what can be told of a task in a line; neither answers nor tests."""
    plan = kind_of(task.assignment).plan(task.assignment, Manifest(), b"")
    return {
        "name": task.name,
        "kind": _kind_name(task),
        "tests": len(plan.expected),
        "integrity": task.assignment.integrity.value,
        "rootfs": task.assignment.environment.rootfs,
        "warm": None if task.agent.warm is None else list(task.agent.warm),
        "files": len(task.files),
        "has_solution": bool(task.solution),
        "digest": task.digest,
        "metadata": task.metadata,
    }


def _kind_name(task: Task) -> str:
    return str(task.assignment.work.__struct_config__.tag)


def list_lines(tasks: Sequence[Task], unfit: Sequence[Unfit], certificates: dict[str, str]) -> Iterator[str]:
    """Yield a line for each task, then for each that is none."""
    width = max((len(task.name) for task in tasks), default=0)
    for task in tasks:
        fields = task_fields(task)
        said = certificates.get(task.name, "")
        yield f"{task.name:<{width}}  {fields['kind']:<9} {fields['tests']:>4} tests  {said}".rstrip()
    for item in unfit:
        yield f"unfit: {item.name}: {item.why}"
    yield f"{len(tasks)} tasks" + (f", {len(unfit)} unfit" if unfit else "")


def show_lines(task: Task) -> Iterator[str]:
    """Yield all that can be told of a task."""
    for name, value in task_fields(task).items():
        yield f"{name:<13} {value}"
    yield f"{'artifacts':<13} {', '.join(task.assignment.declared.paths)} below {task.assignment.declared.root}"
    yield ""
    yield task.instruction.rstrip()


def finding_line(finding: Finding) -> Text:
    """Return a finding with its evidence, shortened where there is nothing to do about it."""
    from rich.text import Text

    line = Text(f"  {finding.id} ")
    line.append(f"{finding.status.value:<8}", style=_COLOURS[finding.status])
    line.append(f" {finding.rule}")
    if finding.status in (Status.PASSED, Status.SKIPPED):
        short = "; ".join(finding.evidence)
        line.append(f"  {short[:MOST_SHOWN]}{'...' if len(short) > MOST_SHOWN else ''}", style="dim")
        return line
    for evidence in finding.evidence:
        line.append(f"\n               {evidence}", style=_COLOURS[finding.status])
    return line


def certificate_fields(name: str, certificate: Certificate) -> dict[str, object]:
    """Return a certificate with the name of its task."""
    return {"name": name, "certificate": certificate}


def checked_lines(checked: Sequence[tuple[str, Certificate]], unfit: Sequence[Unfit]) -> Iterator[str]:
    """Yield what came of checking many: a line for each that is not certified, with why, then how many are."""
    for name, certificate in checked:
        failed = [finding for finding in certificate.findings if finding.status is Status.FAILED]
        if not certificate.certified:
            yield f"not certified: {name}: " + "; ".join(f"{each.id} {'; '.join(each.evidence)}" for each in failed)
    for item in unfit:
        yield f"unfit: {item.name}: {item.why}"
    good = sum(certificate.certified for _, certificate in checked)
    yield f"{good} of {len(checked)} tasks are certified" + (f", {len(unfit)} unfit" if unfit else "")
