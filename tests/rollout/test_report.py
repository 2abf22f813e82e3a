"""The report of a run: its numbers are those of the episodes, and whatever a policy wrote is text in it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minisandbox.judge.evidence import Code
from minisandbox.rollout.charts import columns, duration, histogram, nice_ceiling, stacked
from minisandbox.rollout.database import BLOBS_NAME
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.records import open_records
from minisandbox.rollout.report import Report, make_report
from minisandbox.rollout.report_page import data_block, write_page
from minisandbox.rollout.schema import INLINE_BYTES
from minisandbox.rollout.shown import visible, visible_content, visible_line
from minisandbox.rollout.spec import Attempt, Edit, End, Episode, Python, Read, Run, Submit, Turn, Write
from minisandbox.rollout.statistics import Bin, throughput
from minisandbox.rollout.trajectories import LEAST_EACH, MOST_EACH, characters_each
from tests.rollout.episodes import RUN, failed_episode, make_episode, make_task, make_turn, make_verdict, many_episodes
from tests.rollout.stores import keep_all


def report_of(directory: Path, *episodes: Episode) -> Report:
    """Return the report of episodes."""
    keep_all(directory, episodes)
    with open_records(directory) as records:
        return make_report(records)


def page_of(directory: Path, *episodes: Episode, instruction: str = "do it", run: RunInfo = RUN) -> str:
    """Return the page of a run with these episodes."""
    tasks = {episode.key.task: make_task(episode.key.task, instruction=instruction) for episode in episodes}
    keep_all(directory, episodes, list(tasks.values()), run)
    with open_records(directory) as records:
        write_page(records, directory / "report.html")
    return (directory / "report.html").read_text()


def scored(score: float | None, sample: int, policy: str = "oracle", task: str = "sum", **changed: Any) -> Episode:
    """Return an episode with a score."""
    codes = changed.pop("codes", ())
    return make_episode(task, policy, sample, verdict=make_verdict(score, codes=codes), **changed)


def test_policies_are_compared(tmp_path: Path) -> None:
    """Each by its own episodes; what is masked is counted apart and in no mean."""
    episodes = [scored(1.0, 0), scored(0.5, 1), scored(None, 2), failed_episode(sample=3)]
    episodes += [scored(0.0, 0, "noop"), scored(0.0, 0, "noop", "other")]

    report = report_of(tmp_path, *episodes)
    oracle, noop = report.policies

    assert ("oracle", 4, 2, 0.75, 1, 1, 1) == (
        *(oracle.policy, oracle.episodes, oracle.masked, oracle.mean_reward),
        *(oracle.accepted, oracle.tasks, oracle.tasks_solved),
    )
    assert pytest.approx(1.96 * 0.25 * 2**0.5 / 2**0.5) == oracle.reward_ci95
    assert {"AC": 1, "PARTIAL": 1, "IE": 1, "unjudged": 1} == oracle.outcomes
    assert {"submitted": 3, "infrastructure": 1} == oracle.ends
    assert {"1": 1, "to ½": 1} == {name: number for name, number in oracle.rewards.items() if number}
    assert ("noop", 2, 0, 0.0, 0, 2, 0) == (
        *(noop.policy, noop.episodes, noop.masked, noop.mean_reward),
        *(noop.accepted, noop.tasks, noop.tasks_solved),
    )
    assert (6, 2, 0.375) == (report.episodes, report.masked, report.mean_reward)
    assert {"LaunchError": 2} == report.faults
    assert ["sum/oracle/2", "sum/oracle/3"] == sorted(each.episode for each in report.masks)


def test_samples_that_differ_are_found(tmp_path: Path) -> None:
    """Where rewards of one task and policy differ, and only there; what is masked differs from nothing."""
    episodes = [scored(1.0, 0), scored(1.0, 1), scored(None, 2), scored(0.0, 0, "noop"), scored(0.5, 1, "noop")]
    episodes += [scored(1.0, 0, task="b"), scored(0.0, 1, task="b")]

    report = report_of(tmp_path, *episodes)

    assert [("b", "oracle", 0.5), ("sum", "noop", 0.25)] == [
        (each.task, each.policy, each.mean_reward) for each in report.flaky
    ]
    assert [[1.0, 0.0], [0.0, 0.5]] == [[reward for _, reward in each.samples] for each in report.flaky]


def test_suspicious_episodes_are_named_the_worst_first(tmp_path: Path) -> None:
    """With what there is against them; what is only information is nothing against anybody."""
    episodes = [
        scored(1.0, 0, codes=(Code.E21_MARGINAL,)),
        scored(1.0, 1, codes=(Code.E13_INTROSPECTION,)),
        scored(0.0, 2, codes=(Code.E03_MIRROR_PASSED, Code.E13_INTROSPECTION)),
        scored(1.0, 3, codes=(Code.E09_PLANTED_CODE,)),
    ]

    report = report_of(tmp_path, *episodes)

    assert ["sum/oracle/2", "sum/oracle/3", "sum/oracle/1"] == [each.episode for each in report.suspects]
    assert ("E03_MIRROR_PASSED", "E13_INTROSPECTION") == report.suspects[0].evidence
    assert 2 == report.quarantined


def test_the_slowest_tasks_come_first(tmp_path: Path) -> None:
    """By their median, with the phases that it is spent in."""
    episodes = [scored(1.0, at, task="slow", seconds=9.0 + at) for at in range(3)]
    episodes += [scored(1.0, at, task="fast", seconds=seconds) for at, seconds in enumerate((1.0, 2.0, 99.0))]

    report = report_of(tmp_path, *episodes)
    slow, fast = report.tasks

    assert ("slow", 10.0, 11.0) == (slow.task, slow.median_seconds, slow.longest_seconds)
    assert ("fast", 2.0, 99.0) == (fast.task, fast.median_seconds, fast.longest_seconds)
    assert "fast/oracle/2" == report.summaries[fast.slowest].episode
    assert {"queue": 0.5, "open": 0.25, "think": 1.75, "act": 0.875, "judge": 1.0} == slow.phases


@pytest.mark.parametrize("gap_s", [0.001, 1.0, 60.0, 86_400.0, 1e8])
def test_throughput_covers_the_run(tmp_path: Path, gap_s: float) -> None:
    """Every episode is in a bin, of which there are not too many, however long the run was."""
    episodes = [scored(1.0 if at % 3 else None, at, started=1e9 + at * gap_s) for at in range(12)]

    report = report_of(tmp_path, *episodes)

    assert (8, 4) == (sum(each.rewarded for each in report.throughput), sum(each.masked for each in report.throughput))
    assert 1 <= len(report.throughput) <= 61
    assert all(each.start_s == at * report.bin_s for at, each in enumerate(report.throughput))


def test_a_run_without_episodes_has_a_report(tmp_path: Path) -> None:
    """It says so."""
    page = page_of(tmp_path)

    assert "Nothing was finished" in page
    assert (1, []) == throughput([])


def test_damaged_episodes_are_named_and_count_nowhere(tmp_path: Path) -> None:
    """The others are told as ever."""
    large = make_episode(sample=1, turns=(make_turn(0, Read(path="x"), stdout=bytes(INLINE_BYTES + 1)),))
    keep_all(tmp_path, [make_episode(sample=0), large])
    (blob,) = (path for path in (tmp_path / BLOBS_NAME).rglob("*") if path.is_file())
    blob.unlink()

    with open_records(tmp_path) as records:
        report = write_page(records, tmp_path / "report.html")

    assert (1, 1) == (report.episodes, len(report.damaged))
    assert "Damaged records" in (tmp_path / "report.html").read_text()


def test_the_report_is_json(tmp_path: Path) -> None:
    """All of it, and it can be read back."""
    report = report_of(tmp_path, *many_episodes(50))

    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)

    assert report == again


# what a policy wrote

ATTACKS = (
    "<script>document.documentElement.dataset.pwned = 1</script>",
    "</script><script>document.documentElement.dataset.pwned = 1</script><!--",
    '<img src=x onerror="document.documentElement.dataset.pwned = 1">',
    "'\"><svg onload=document.documentElement.dataset.pwned=1>",
    "</title></style></textarea></pre><iframe srcdoc='<b>'></iframe>",
    "{{ 7 * 7 }}{% raw %}${7 * 7}",
    "javascript:document.documentElement.dataset.pwned=1",
    "\u2028</script>\u2029 &lt;script&gt; \\u003cscript\\u003e",
)


def attacking(attack: str, sample: int = 0, task: str = "") -> Episode:
    """Return an episode that has an attack wherever a policy, a program or a task can put words."""
    raw = attack.encode()
    turns = (
        make_turn(0, Run(command=attack, stdin=raw), stdout=raw, stderr=raw),
        make_turn(1, Write(path=attack, content=raw)),
        make_turn(2, Edit(path=attack, old=attack, new=attack), error=attack),
        make_turn(3, Read(path=attack), stdout=raw),
        make_turn(4, Python(code=attack, stdin=raw), stdout=raw),
        Turn(
            index=5,
            action=Submit(note=attack),
            outcome=make_turn(5, Submit()).outcome,
            started_s=0.0,
            think_s=0.0,
            act_s=0.0,
            data={attack: attack},
        ),
    )
    verdict = make_verdict(0.5, codes=(Code.E09_PLANTED_CODE,))
    decision = verdict.decision
    decision = msgspec.structs.replace(
        decision,
        tests=tuple(msgspec.structs.replace(test, id=f"{attack}{at}") for at, test in enumerate(decision.tests)),
        evidence=tuple(msgspec.structs.replace(item, paths=(attack,), cell=attack) for item in decision.evidence),
        integrity_cap_reasons=(attack,),
    )
    observations = msgspec.structs.replace(verdict.observations, failures=(attack,))
    return make_episode(
        task or f"task {attack}",
        f"policy {attack}",
        sample,
        turns=turns,
        why=attack,
        limits_hit=(attack,),
        branched_from=(attack, 1),
        attempts=(Attempt(error=attack, message=attack, retryable=True, seconds=1.0),),
        judge_episode=attack,
        verdict=msgspec.structs.replace(verdict, decision=decision, observations=observations),
    )


def attacking_run(attack: str) -> RunInfo:
    """Return a run that has an attack in its facts."""
    return RunInfo(policies=(f"policy {attack}",), samples=1, seed=1, version=attack, machine={attack: attack})


class Skeleton(HTMLParser):
    """What a page consists of: tags and names of attributes, in order, without any text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[tuple[str, ...]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.parts.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Note its end."""
        self.parts.append((f"/{tag}",))


def skeleton_of(page: str) -> list[tuple[str, ...]]:
    """Return what a page consists of."""
    skeleton = Skeleton()
    skeleton.feed(page)
    skeleton.close()
    return skeleton.parts


def masked_and_not(attack: str) -> list[Episode]:
    """Return two episodes: one with a reward, and one that we failed."""
    failed = msgspec.structs.replace(attacking(attack, 1), verdict=None)
    return [attacking(attack), failed, msgspec.structs.replace(attacking(attack, 2), verdict=make_verdict(0.0))]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_word_of_a_policy_is_markup(tmp_path: Path, attack: str) -> None:
    """A page with attacks everywhere has the very tags and attributes of a page with plain words there."""
    plain = page_of(tmp_path / "plain", *masked_and_not("words"), instruction="words", run=attacking_run("words"))
    page = page_of(tmp_path / "attack", *masked_and_not(attack), instruction=attack, run=attacking_run(attack))

    assert skeleton_of(plain) == skeleton_of(page)
    assert skeleton_of(plain) != skeleton_of(page.replace("<footer>", f"{ATTACKS[2]}<footer>"))


def test_nothing_on_a_page_is_unseen_or_turned(tmp_path: Path) -> None:
    """Controls, what has no width and what turns the direction are escapes, in the page as in its data."""
    unseen = "\u202e\u200b\x1b\x07\u2066"
    episodes = masked_and_not(unseen)
    page = page_of(tmp_path, *episodes, instruction=unseen, run=attacking_run(unseen))
    chunks = re.findall(r'<script type="text/plain" id="chunk-\d+">([^<]*)</script>', page)
    unpacked = "".join(zlib.decompress(base64.b64decode(chunk)).decode() for chunk in chunks)

    assert not set(unseen) & set(page)
    assert not set(unseen) & set(json.dumps(json.loads(unpacked), ensure_ascii=False))
    assert "\\\\u202e" in unpacked


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    """It names no other file, and forbids itself every source but its own script and style."""
    page = page_of(tmp_path, *many_episodes(30))
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    styles, scripts = re.findall(r"<style>", page), re.findall(r"<script>", page)

    assert (1, 1, 1) == (len(policies), len(styles), len(scripts))
    assert re.fullmatch(
        r"default-src &#39;none&#39;; script-src &#39;sha256-\S+&#39;; style-src &#39;sha256-\S+&#39;; "
        r"base-uri &#39;none&#39;; form-action &#39;none&#39;",
        policies[0],
    )
    assert [] == re.findall(
        r"(?:src|href|action|data|poster|srcset)\s*=\s*[\"']?(?!#)[a-z/.]", page.split("<script")[0]
    )
    assert not re.search(r"@import|url\(|https?:", page)


def test_all_trajectories_are_in_the_page(tmp_path: Path) -> None:
    """In chunks, in the order of the table, each as it was."""
    episodes = many_episodes(90)
    page = page_of(tmp_path, *episodes)

    chunks = re.findall(r'<script type="text/plain" id="chunk-\d+">([^<]*)</script>', page)
    unpacked = [each for chunk in chunks for each in json.loads(zlib.decompress(base64.b64decode(chunk)))]
    rows = json.loads(re.findall(r'id="rows">([^<]*)</script>', page)[0])["rows"]

    assert (3, 90, 90) == (len(chunks), len(unpacked), len(rows))
    turns = {episode.key.id: len(episode.trajectory.turns) for episode in episodes}
    assert [turns[f"{row[1]}/{row[2]}/{row[3]}"] for row in rows] == [len(each["turns"]) for each in unpacked]
    assert list(range(90)) == [row[0] for row in rows]


def test_a_page_of_many_turns_shows_less_of_each() -> None:
    """So that a page stays one that can be opened."""
    assert MOST_EACH == characters_each(10)
    assert LEAST_EACH == characters_each(1 << 30)
    assert 2 * 15_000 * characters_each(15_000) <= 48 << 20


def test_data_in_a_page_ends_no_script() -> None:
    """Neither by a tag nor by what only a script takes for the end of a line."""
    words = ["</script>", "<!--", "]]>", "&lt;", "\u2028"]

    block = data_block(words)

    assert not set("<>&\u2028") & set(block)
    assert words == json.loads(block)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ä 漢 🙂\n\ttab", "plain ä 漢 🙂\n\ttab"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\rb\r\nc", "a\\x0db\nc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\x9b31m\x7f\u200b", "\\x9b31m\\x7f\\u200b"),
        ("tag \U000e0041", "tag \\U000e0041"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_and_does_nothing(given: str, shown: str) -> None:
    """Everything else is as it was."""
    assert shown == visible(given)


def test_long_texts_show_how_they_begin_and_end() -> None:
    """And how much is left out; bytes that are no text are shown as such."""
    shown = visible_content(b"a" * 500 + b"\xff" + b"b" * 500, 20)

    assert ("a" * 10 + "\n[... ", " ...]\n" + "b" * 10) == (shown[:16], shown[-16:])
    assert "984" in shown
    assert "\\xff" == visible_content(b"\xff")
    assert ("a\\nb", 200) == (visible_line("a\nb"), len(visible_line("x" * 999)))


def test_charts_keep_within_their_frame() -> None:
    """Of no values, one, and very many."""
    charts = [
        histogram({"a": 0, "b": 0}, "s0", "nothing"),
        histogram({"a": 1, "b": 10**9}, "s0", "much"),
        stacked({"a": 0.0, "b": 1e-9, "c": 5.0}, 5.0, "parts"),
        columns([], 1.0),
        columns([Bin(start_s=float(at), rewarded=at, masked=1) for at in range(61)], 1.0),
    ]

    for chart in charts:
        for rect in chart.rects:
            assert 0 <= rect.x <= rect.x + rect.width <= chart.width + 0.5
            assert 0 <= rect.y <= rect.y + rect.height <= chart.height + 0.5
    assert [1, 1, 2, 4, 5, 8, 10, 20, 200, 2000] == [
        nice_ceiling(each) for each in (0, 1, 2, 3, 5, 7, 9, 11, 101, 1999)
    ]
    assert ["0 s", "1.5 ms", "1 s", "59.9 s", "1 min", "1 min 1 s", "1 h", "25 h 1 min"] == [
        duration(each) for each in (0, 0.0015, 1, 59.9, 60, 61, 3600, 90_060)
    ]


def test_an_end_of_each_kind_has_a_colour() -> None:
    """And each verdict: a bar without one would be black."""
    from minisandbox.judge.spec import Outcome
    from minisandbox.rollout.report_page import PAGE
    from minisandbox.rollout.statistics import UNJUDGED

    style = (PAGE / "report.css").read_text()
    names = [*(outcome.value for outcome in Outcome), *(end.value for end in End), UNJUDGED]

    assert [] == [name for name in names if not re.search(rf"\.k-{name}\b", style)]
