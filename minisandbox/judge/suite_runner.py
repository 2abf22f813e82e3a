"""Runs tests in a cell by pytest, and says on a pipe of its own what came of each. Nothing of the judge's is here.

It is sent into the cell beside `frames.py` and run there by the Python of the environment. Whatever pytest would read
of a repository by itself (settings, plugins, conftest.py files) it is told not to. A submission shares its interpreter,
so what it says is worth no more than what mirrors leave of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

HERE = "/judge"


def _read_request() -> Any:
    from frames import decode, frame_size  # type: ignore[import-not-found]  # lies beside it in a cell

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = os.read(0, size - len(data))
            if not chunk:
                os._exit(3)
            data += chunk
        return data

    return decode(exactly(frame_size(exactly(4))))


def _reporter(key: bytes) -> Any:
    """Return what sends a record. The pipe is the first standard output; from here on that is the standard error."""
    from frames import frame

    fd = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    count = 0

    def report(*words: object) -> None:
        nonlocal count
        data = frame([key, count, *words])
        count += 1
        while data:
            data = data[os.write(fd, data) :]

    return report


class Recorder:
    """A plugin that reports each test once, when it was torn down."""

    def __init__(self, report: Any, wanted: set[str], whole: set[str]) -> None:
        self._report, self._wanted, self._whole = report, wanted, whole
        self._outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what is wanted."""
        items[:] = [
            item for item in items if item.nodeid in self._wanted or item.nodeid.partition("::")[0] in self._whole
        ]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take note of a phase of a test: it passed only when all of them did, and were run as they are."""
        before = self._outcomes.get(report.nodeid, "passed")
        now = "error" if hasattr(report, "wasxfail") or report.skipped else report.outcome
        if report.failed and report.when != "call":
            now = "error"
        self._outcomes[report.nodeid] = now if before == "passed" else before
        if report.when == "teardown":
            self._report("test", report.nodeid, self._outcomes[report.nodeid])


def main() -> None:
    """Read what is to be run, run it, and say how it went."""
    sys.path.insert(0, HERE)
    request = _read_request()
    report = _reporter(request["key"])
    import pytest

    sys.path.remove(HERE)
    sys.path += [os.path.normpath(os.path.join(request["root"], path)) for path in request["paths"]]
    arguments = ["-c", HERE + "/judge.ini", "--rootdir", request["root"], "-p", "no:cacheprovider", "-q", "--tb=no"]
    arguments += ["--import-mode=importlib", "--continue-on-collection-errors", "--confcutdir", request["root"]]
    if not request["conftest"]:
        arguments.append("--noconftest")
    for plugin in request["plugins"]:
        arguments += ["-p", plugin]
    files = [os.path.join(request["root"], name) for name in request["files"]]
    pytest.main([*arguments, *files], plugins=[Recorder(report, set(request["tests"]), set(request["whole"]))])
    report("end")
    os._exit(0)


main()
