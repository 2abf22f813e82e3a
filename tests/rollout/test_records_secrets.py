"""Secrets are redacted before they are written: in the database, its log and the blobs; and nothing else is changed."""

from __future__ import annotations

import base64
import random
import string
import time
from pathlib import Path

import pytest

from minisandbox.errors import RecordError, UsageError
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.records import open_records
from minisandbox.rollout.redact import PATTERNS, Redactor
from minisandbox.rollout.schema import INLINE_BYTES
from minisandbox.rollout.spec import Action, Attempt, Edit, Python, Run, Submit, Write
from minisandbox.rollout.store import open_store
from tests.rollout.episodes import RUN, make_episode, make_task, make_turn

CHANCE = random.Random(7)


def letters(number: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Return letters that no scanner of this repository takes for a secret, since they are made when it runs."""
    return "".join(CHANCE.choice(alphabet) for _ in range(number - 1)) + "7"


KEY = "\n".join(letters(64) for _ in range(4))
SECRETS = {
    "openssh key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY}\n-----END OPENSSH PRIVATE KEY-----",
    "rsa key": f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{KEY}\n-----END RSA PRIVATE KEY-----",
    "key in one line": f"-----BEGIN PRIVATE KEY-----\\n{letters(200)}\\n-----END PRIVATE KEY-----",
    "key without end": f"-----BEGIN EC PRIVATE KEY-----\n{KEY}",
    "key without beginning": f"{KEY}\n-----END EC PRIVATE KEY-----",
    "aws": "AKIA" + letters(16, string.ascii_uppercase),
    "google": "AIza" + letters(35),
    "sk": "sk-" + letters(40),
    "sk-proj": "sk-proj-" + letters(60),
    "stripe": "sk_live_" + letters(24),
    "github": "ghp_" + letters(36),
    "github fine": "github_pat_" + letters(60),
    "gitlab": "glpat-" + letters(20),
    "slack": "xoxb-" + letters(30),
    "hub": "hf_" + letters(34),
    "npm": "npm_" + letters(36),
    "pypi": "pypi-" + letters(80),
    "jwt": f"eyJ{letters(20)}.eyJ{letters(40)}.{letters(43)}",
}
NAMED = {
    "url": ("https://user:", letters(12), "@example.org/x"),
    "database": ("postgres://app:", letters(20), "@db:5432/app"),
    "header": ("Authorization: Bearer ", letters(20), "\n"),
    "basic": ("authorization: basic ", letters(20), "\r\n"),
    "variable": ("DB_PASSWORD=", letters(20), "\n"),
    "exported": ('export SERVICE_API_KEY="', letters(20), '"'),
    "yaml": ("SECRET_KEY: ", letters(50), "\n"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_redacted_wherever_it_stands(name: str) -> None:
    """Alone, in a text, in quotes, and in bytes that are no text."""
    secret = SECRETS[name]
    redactor = Redactor()

    for before, after in (("", ""), ("a ", " b"), ('x = "', '"\n'), ("é\n", "\né")):
        said = redactor.text(before + secret + after)
        assert "[redacted: " in said
        assert secret[12:] not in said
        assert (True, True) == (said.startswith(before), said.endswith(after))
    raw = redactor.content(b"\xff" + b" " + secret.encode() + b" \xff\0")
    assert secret[12:].encode() not in raw
    assert (b"\xff ", b"\xff\0") == (raw[:2], raw[-2:])
    assert 5 == redactor.count


@pytest.mark.parametrize("name", NAMED)
def test_what_a_name_says_is_a_secret_is_redacted_and_the_name_stays(name: str) -> None:
    """So that one still sees what it was."""
    before, secret, after = NAMED[name]

    said = Redactor().text(before + secret + after)

    assert secret not in said
    assert (True, True) == (said.startswith(before), said.endswith(after))


HARMLESS = [
    "def token(self): return self.tokens[12]",
    "password = getpass('the password of 12 users: ')",
    "TOKEN = next(tokenize(code))",
    "risk-assessment-of-all-projects-in-the-year-and-after",
    "https://example.org:8080/path@2",
    "http://[::1]:8080/",
    "sha256:" + "0123456789abcdef" * 4,
    "echo 'the bearer of bad news'",
    "mailto:someone@example.org",
    "eyJ is how such tokens begin",
    "from sk-learn import things",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_not_changed(text: str) -> None:
    """Records that were changed for nothing would be worth less."""
    redactor = Redactor()

    assert text == redactor.text(text)
    assert text.encode() == redactor.content(text.encode())
    assert 0 == redactor.count


def content_of(directory: Path) -> bytes:
    """Return all bytes of all files of a store."""
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


async def test_no_file_of_a_store_ever_holds_a_secret(tmp_path: Path) -> None:
    """Wherever it came from: actions, outputs, data, errors, events, options, facts of the machine, tasks."""
    secret, own = SECRETS["github"], "internal-" + letters(8, string.digits)
    text = f"it is {secret}, or {own}."
    big = text.encode() + bytes(INLINE_BYTES)
    actions: tuple[Action, ...] = (
        Run(command=text, stdin=text.encode()),
        Python(code=text * 500, stdin=text.encode()),
        Write(path=text, content=big),
        Edit(path="x", old=text, new=text * 500),
        Submit(note=text),
    )
    turns = tuple(make_turn(at, action, stdout=big, stderr=text.encode()) for at, action in enumerate(actions))
    attempt = Attempt(error="OSError", message=text, retryable=True, seconds=1.0)
    episode = make_episode(turns=turns, why=text, attempts=(attempt,))
    run = RunInfo(policies=("a",), samples=1, seed=1, options={"url": text, text: 1}, machine={"host": text})

    async with open_store(tmp_path, secrets=[r"internal-[0-9]{8}"]) as store:
        await store.begin(run)
        await store.task(make_task(instruction=text, metadata={text: text}))
        for turn in turns:
            await store.turn(episode.key, turn)
        await store.event("retry", episode.key, {"message": text, "list": [text], "raw": text.encode()})
        during = content_of(tmp_path)
        await store.finish(episode)
    after = content_of(tmp_path)
    with open_records(tmp_path) as records:
        (row,) = records.rows("SELECT redacted FROM episodes")
        kept = records.episode(episode.key)
    # and the test can fail: without patterns they are there
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "x").write_bytes(text.encode())

    for content in (during, after):
        for word in (secret, own):
            assert word.encode() not in content
            assert base64.b64encode(word.encode())[4:-8] not in content
    assert secret.encode() in content_of(tmp_path)
    assert row["redacted"] > 1000
    assert "it is [redacted: token], or [redacted: secret]." == kept.trajectory.why


async def test_names_that_hold_secrets_are_refused(tmp_path: Path) -> None:
    """Records are found by the names of policies and tasks, so they cannot be redacted; nor are they ever written."""
    secret = SECRETS["sk"]
    async with open_store(tmp_path) as store:
        with pytest.raises(RecordError, match="the name of a policy holds what looks like a secret") as caught:
            await store.begin(RunInfo(policies=(f"http:{secret}",), samples=1, seed=1))
        await store.begin(RUN)
        with pytest.raises(RecordError, match="the name of a task"):
            await store.task(make_task(secret))

    assert secret not in str(caught.value)
    assert secret.encode() not in content_of(tmp_path)


@pytest.mark.parametrize(("pattern", "said"), [("(", "is no regular expression"), ("x*", "matches the empty text")])
async def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str, said: str) -> None:
    """Before anything is made."""
    with pytest.raises(UsageError, match=said):
        async with open_store(tmp_path / "run", secrets=[pattern]):
            pass

    assert not (tmp_path / "run").exists()


async def test_a_pattern_that_matches_everything_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    """Where it would replace a word that only another of a list could stand for."""
    async with open_store(tmp_path, secrets=["submitted"]) as store:
        await store.begin(RUN)
        with pytest.raises(RecordError, match="does a pattern of secrets match what is none"):
            await store.finish(make_episode())


ADVERSE = [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + "A" * 60,
    "A" * 70 + "\n",
    "AAAA ",
    "TOKEN=",
    "SECRET",
    "PASSWORD=a",
    "sk-",
    "sk-a",
    "eyJaaaaaaaa.",
    "://a",
    "://:",
    "Authorization: Bearer ",
    "AUTHORIZATION:       ",
    "bearer ",
    "ghp_",
]


@pytest.mark.parametrize("text", ADVERSE)
def test_no_text_takes_long(text: str) -> None:
    """A policy cannot hold up the loop with what it prints: half a megabyte takes no more than seconds."""
    words = " ".join(word for _, words, _ in PATTERNS for word in words) + " -----END PRIVATE KEY-----"
    redactor = Redactor()

    def seconds(size: int) -> float:
        content = (text * (size // len(text)) + words).encode()
        began = time.process_time()
        redactor.content(content)
        return time.process_time() - began

    seconds(1 << 14)

    assert seconds(1 << 19) < 4.0
