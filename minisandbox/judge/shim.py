"""The host of a submission's module, in a cell: imports it, and answers calls with data. Nothing expected is ever here.

It is sent into the cell beside `frames.py` and run there by whatever Python it has. The submission can do with this
process what it likes: what it says is only the submission's own answer. Its standard output goes nowhere.
"""

from __future__ import annotations

import importlib
import os
import sys

from frames import FrameError, decode, frame, frame_size  # type: ignore[import-not-found]  # lies beside it in a cell


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def _answer(module: str, path: str, function: str, arguments: tuple) -> list:  # type: ignore[type-arg]  # Python 3.8 too
    """Call a function, and return what came of it as data."""
    try:
        if path not in sys.path:
            sys.path.insert(0, path)
        target = importlib.import_module(module)
        for name in function.split("."):
            target = getattr(target, name)
        args, kwargs = arguments
        result = target(*args, **kwargs)  # type: ignore[operator]  # if it is none, that is the answer
    except BaseException as error:  # noqa: BLE001 - whatever it raises is its answer
        return ["raised", [kind.__name__ for kind in type(error).__mro__][:16], str(error)[:200]]
    try:
        frame(result)
    except FrameError as error:
        return ["not plain", str(error)]
    return ["returned", result]


def _leave(replies_fd: int) -> None:
    """Keep a forked child off the calls and the answers: which of the two is faster must not be what is answered."""
    os.close(replies_fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def main() -> None:
    """Serve calls until there are no more."""
    replies_fd = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.register_at_fork(after_in_child=lambda: _leave(replies_fd))
    while True:
        request = decode(_read(frame_size(_read(4))))
        try:
            reply = frame(_answer(*request))
        except (FrameError, ValueError):
            reply = frame(["not plain", "an error without a name"])
        while reply:
            reply = reply[os.write(replies_fd, reply) :]


if __name__ == "__main__":
    main()
