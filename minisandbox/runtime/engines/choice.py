"""The engines by name, each opened at its first use and closed with the supervisor."""

from __future__ import annotations

from collections.abc import Callable

from minisandbox.errors import UsageError
from minisandbox.runtime.engines import Engine
from minisandbox.runtime.engines.native import NativeEngine
from minisandbox.runtime.engines.nsjail import NsjailEngine

DEFAULT_ENGINE = "native"

ENGINES: dict[str, Callable[[], Engine]] = {DEFAULT_ENGINE: NativeEngine, "nsjail": NsjailEngine}


class Engines:
    """Those that are in use. `default` is the name of that for sandboxes which name none."""

    def __init__(self, default: str) -> None:
        check_engine(default)
        self.default = default
        self._open: dict[str, Engine] = {}

    def find(self, name: str) -> Engine:
        """Return an engine. Raises UsageError when there is none of that name, HostError when it is not installed."""
        if name not in self._open:
            check_engine(name)
            self._open[name] = ENGINES[name]()
        return self._open[name]

    def close(self) -> None:
        """Close all."""
        for engine in self._open.values():
            engine.close()
        self._open.clear()


def check_engine(name: str) -> None:
    """Raise UsageError for an engine that is none."""
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}; choose one of {', '.join(ENGINES)}")
