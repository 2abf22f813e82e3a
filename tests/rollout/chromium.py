"""A browser without a window, spoken to over a pair of pipes: what it makes of a page, and whom it asks meanwhile.

The words are those of the Chrome DevTools Protocol, which `--remote-debugging-pipe` speaks as JSON objects with a NUL
after each.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DEADLINE_S = 60.0
OPTIONS = (
    # the tests may run as root, for whom Chromium has no sandbox
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)


def chromium() -> str:
    """Return the browser's program; skip the test where this host has none."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip(f"this host has no Chromium, under none of the names {', '.join(NAMES)}")


class Browser:
    """One page of a browser."""

    def __init__(self, to_fd: int, from_fd: int) -> None:
        self._to_fd, self._from_fd = to_fd, from_fd
        self._buffer, self._number, self._session = b"", 0, ""
        self._asked: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, anchor: str = "", width: int = 1280, scheme: str = "light") -> None:
        """Open a page from the beginning and wait until it is loaded."""
        self.call("Page.navigate", url="about:blank")
        self._asked.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=f"file://{page}{anchor}")
        self.wait_until("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return what came back."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_fd, msgspec.json.encode(message) + b"\0")
        while True:
            answer = self._read()
            self._note(answer.get("method", ""), answer.get("params", {}))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    @property
    def asked(self) -> list[str]:
        """The addresses that were asked for since a page was opened; not those that its policy forbade to ask."""
        return list(self._asked.values())

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self._asked[told["requestId"]] = told["request"]["url"]
        elif event == "Network.loadingFailed" and told.get("blockedReason") == "csp":
            self._asked.pop(told["requestId"], None)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, and of a promise what it is kept with."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait for a condition of the page."""
        look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 10); look();"
        assert self.evaluate(f"new Promise((done) => {{ {look} }})")

    def press(self, key: str) -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self) -> bytes:
        """Return a picture of what is in the window."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def _read(self) -> dict[str, Any]:
        ends = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from_fd], [], [], max(0.0, ends - time.monotonic()))
            chunk = os.read(self._from_fd, 1 << 20) if ready else b""
            assert chunk, "the browser says nothing, or is gone"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = msgspec.json.decode(message)
        return answer


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    there, to_fd = os.pipe()
    from_fd, here = os.pipe()
    # its ends of the pipes are descriptors 3 and 4
    script = f'exec "$@" 3<&{there} 4>&{here}'
    command = ["bash", "-c", script, "chromium", chromium(), *OPTIONS, f"--user-data-dir={profile}"]
    with subprocess.Popen(command, pass_fds=(there, here), stderr=subprocess.DEVNULL) as process:
        os.close(there)
        os.close(here)
        try:
            browser = Browser(to_fd, from_fd)
            yield browser
            browser.call("Browser.close")
        finally:
            os.close(to_fd)
            os.close(from_fd)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
