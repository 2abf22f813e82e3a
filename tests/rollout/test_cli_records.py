"""`minisandbox report|show|export|recover`: what they print and write, as text and as JSON, and their errors."""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minisandbox.cli.main import main
from minisandbox.rollout.database import BLOBS_NAME, DATABASE_NAME
from minisandbox.rollout.export import ROW_NAMES, TURN_NAMES, episode_row
from minisandbox.rollout.schema import INLINE_BYTES
from minisandbox.rollout.spec import Action, Attempt, Edit, Episode, Python, Read, Run, Submit, Write
from tests.cli import json_of, minisandbox
from tests.rollout.episodes import (
    all_actions,
    failed_episode,
    make_episode,
    make_task,
    make_turn,
    make_verdict,
    many_episodes,
)
from tests.rollout.stores import keep_all

EVIL = "\x1b]0;evil\x07\x1b[2J\r\u202e"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The records of a small run."""
    episodes = [make_episode(), failed_episode(sample=1), make_episode("other", "noop", verdict=make_verdict(0.0))]
    return keep_all(tmp_path / "run", episodes, [make_task(), make_task("other")])


def said(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    """Run a command line in this process, check its exit code, and return what it printed on stdout."""
    assert code == main(list(map(str, words)))
    return capsys.readouterr().out


def test_report_writes_a_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into the run's directory unless told otherwise, and says where it is; an older one is replaced."""
    (run / "report.html").write_text("older")

    text = said(capsys, "report", run)
    elsewhere = said(capsys, "report", run, "--out", run.parent / "page.html")

    assert "3 episodes, mean reward 0.500, 1 masked, 0 suspicious" in text
    assert str(run / "report.html") in text
    assert str(run.parent / "page.html") in elsewhere
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert [] == list(run.glob("*.new"))


def test_report_is_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, and no page but where one is asked for."""
    report = msgspec.json.decode(said(capsys, "report", run, "--json"))

    assert (3, 1, 0.5, None) == (report["episodes"], report["masked"], report["mean_reward"], report["page"])
    assert ["oracle", "noop"] == [policy["policy"] for policy in report["policies"]]
    assert not (run / "report.html").exists()


def test_show_lists_the_episodes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each; with --json the rows of the table."""
    lines = said(capsys, "show", run).splitlines()
    rows = msgspec.json.decode(said(capsys, "show", run, "--json"))["episodes"]

    assert "3 episodes" == lines[-1]
    assert {"sum/oracle/0", "sum/oracle/1", "other/noop/0"} == {line.split()[0] for line in lines[1:-1]}
    assert 3 == len(rows)


