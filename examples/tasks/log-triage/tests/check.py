"""Looks at the report, and at what the service answers; each part is a reward of its own."""

import json
import socket
import subprocess
import time
import urllib.request

REPORT = {"first_failure": "2024-05-17T06:53:23Z", "failed_requests": 91, "cause": "damaged state"}
START_S = 15.0


class Service:
    """A running service, for a block."""

    def __init__(self, port, state):
        self.port, self.state = port, state

    def __enter__(self):
        self.process = subprocess.Popen(["python3", "service/counter.py", str(self.port), self.state], cwd="/submission")
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)  # a service that begins to listen tells nobody
        raise RuntimeError("it does not listen")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def get(self, path):
        """Return what it answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
            return answer.read().decode()


def report():
    """The report says what the log does."""
    with open("/submission/report.json") as file:
        return json.load(file) == REPORT


def starts():
    """It counts from nothing."""
    with Service(8101, "/tmp/new.json") as service:
        return [service.get("count/a"), service.get("hit/a"), service.get("hit/a"), service.get("hit/b")] == list("0121")


def serves():
    """It keeps its numbers over a restart."""
    with Service(8102, "/tmp/kept.json") as service:
        for _ in range(7):
            service.get("hit/x")
    with Service(8103, "/tmp/kept.json") as service:
        return [service.get("count/x"), service.get("hit/x"), service.get("count/y")] == ["7", "8", "0"]


def survives():
    """It serves whatever the state file holds."""
    for number, content in enumerate((b"", b'{"x": 3', b"\xff\xfe\x00", b"[1, 2]")):
        path = f"/tmp/damaged-{number}.json"
        with open(path, "wb") as file:
            file.write(content)
        with Service(8110 + number, path) as service:
            if [service.get("count/x"), service.get("hit/x")] != ["0", "1"]:
                return False
    return True


def passes(test):
    """Return 1 when a test holds."""
    try:
        return int(test())
    except Exception as error:  # whatever a submission makes it raise is a test that fails
        print(f"{test.__name__}: {error!r}")
        return 0


rewards = {test.__name__: passes(test) for test in (report, starts, serves, survives)}
with open("/logs/verifier/reward.json", "w") as file:
    json.dump(rewards, file)
