"""Where certificates are kept, and what a task is judged by when it has a valid one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from minisandbox.document import read_content
from minisandbox.errors import TaskError
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.state import StateDir
from minisandbox.judge.assignment import Assignment
from minisandbox.tasks.certificate import FILE_NAME, Certificate
from minisandbox.tasks.directory import FILE_NAME as TASK_FILE
from minisandbox.tasks.directory import load_assignment, load_task_directory
from minisandbox.tasks.task import Task


def read_certificate(directory: Path) -> Certificate | None:
    """Return the certificate in a task's directory. Raises TaskError where it is damaged."""
    path = directory / FILE_NAME
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_content(path, TaskError), type=Certificate)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"no certificate: {error}", path) from error


def write_certificate(directory: Path, certificate: Certificate) -> Path:
    """Put a certificate into a task's directory."""
    path = directory / FILE_NAME
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(certificate)) + b"\n")
    new.rename(path)
    return path


def certified(task: Task, certificate: Certificate | None, state: StateDir) -> tuple[Assignment, str | None]:
    """Return what a task is judged by, and why it has no valid certificate; its verdicts are then capped."""
    if certificate is None:
        return task.bare, "the task was never checked"
    objection = certificate.objection(task.digest, build_rootfs(state, task.assignment.environment.rootfs).digest)
    if objection is not None:
        return task.bare, objection
    return msgspec.structs.replace(task.assignment, certificate=certificate.digest), None


def load_certified(directory: Path, state: StateDir) -> Assignment:
    """Return what the task in a directory is judged by, with its certificate if that is valid."""
    if not (directory / TASK_FILE).exists():
        return load_assignment(directory)
    assignment, _ = certified(load_task_directory(directory), read_certificate(directory), state)
    return assignment
