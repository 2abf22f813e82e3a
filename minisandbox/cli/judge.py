"""`minisandbox judge`: judge submissions, judge them again, read verdicts, and check ledgers."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minisandbox.cli.judge_serve import add_serve_parser, submit
from minisandbox.cli.options import add_debug_option, add_degrade_option, state_dir
from minisandbox.cli.output import console_of, print_json
from minisandbox.cli.signals import run_until_signal
from minisandbox.errors import LedgerError, UsageError

if TYPE_CHECKING:
    from minisandbox.judge.pipeline import Judge, Judged, Replay
    from minisandbox.judge.store import Store
    from minisandbox.judge.verdict import Verdict

EXAMPLES = """examples:
  minisandbox judge run tasks/sum submission/         judge a directory by a task, and print the verdict
  minisandbox judge run --json tasks/sum submission/
  minisandbox judge replay 0123456789abcdef           judge that episode again: the decision must be the same
  minisandbox judge explain 0123456789abcdef          what was decided, and why; also takes a verdict's file
  minisandbox judge verify-ledger                     is every ledger whole, in order and signed?

exit codes: of run 0 when accepted, 1 when not, 75 when we failed (verdict IE); of replay 1 when the decisions differ;
of verify-ledger 65 when a ledger does not hold (file and line are named)."""

ACCEPTED, REFUSED, TRY_AGAIN, DAMAGED = 0, 1, 75, 65


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "judge", help="judge submissions", description="Judge submissions, and check what was judged.", epilog=EXAMPLES
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser("run", help="judge a directory by a task", epilog=EXAMPLES)
    where = "the directory of a task, with task.toml or judge.toml; with --socket its name there"
    run.add_argument("task", metavar="TASK", type=Path, help=where)
    run.add_argument("artifacts", metavar="ARTIFACTS", type=Path, help="a directory that holds the submission")
    run.add_argument("--socket", type=Path, metavar="PATH", help="let the judge do it that listens there")
    run.set_defaults(serve=serve_run)
    add_serve_parser(actions)
    replay = actions.add_parser("replay", help="judge an episode again", epilog=EXAMPLES)
    replay.add_argument("episode", metavar="EPISODE")
    replay.set_defaults(serve=serve_replay)
    explain = actions.add_parser("explain", help="say what was decided, and why", epilog=EXAMPLES)
    explain.add_argument("verdict", metavar="VERDICT", help="a verdict's file, or the id of its episode")
    explain.set_defaults(serve=serve_explain)
    check = actions.add_parser(
        "verify-ledger", help="check that ledgers are whole, in order and signed", epilog=EXAMPLES
    )
    check.add_argument("episodes", metavar="EPISODE", nargs="*", help="all of them when none is named")
    check.set_defaults(serve=serve_verify)
    for action in (run, replay, explain, check):
        action.add_argument(
            "--judge-dir", type=Path, metavar="DIR", help="the judge's own directory, which only it enters"
        )
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_debug_option(action)
    for action in (run, replay):
        action.add_argument("--state-dir", type=Path, metavar="DIR", help="where root file systems are kept")
        add_degrade_option(action)


def serve_run(options: argparse.Namespace) -> int:
    """Judge a directory, and print the verdict."""
    if options.socket is not None:
        given = submit(options.socket, str(options.task), options.artifacts)
        _print(given.verdict, given.episode, as_json=options.json)
        return _exit_code(given.verdict)
    from minisandbox.tasks.certified import load_certified
    from minisandbox.tasks.directory import load_assignment

    load_assignment(options.task)  # what is malformed is told before anything is opened

    async def work(judge: Judge) -> Judged:
        from minisandbox.judge.seal import feed_directory

        assignment = load_certified(options.task, judge.supervisor.state)
        feed = feed_directory(options.artifacts, assignment.declared)
        return await judge.judge(assignment, await judge.take_in(assignment.declared, feed))

    judged: Judged = run_until_signal(partial(_with_judge, options, work))
    _print(judged.verdict, judged.episode, as_json=options.json)
    return _exit_code(judged.verdict)


def serve_replay(options: argparse.Namespace) -> int:
    """Judge an episode again, and say whether the decision is the same."""

    async def work(judge: Judge) -> Replay:
        return await judge.replay(options.episode)

    replay: Replay = run_until_signal(partial(_with_judge, options, work))
    from minisandbox.judge.verdict import decision_sha256

    before, after = decision_sha256(replay.before), replay.judged.verdict.decision_sha256
    if options.json:
        print_json({"same": replay.same, "before": before, "after": after, "episode": replay.judged.episode})
    else:
        print(
            f"{'the same decision' if replay.same else 'ANOTHER DECISION'}: {before}"
            + ("" if replay.same else f" before, {after} now; see: minisandbox judge explain {replay.judged.episode}")
        )
    return ACCEPTED if replay.same else REFUSED


def serve_explain(options: argparse.Namespace) -> int:
    """Print what was decided, and why."""
    from minisandbox.judge.store import VERDICT_NAME
    from minisandbox.judge.verdict import Verdict, decision_sha256

    path = Path(options.verdict)
    if not path.is_file():
        path = _store(options).episode_path(options.verdict) / VERDICT_NAME
    try:
        verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no verdict: {error}") from error
    if decision_sha256(verdict.decision) != verdict.decision_sha256:
        raise UsageError(f"{path} was changed: its decision is not the one that its digest names")
    _print(verdict, None, as_json=options.json)
    return ACCEPTED


def serve_verify(options: argparse.Namespace) -> int:
    """Check ledgers, all of them unless some are named."""
    from minisandbox.judge.ledger import read_ledger

    store = _store(options)
    damaged = []
    episodes = options.episodes or store.episodes()
    for episode in episodes:
        try:
            read_ledger(store.episode_path(episode), store.signer.verifier)
        except LedgerError as error:
            damaged.append({"episode": episode, "file": str(error.file), "line": error.line, "message": str(error)})
    if options.json:
        print_json({"ok": not damaged, "ledgers": len(episodes), "damaged": damaged})
    else:
        for each in damaged:
            print(each["message"])
        print(f"{len(episodes) - len(damaged)} of {len(episodes)} ledgers are whole, in order and signed")
    return DAMAGED if damaged else ACCEPTED


async def _with_judge(options: argparse.Namespace, work: Any) -> Any:
    from minisandbox.judge.integrity import SHARED_USER, caps_of
    from minisandbox.judge.pipeline import Judge
    from minisandbox.runtime.opening import open_supervisor

    store = _store(options)
    place = state_dir(options)
    async with open_supervisor(state_dir=place, max_sandboxes=8, degrade=options.degrade) as supervisor:
        caps = (SHARED_USER, *caps_of(supervisor.degraded))
        return await work(Judge(supervisor=supervisor, store=store, caps=caps))


def _store(options: argparse.Namespace) -> Store:
    from minisandbox.judge.store import Store

    return Store.open(options.judge_dir)


def _exit_code(verdict: Verdict) -> int:
    if verdict.decision.score is None:
        return TRY_AGAIN
    return ACCEPTED if verdict.decision.verdict.value == "AC" else REFUSED


def _print(verdict: Verdict, episode: str | None, *, as_json: bool) -> None:
    from minisandbox.cli.verdict import explain

    if as_json:
        print_json({"episode": episode, "verdict": verdict} if episode else {"verdict": verdict})
        return
    console = console_of("stdout")
    for line in explain(verdict):
        console.print(line)
    if episode:
        console.print(f"episode     {episode}")
