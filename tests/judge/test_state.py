"""What a submission left behind: files are compared, services are started from it and asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.judge.assignment import FileCheck, RequestCheck, Service, StateWork
from minisandbox.judge.checkers import Tokens
from minisandbox.judge.driver_program import body_of
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import decision

FILES = StateWork(
    checks=(
        FileCheck(id="there", path="out/log"),
        FileCheck(id="right", path="out/answer", answer=b"4 2\n", checker=Tokens()),
    )
)
SERVICE = StateWork(
    services=(Service(command=("python3", "server.py")),),
    checks=(RequestCheck(id="page", port=8000, request=b"GET /page HTTP/1.0\r\n\r\n", answer=b"hello\n", http=True),),
)
SERVER = "import http.server\nhttp.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')\n"


async def test_files_are_compared(judge: Judge, tmp_path: Path) -> None:
    """One that is there and right passes, and one that is a link or wrong does not."""
    right = await decision(judge, tmp_path / "a", {"out/log": "", "out/answer": "4   2"}, FILES)
    wrong = await decision(judge, tmp_path / "b", {"out/answer": "4 3"}, FILES)

    assert (Outcome.AC, 2) == (right.verdict, right.passed)
    assert (Outcome.WA, 0) == (wrong.verdict, wrong.passed)


SERVERS = {
    "right": ({"server.py": SERVER, "page": "hello\n"}, Outcome.AC),
    "wrong": ({"server.py": SERVER, "page": "hallo\n"}, Outcome.WA),
    "not there": ({"page": "hello\n"}, Outcome.RTE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
async def test_services_are_started_and_asked(judge: Judge, tmp_path: Path, name: str) -> None:
    """Nothing of the episode is needed but the artifacts."""
    files, expected = SERVERS[name]
    work = SERVICE if expected is not Outcome.RTE else impatient()
    made = await decision(judge, tmp_path / "a", files, work)

    assert expected is made.verdict


def impatient() -> StateWork:
    """The same task, which waits less."""
    return StateWork(services=SERVICE.services, checks=(RequestCheck(id="page", port=8000, within_s=1.0),))


def test_only_a_good_reply_has_a_body() -> None:
    """By its status line."""
    assert b"x" == body_of(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nx")
    for reply in (b"", b"x", b"HTTP/1.0 404 No\r\n\r\nx", b"FTP 200\r\n\r\n"):
        assert None is body_of(reply)
