"""Files of a submission that would be imported in the place of a task's test modules. Pure.

The test roots are the task's, but modules are looked for by name, and a name can be had elsewhere: in a directory that
is searched before that of the tests, or as a package beside a module. With such a file a submission would bring the
data that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_INIT = "__init__"


def shadowing(path: str, protected: frozenset[str], paths: Iterable[str]) -> bool:
    """Return whether a file is a module that has a protected name, or is one below."""
    return any(
        name == other or name.startswith(f"{other}.") for name in module_names(path, paths) for other in protected
    )


def protected_names(files: Iterable[str], roots: Iterable[str], paths: Iterable[str]) -> frozenset[str]:
    """Return the names of the modules in test roots, and of the roots themselves where they are packages."""
    places = tuple(paths)
    modules = [file for file in files if _stem(file) and file.endswith(".py")]
    names = {name for file in modules for name in module_names(file, places)}
    return frozenset(names | {name for root in roots for name in module_names(root, places)})


def module_names(path: str, paths: Iterable[str]) -> Iterator[str]:
    """Yield the names by which a file or a directory is imported, from each directory that is searched."""
    for place in paths:
        prefix = "" if place in (".", "") else place.rstrip("/") + "/"
        if path.startswith(prefix) and path != prefix:
            *folders, _ = (rest := path.removeprefix(prefix)).split("/")
            parts = [*folders, *([] if _stem(rest) == _INIT else [_stem(rest)])]
            if parts:
                yield ".".join(parts)


def _stem(path: str) -> str:
    """Return the last name up to its first point: what makes a module of a file comes after it."""
    return path.rpartition("/")[2].partition(".")[0]
