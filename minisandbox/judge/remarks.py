"""What is told of a submission by the names and digests of its files alone, before anything of it is run. Pure."""

from __future__ import annotations

import hashlib
import posixpath

import msgspec

from minisandbox.judge.assignment import Assignment, Declared, SuiteWork
from minisandbox.judge.decide import sort_evidence
from minisandbox.judge.evidence import MOST_PATHS, Code, Evidence, evidence, printable
from minisandbox.judge.spec import Manifest

SYSTEM = frozenset({"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"})
"""Directories of the root in which systems keep programs, libraries and settings."""

PACKAGES = frozenset({"site-packages", "dist-packages"})
LOADER = "ld.so."
"""Begins the names of the files that the dynamic loader reads."""


def remarked(manifest: Manifest, assignment: Assignment) -> Manifest:
    """Return a manifest with what there is to tell; once that is there, it stays the same."""
    found = [item for each in manifest.evidence if (item := _of_its_own(each, manifest, assignment)) is not None]
    system = tuple(file.path for file in manifest.files if _is_systems(file.path, assignment.declared))
    if system:
        found.append(evidence(Code.E10_SYSTEM_PATH_CHANGED, paths=system))
    return msgspec.structs.replace(manifest, evidence=sort_evidence(found))


def _is_systems(path: str, declared: Declared) -> bool:
    """Return whether a file is the system's where it comes from, and the task did not ask for just that."""
    asked = [root for root in declared.paths if root == "." or path == root or path.startswith(f"{root}/")]
    return _is_place(_placed(declared.root, path)) and not any(
        _is_place(_placed(declared.root, root)) for root in asked
    )


def _placed(root: str, path: str) -> tuple[str, ...]:
    return tuple(posixpath.normpath(posixpath.join(root, path)).strip("/").split("/"))


def _is_place(names: tuple[str, ...]) -> bool:
    return names[0] in SYSTEM or not PACKAGES.isdisjoint(names) or names[-1].startswith(LOADER)


def _of_its_own(item: Evidence, manifest: Manifest, assignment: Assignment) -> Evidence | None:
    """Return evidence about sources without those that the task itself brought; None when no other is left."""
    work = assignment.work
    if item.code != Code.E13_INTROSPECTION.name or not isinstance(work, SuiteWork):
        return item
    known = {(file.path, hashlib.sha256(file.content).hexdigest()) for file in (*work.base, *work.files)}
    given = {printable(file.path) for file in manifest.files if (file.path, file.sha256) in known}
    left = tuple(path for path in item.paths if path not in given)
    if not left and len(item.paths) < MOST_PATHS:  # as many as are named may be less than there were
        return None
    return msgspec.structs.replace(item, paths=left or item.paths)
