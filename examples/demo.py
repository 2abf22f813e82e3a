"""Play real tasks by three policies, judge every episode, and make a report: the whole loop in a minute.

`oracle` plays each task's own solution, `noop` does nothing and `cheat` tries hacks: so what each must earn is known,
and this fails where one of them earns anything else.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from minisandbox.cli.main import main as minisandbox
from minisandbox.errors import RecordError
from minisandbox.rollout.records import open_records
from minisandbox.rollout.spec import Episode

TASKS = ("humaneval", "exercises", str(Path(__file__).parent / "tasks"))
POLICIES = ("oracle", "noop", "cheat")
LIMIT = 15

UNFIT = {
    "cli-016": "its answer depends on the order in which a file system lists names",
    "cli-017": "its answer depends on the order in which a file system lists names",
}
"""Tasks of the sets that no check would certify: what their solution earns is told and not held against anybody."""

DONE, MALFORMED = 0, 65
WRONG = 1


def main(arguments: Sequence[str]) -> int:
    """Run the loop; return 0 when every policy earned what it must, 1 when one did not, else why it came to no end."""
    options = parse(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="minisandbox-demo-"))
    words = [f"--policy={policy}" for policy in POLICIES] + ["--limit", str(options.limit), "--out", str(out)]
    if options.state_dir is not None:
        words += ["--state-dir", str(options.state_dir)]
    code = minisandbox(["rollout", *TASKS, *words])
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM) or not (out / "records.sqlite").exists():
        return code
    reported = minisandbox(["report", str(out)])
    with open_records(out) as records:
        wrong = list(wrongly_rewarded(records.episodes()))
    for line in wrong:
        print(f"demo: {line}", file=sys.stderr)
    return WRONG if wrong else code or reported


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help="tasks of each set (%(default)s)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the records are kept; a new directory unless given"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    return parser.parse_args(arguments)


def wrongly_rewarded(episodes: Iterable[Episode | RecordError]) -> Iterable[str]:
    """Yield a line for each episode whose policy earned what it must not, or nothing where it must."""
    for episode in episodes:
        if isinstance(episode, RecordError):
            yield str(episode)
            continue
        earned = "no reward at all" if episode.reward is None else f"{episode.reward:g}"
        if episode.key.policy == "oracle":
            why = UNFIT.get(episode.key.task)
            if why is not None:
                print(f"{episode.key.id} earned {earned}: {why}")
            elif episode.reward is None or episode.reward < 1.0:
                yield f"{episode.key.id} earned {earned}, though it is the task's own solution"
        elif episode.reward is None or episode.reward > 0.0:
            yield f"{episode.key.id} earned {earned}, though it solved nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
