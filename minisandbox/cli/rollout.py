"""`minisandbox rollout`: play tasks by policies, judge what came of it, and record all of it."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minisandbox.cli.options import add_common_options, add_degrade_option, add_reserve_options, state_dir
from minisandbox.errors import UsageError

if TYPE_CHECKING:
    from minisandbox.rollout.concurrency import Concurrency
    from minisandbox.rollout.policy import Player, TrustedPlayer
    from minisandbox.rollout.spec import Budget

EXAMPLES = """examples:
  minisandbox rollout examples/tasks --policy oracle --policy noop --out run/
  minisandbox rollout humaneval --limit 20 --policy cheat --samples 4 --out run/
  minisandbox rollout tasks/ --policy python:mine:act --concurrency 8 --out run/
  minisandbox rollout tasks/ --policy 'small=command:./policy --greedy' --out run/
  minisandbox rollout tasks/ --policy http://127.0.0.1:8000/v1 --model m --samples 8 --out run/
  minisandbox report run/                              what came of it

The same command goes on with a run that was ended, by whatever. Ctrl-C lets the episodes end that run; once more, and
they are cancelled, and played when the run goes on.

exit codes: 0 when every episode has a verdict, 75 when some have none because we failed, 65 when a task is malformed,
128 + N when signal N ended it."""

DONE, TRY_AGAIN, MALFORMED = 0, 75, 65
MOST = 256
"""How many episodes run at once at most where the number follows the load."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "rollout",
        help="play tasks by policies, and judge and record the episodes",
        description="Play tasks by policies, each episode in a sandbox of its own, and judge and record them.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "tasks", metavar="TASKS", nargs="+", help="a directory of a task or of tasks, or a set by its name"
    )
    parser.add_argument(
        "--policy", action="append", required=True, metavar="[NAME=]POLICY", help="see below; repeatable"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the records are kept")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="episodes of each task and policy (1)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each source only")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that policies choose by it (0)")
    parser.add_argument(
        "--concurrency",
        default="auto",
        metavar="N|A-B|auto",
        help="episodes at once; between bounds by the load (auto)",
    )
    parser.add_argument("--judge-socket", type=Path, metavar="PATH", help="let the judge decide that listens there")
    parser.add_argument("--tries", type=int, default=4, metavar="N", help="of an episode that we failed (4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    _add_budget(parser)
    _add_endpoint(parser)
    add_common_options(parser)
    add_degrade_option(parser)
    add_reserve_options(parser)
    parser.set_defaults(serve=serve)


def _add_budget(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what bounds an episode", '"none" is no limit')
    for name, what in (
        ("turns", "actions"),
        ("tokens", "tokens, as the policy counts them"),
        ("wall-time", "seconds of all turns and the policy's thinking"),
        ("verdict-time", "seconds of the verdict"),
        ("turn-time", "seconds of one action"),
        ("think-time", "seconds of one answer of the policy"),
    ):
        group.add_argument(f"--{name}", type=_number_or_none, default=argparse.SUPPRESS, metavar="N", help=what)
    group.add_argument(
        "--outcome-bytes", type=int, default=argparse.SUPPRESS, metavar="N", help="of a stream that is seen"
    )


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies that are a model behind HTTP")
    group.add_argument("--model", default="default", metavar="NAME", help="the model that is asked for")
    group.add_argument("--parameters", default="{}", metavar="JSON", help='more of a request, as {"temperature": 1}')
    group.add_argument("--key-variable", metavar="NAME", help="the environment variable that holds the server's key")


def _number_or_none(text: str) -> float | None:
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is neither a number nor "none"') from None


def serve(options: argparse.Namespace) -> int:
    """Play a run to its end, or to the signal that ends it."""
    import trio

    from minisandbox.cli.rollout_run import serve_run
    from minisandbox.cli.rollout_shown import show_summary
    from minisandbox.rollout.run import Plan
    from minisandbox.rollout.scheduler import Retry
    from minisandbox.rollout.source import check_sources

    plan = Plan(
        players=_players(options),
        samples=options.samples,
        seed=options.seed,
        budget=_budget(options),
        concurrency=_concurrency(options.concurrency),
        retry=Retry(tries=options.tries),
    )
    check_sources(options.tasks)
    place = state_dir(options)
    summary = trio.run(partial(serve_run, plan, options.tasks, options, place))
    show_summary(summary, as_json=options.json)
    if summary.signal is not None:
        return 128 + summary.signal
    if summary.malformed:
        return MALFORMED
    return (
        TRY_AGAIN
        if any(each.verdicts.get("none") or each.verdicts.get("IE") for each in summary.policies.values())
        else DONE
    )


def _players(options: argparse.Namespace) -> list[Player | TrustedPlayer]:
    from minisandbox.rollout.choose import Asking, choose_player

    sys.path.insert(0, os.getcwd())  # where a person's own policies are
    headers = {}
    if options.key_variable is not None:
        if (key := os.environ.get(options.key_variable)) is None:
            raise UsageError(f"there is no environment variable {options.key_variable}")
        headers["Authorization"] = f"Bearer {key}"
    try:
        parameters = msgspec.json.decode(options.parameters, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"--parameters is no JSON object: {error}") from error
    asking = Asking(environment=dict(os.environ), headers=headers, model=options.model, parameters=parameters)
    return [choose_player(text, asking) for text in options.policy]


def _budget(options: argparse.Namespace) -> Budget:
    from minisandbox.rollout.spec import Budget

    names = {
        "turns": "turns",
        "tokens": "tokens",
        "wall_time": "wall_time_s",
        "verdict_time": "verdict_s",
        "turn_time": "turn_s",
        "think_time": "think_s",
        "outcome_bytes": "outcome_bytes",
    }
    given = {field: getattr(options, name) for name, field in names.items() if hasattr(options, name)}
    for name in ("turns", "tokens"):
        if given.get(name) is not None:
            given[name] = int(given[name])
    return Budget(**given)


def _concurrency(text: str) -> Concurrency:
    from minisandbox.rollout.concurrency import Concurrency

    if text == "auto":
        return Concurrency(least=len(os.sched_getaffinity(0)), most=MOST)
    least, dash, most = text.partition("-")
    try:
        return Concurrency(least=int(least), most=int(most if dash else least))
    except ValueError:
        raise UsageError(f'--concurrency {text!r} is no number, no "A-B" and not "auto"') from None
