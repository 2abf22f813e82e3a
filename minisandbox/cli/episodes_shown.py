"""Episodes for a terminal: a table, or one turn by turn, with what is not ours made visible. It prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minisandbox.cli.verdict import explain
from minisandbox.rollout.charts import duration
from minisandbox.rollout.shown import visible, visible_content, visible_line
from minisandbox.rollout.spec import Edit, Episode, Python, Read, Run, Submit, Turn, Write

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_VERDICT_COLOURS = {"AC": "green", "PARTIAL": "yellow", "IE": "magenta", "TAMPER": "bold red"}


def list_parts(rows: Sequence[dict[str, Any]], width: int) -> Iterator[RenderableType]:
    """Yield a table of all episodes, and how many there are."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("episode", "verdict", "reward", "end", "turns", "tokens", "time"):
        table.add_column(title, justify="right" if title in ("reward", "turns", "tokens", "time") else "left")
    for row in rows:
        name = visible_line(f"{row['task']}/{row['policy']}/{row['sample']}", max(20, width - 60))
        reward = "masked" if row["reward"] is None else f"{row['reward']:g}"
        counts = (str(row["turns"]), str(row["tokens"]), duration(row["seconds"]))
        table.add_row(_text(name), _verdict(row["verdict"] or "none"), reward, row["end"], *counts)
    if rows:
        yield table
    yield f"{len(rows)} episodes"


def episode_parts(episode: Episode, instruction: str | None, lines: int | None) -> Iterator[RenderableType]:
    """Yield an episode: what it is, each turn, why it ended, and the verdict. `lines` is how many of each text."""
    trajectory = episode.trajectory
    yield _text(visible_line(episode.key.id), "bold")
    facts = [f"seed {episode.seed}", f"{duration(episode.seconds)} after {duration(episode.queued_s)} in the queue"]
    facts += [
        f"opened{' warm' * episode.warm} in {duration(episode.opened_s)}",
        f"judged in {duration(episode.judged_s)}",
    ]
    if trajectory.branched_from is not None:
        facts.append(
            visible_line(f"branched from {trajectory.branched_from[0]} after {trajectory.branched_from[1]} turns")
        )
    yield _text(", ".join(facts), "dim")
    if instruction:
        yield _block(instruction, lines, "italic")
    for attempt in episode.attempts:
        said = visible_line(f"{attempt.error}: {attempt.message}", 500)
        yield _text(f"we failed after {duration(attempt.seconds)}: {said}", "magenta")
    for turn in trajectory.turns:
        yield ""
        yield from _turn_parts(turn, lines)
    yield ""
    limits = f", over {', '.join(map(visible_line, trajectory.limits_hit))}" if trajectory.limits_hit else ""
    why = f": {visible_line(trajectory.why, 500)}" if trajectory.why else ""
    yield _text(f"ended      {trajectory.end.value}{limits}{why}", "bold")
    if trajectory.artifacts:
        yield _text(f"artifacts  {trajectory.artifacts}", "dim")
    if episode.verdict is None:
        yield _text("verdict    none: nothing was judged", "magenta")
    else:
        for line in explain(episode.verdict):
            yield line if visible(line.plain) == line.plain else _text(visible_line(line.plain))
    if episode.judge_episode:
        yield _text(
            f"judged as   {visible_line(episode.judge_episode)}  (minisandbox judge explain, judge replay)", "dim"
        )


def _turn_parts(turn: Turn, lines: int | None) -> Iterator[RenderableType]:
    action, outcome = turn.action, turn.outcome
    at = f"at {duration(turn.started_s)}, thought {duration(turn.think_s)}, acted {duration(turn.act_s)}"
    tokens = f", {turn.tokens} tokens" if turn.tokens else ""
    yield _text(f"turn {turn.index + 1}  ", "bold", (f"{at}{tokens}", "dim"))
    match action:
        case Run() | Python():
            text, mark = (action.command, "$ ") if isinstance(action, Run) else (action.code, ">>> ")
            yield _block(text, lines, "cyan", mark)
            if action.stdin:
                yield _block(action.stdin, lines, "dim cyan", "< ")
        case Read():
            yield _text("read ", "cyan", (visible_line(action.path), "cyan"))
        case Write():
            yield _text(
                "write ", "cyan", (visible_line(action.path), "cyan"), (", executable" * action.executable, "dim")
            )
            yield _block(action.content, lines, "green", "+ ")
        case Edit():
            yield _text("edit ", "cyan", (visible_line(action.path), "cyan"))
            yield _block(action.old, lines, "red", "- ")
            yield _block(action.new, lines, "green", "+ ")
        case Submit():
            yield _text("submit", "cyan")
            if action.note:
                yield _block(action.note, lines, "cyan", "  ")
    if outcome.stdout:
        yield _block(outcome.stdout, lines, "", "  ")
    if outcome.stderr:
        yield _block(outcome.stderr, lines, "yellow", "! ")
    if outcome.error is not None:
        yield _block(outcome.error, lines, "red", "refused: ")
    if outcome.exit_reason is not None:
        code = f", code {outcome.exit_code}" if outcome.exit_code is not None else ""
        signal = f", signal {outcome.signal}" if outcome.signal is not None else ""
        cut = ", output cut by the budget" if outcome.truncated else ""
        yield _text(f"  {outcome.exit_reason.value}{code}{signal}{cut}", "dim")


def _text(text: str, style: str = "", *more: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble((text, style), *more)


def _verdict(name: str) -> Text:
    return _text(name, _VERDICT_COLOURS.get(name, "red"))


def _block(content: bytes | str, most: int | None, style: str, mark: str = "") -> Text:
    """Return a text with a mark before each line, and of a long one the first and the last lines."""
    shown = [f"{mark}{line}" for line in visible_content(content).strip("\n").split("\n")]
    if most is not None and len(shown) > most + 1:
        head, tail = most - most // 2, most // 2
        left_out = f"{' ' * len(mark)}[... {len(shown) - most:,} lines are left out; --lines 0 shows them]"
        shown = [*shown[:head], left_out, *shown[len(shown) - tail :]]
    return _text("\n".join(shown), style)
