"""Definitions of templates by name in the state directory: which rootfs, which Python, what is preloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from minisandbox.errors import StateError, UsageError
from minisandbox.images.state import StateDir

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class TemplateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `minisandbox template build` saves."""

    format: int = 1
    rootfs: str
    python: str
    modules: tuple[str, ...] = ()
    code: str | None = None


def save_template(state: StateDir, name: str, template: TemplateFile) -> None:
    """Save a definition, in place of one of that name. Raises UsageError for a name that cannot be one."""
    path = _path(state, name)
    path.parent.mkdir(mode=0o755, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(template)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def load_template(state: StateDir, name: str) -> TemplateFile:
    """Return a definition. Raises UsageError when there is none, StateError when it is damaged."""
    path = _path(state, name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=TemplateFile)
    except FileNotFoundError as error:
        known = ", ".join(template_names(state)) or "none"
        raise UsageError(f"there is no template {name}; known: {known}; see: minisandbox template build") from error
    except msgspec.MsgspecError as error:
        raise StateError(f"{path} is no definition of a template: {error}; build it again") from error


def template_names(state: StateDir) -> list[str]:
    """Return the names of all that are saved."""
    directory = state.path / "templates"
    return sorted(path.stem for path in directory.glob("*.json")) if directory.is_dir() else []


def _path(state: StateDir, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a template; use lower-case letters, digits, '-', '_' and '.'")
    return state.path / "templates" / f"{name}.json"