def test_show_replays_an_episode(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each turn with what was done and what came of it, why it ended, and the verdict."""
    text = said(capsys, "show", run, "sum/oracle/0")
    failed = said(capsys, "show", run, "sum/oracle/1")

    for words in (
        *(
            "This is sum.",
            "turn 1",
            "$ ls -l",
            "< in",
            "  main.sh",
            "exited, code 0",
            "read main.sh",
            "\\xff\\x00binary",
        ),
        *("write main.sh, executable", "+ echo 3", "edit main.sh", "- 3", "+ 4", "refused: the text is not there once"),
        *("signaled, signal 9", "! killed", ">>> print(1)", "< py", "submit", "ended      submitted", "verdict     AC"),
    ):
        assert words in text
    assert "LaunchError: cannot mount /proc" in failed
    assert "verdict    none" in failed


def test_show_cuts_long_outputs_unless_told_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how many lines are left out."""
    output = b"".join(b"line %d\n" % at for at in range(1000))
    run = keep_all(tmp_path, [make_episode(turns=(make_turn(0, Run(command="seq"), stdout=output),))])

    short = said(capsys, "show", run, "sum", "--lines", "4")
    whole = said(capsys, "show", run, "sum", "--lines", "0")

    assert ["line 0", "line 1", "line 998", "line 999"] == [
        line.strip() for line in short.splitlines() if line.startswith("  line")
    ]
    assert "996 lines are left out" in short
    assert 1000 == sum(line.startswith("  line") for line in whole.splitlines())


def evil_episode() -> Episode:
    """Return an episode with what a terminal obeys wherever words can be put."""
    raw = EVIL.encode() + b"\x9b31m\xff"
    actions: tuple[Action, ...] = (
        Run(command=EVIL, stdin=raw),
        Python(code=EVIL, stdin=raw),
        Read(path=EVIL),
        Write(path=EVIL, content=raw),
        Edit(path=EVIL, old=EVIL, new=EVIL),
        Submit(note=EVIL),
    )
    turns = tuple(make_turn(at, action, stdout=raw, stderr=raw, error=EVIL) for at, action in enumerate(actions))
    verdict = make_verdict(0.5)
    tests = tuple(msgspec.structs.replace(test, id=EVIL + test.id) for test in verdict.decision.tests)
    verdict = msgspec.structs.replace(
        verdict,
        decision=msgspec.structs.replace(verdict.decision, tests=tests, integrity_cap_reasons=(EVIL,)),
        observations=msgspec.structs.replace(verdict.observations, failures=(EVIL,)),
    )
    return make_episode(
        f"task{EVIL}",
        turns=turns,
        why=EVIL,
        limits_hit=(EVIL,),
        branched_from=(EVIL, 2),
        verdict=verdict,
        attempts=(Attempt(error=EVIL, message=EVIL, retryable=True, seconds=1.0),),
    )


def test_nothing_that_was_printed_acts_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in the list nor in a trajectory, nor in an error: escapes are shown as such."""
    run = keep_all(tmp_path, [evil_episode()], [make_task(f"task{EVIL}", instruction=EVIL)])

    texts = [
        said(capsys, "show", run),
        said(capsys, "show", run, "oracle"),
        said(capsys, "show", run, "task", "--json"),
    ]

    for text in texts:
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(text)
    for text in texts[:2]:
        assert "\u202e" not in text
        assert "\\x1b]0;evil\\x07" in text


def test_an_episode_that_is_not_there_is_wrong_use(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And so is a part of an id that several have."""
    said(capsys, "show", run, "nothing", code=64)
    said(capsys, "show", run, "sum", code=64)


@pytest.mark.parametrize("command", ["report", "show", "recover"])
def test_a_directory_without_records_is_told(tmp_path: Path, command: str) -> None:
    """As an error of its own kind, also as JSON."""
    ended = minisandbox(tmp_path / "state", command, tmp_path, "--json")

    assert 125 == ended.returncode
    assert "RecordError" == json_of(ended)["error"]["kind"]


def test_export_as_json_lines(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line an episode with its turns; bytes that are no text are in base64."""
    target = tmp_path / "run.jsonl"
    text = said(capsys, "export", run, "--out", target)
    rows = [msgspec.json.decode(line) for line in target.read_bytes().splitlines()]
    done = msgspec.json.decode(said(capsys, "export", run, "--out", target, "--json"))

    assert text.startswith("3 episodes are in")
    assert {"file": str(target), "format": "jsonl", "episodes": 3, "damaged": []} == done
    assert set(ROW_NAMES) == set(rows[0])
    (first,) = [row for row in rows if row["episode"] == "sum/oracle/0"]
    assert "This is sum." in first["instruction"]
    assert [turn.action.__struct_config__.tag for turn in all_actions()] == [turn["action"] for turn in first["turns"]]
    assert ("main.sh\n", None) == (first["turns"][0]["stdout"], first["turns"][1]["stdout"])
    assert b"\xff\0binary" == base64.b64decode(first["turns"][1]["stdout_base64"])
    assert {"message": "turn 0", "logprobs": [-0.5, -1.25]} == first["turns"][0]["data"]
    assert [None, True] == [
        row[name] for row in rows if row["episode"] == "sum/oracle/1" for name in ("reward", "masked")
    ]


def test_export_to_stdout(run: Path) -> None:
    """Lines and nothing else; for Parquet and with --json that is wrong use."""
    ended = minisandbox(run.parent / "state", "export", run, "--out", "-")
    wrong = minisandbox(run.parent / "state", "export", run, "--out", "-", "--format", "parquet")

    assert (0, b"", 3) == (ended.returncode, ended.stderr, len(ended.stdout.splitlines()))
    assert 64 == wrong.returncode


def test_export_as_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows, with types, more than are held in memory at once."""
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    episodes = many_episodes(450)
    run = keep_all(tmp_path / "run", [*episodes, make_episode("z")], [make_task("z")])
    target = tmp_path / "run.parquet"

    text = said(capsys, "export", run, "--format", "parquet", "--out", target)
    rows = {row["episode"]: row for row in parquet.read_table(target).to_pylist()}

    assert text.startswith("451 episodes are in")
    expected = {episode.key.id: episode_row(episode, None) for episode in episodes}
    assert expected == {name: row for name, row in rows.items() if name in expected}
    assert tuple(rows["z/oracle/0"]) == ROW_NAMES
    assert tuple(rows["z/oracle/0"]["turns"][0]) == TURN_NAMES
    assert b"\xff\0binary" == rows["z/oracle/0"]["turns"][1]["stdout"]
    assert (0.012, None) == (
        rows["z/oracle/0"]["turns"][0]["usage"]["wall_time_s"],
        rows["z/oracle/0"]["turns"][1]["usage"],
    )


def test_parquet_without_pyarrow_names_the_extra(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no file behind."""
    real = importlib.import_module

    def import_module(name: str) -> object:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    code = main(["export", str(run), "--format", "parquet", "--out", str(tmp_path / "x.parquet")])

    assert 64 == code
    assert "pip install minisandbox[parquet]" in capsys.readouterr().err
    assert not list(tmp_path.glob("x.parquet*"))


@pytest.mark.parametrize("words", [("export", "--out"), ("report", "--out")])
def test_a_file_that_cannot_be_written_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    """The directory is not there."""
    command, option = words

    code = main([command, str(run), option, str(run / "nowhere" / "file")])

    assert 125 == code
    assert "cannot write" in capsys.readouterr().err


def test_a_damaged_episode_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By an export, which then exits with 1; a recovery names it, too, and afterwards all is well."""
    large = make_episode(sample=1, turns=(make_turn(0, Read(path="x"), stdout=bytes(INLINE_BYTES + 1)),))
    run = keep_all(tmp_path / "run", [make_episode(sample=0), large])
    (blob,) = (path for path in (run / BLOBS_NAME).rglob("*") if path.is_file())
    blob.unlink()

    exported = main(["export", str(run), "--out", str(tmp_path / "x.jsonl")])
    told = capsys.readouterr()
    shown = main(["show", str(run), "sum/oracle/1"])
    error = capsys.readouterr().err
    lost = said(capsys, "recover", run, code=1)
    again = said(capsys, "recover", run)
    as_json = msgspec.json.decode(said(capsys, "recover", run, "--json"))

    assert (1, 125) == (exported, shown)
    assert blob.name in told.err
    assert blob.name in error
    assert "1 episodes are in" in told.out
    assert "1 episodes are kept, 1 are lost" in lost
    assert "lost: sum/oracle/1" in lost
    assert "nothing is damaged: 1 episodes are whole" in again
    assert {"kept": 1, "lost": [], "damaged": None} == as_json


def test_a_damaged_file_says_what_to_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that keeps what is whole is in the message."""
    path = run / DATABASE_NAME
    path.write_bytes(path.read_bytes()[:-8192])

    code = main(["report", str(run)])

    assert 125 == code
    assert f"minisandbox recover {run}" in capsys.readouterr().err


@pytest.mark.parametrize("episode", ["", "sum/oracle/0"])
def test_show_in_a_pipe_that_nobody_reads(run: Path, episode: str) -> None:
    """Ends as any program of a pipeline does, in silence."""
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -u -m minisandbox show {run} {episode} | true"],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )

    assert (True, b"") == (ended.returncode in (0, 141), ended.stderr)


def test_rows_have_the_names_that_are_written_down() -> None:
    """Those of a Parquet file's columns are those of a row, in order."""
    row = episode_row(make_episode(), "do it")

    assert ROW_NAMES == tuple(row)
    assert TURN_NAMES == tuple(row["turns"][0])
