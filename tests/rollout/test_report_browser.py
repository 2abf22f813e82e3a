"""The page in a real browser: it works, nothing in it is run but its own script, and it asks nobody for anything."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisandbox.rollout.records import open_records
from minisandbox.rollout.report_page import write_page
from minisandbox.rollout.spec import Episode
from tests.rollout.chromium import Browser, open_browser
from tests.rollout.episodes import make_episode, make_task, many_episodes
from tests.rollout.stores import keep_all
from tests.rollout.test_report import ATTACKS, attacking_run, masked_and_not

pytestmark = pytest.mark.slow

PWNED = "document.documentElement.dataset.pwned"
FETCH = "<img src='http://127.0.0.1:9/a'><link rel=stylesheet href='http://127.0.0.1:9/b'>"
ROWS = "[...document.querySelectorAll('#table tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
STARTED = "document.querySelector('#f-count').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; without one on this host, these tests are skipped."""
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def make_page(directory: Path, *, attack: str | None = None, episodes: int = 250) -> Path:
    """Return the page of a run, one with an attack in all that it tells where one is given."""
    if attack is None:
        keep_all(directory, [*many_episodes(episodes - 1), make_episode("last")], [make_task("last")])
    else:
        kept = masked_and_not(attack)
        keep_all(directory, kept, [make_task(kept[0].key.task, instruction=attack)], attacking_run(attack))
    with open_records(directory) as records:
        write_page(records, directory / "report.html")
    return directory / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 250 episodes."""
    return make_page(tmp_path_factory.mktemp("run"))


def number_of(page: Path, task: str) -> int:
    """Return the number of the first episode of a task."""
    with open_records(page.parent) as records:
        episodes = [each for each in records.episodes() if isinstance(each, Episode)]
    return next(at for at, episode in enumerate(episodes) if episode.key.task == task)


def show(browser: Browser, page: Path, number: int) -> str:
    """Open a trajectory and return its text."""
    browser.open(page, f"#e{number}")
    browser.wait_until("!document.querySelector('#view').hidden")
    return str(browser.evaluate("document.querySelector('#view').innerText"))


def test_the_table_of_episodes_has_pages(browser: Browser, page: Path) -> None:
    """A hundred rows each, until there are no more."""
    browser.open(page)
    seen: list[list[list[str]]] = [browser.evaluate(ROWS)]
    for _ in range(2):
        browser.evaluate("document.querySelector('#p-after').click()")
        seen.append(browser.evaluate(ROWS))

    assert [100, 100, 50] == [len(rows) for rows in seen]
    assert 250 == len({row[0] for rows in seen for row in rows})
    assert "250 of 250" == browser.evaluate(STARTED)
    assert True is browser.evaluate("document.querySelector('#p-after').disabled")


def choose(browser: Browser, name: str, value: str) -> list[list[str]]:
    """Choose what is shown and return the rows."""
    event = "input" if name == "text" else "change"
    browser.evaluate(
        f"(() => {{ const field = document.querySelector('#f-{name}'); field.value = '{value}';"
        f" field.dispatchEvent(new Event('{event}')); }})()"
    )
    rows: list[list[str]] = browser.evaluate(ROWS)
    return rows


def test_the_table_shows_what_is_asked_for(browser: Browser, page: Path) -> None:
    """By words, by policy, by verdict, by end and by mark."""
    browser.open(page)
    assert {"cheat"} == {row[0].split("/")[1] for row in choose(browser, "policy", "cheat")}
    assert {"TAMPER"} == {row[1] for row in choose(browser, "verdict", "TAMPER")}
    assert {"proven"} == {row[4] for row in choose(browser, "mark", "suspicious")}
    assert [] == choose(browser, "text", "nothing has this")
    browser.open(page)
    assert {"masked"} == {row[2] for row in choose(browser, "mark", "masked")}
    browser.open(page)
    assert {"wall_time"} == {row[3] for row in choose(browser, "end", "wall_time")}
    browser.open(page)
    found = choose(browser, "text", "task-003 ORACLE")
    assert ["task-003/oracle/0", "task-003/oracle/1", "task-003/oracle/2", "task-003/oracle/3"] == sorted(
        row[0] for row in found
    )


def test_the_table_is_sorted_by_any_column(browser: Browser, page: Path) -> None:
    """Down first where large is of interest, and the other way when one asks again; what is masked comes last."""
    browser.open(page)

    def sort(at: int) -> list[str]:
        browser.evaluate(f"document.querySelectorAll('#table th button')[{at}].click()")
        return [row[at] for row in browser.evaluate(ROWS)]

    tokens = [int(text.replace(",", "")) for text in sort(6)]
    again = [int(text.replace(",", "")) for text in sort(6)]
    rewards = sort(2)

    assert sorted(tokens, reverse=True) == tokens
    assert sorted(again) == again
    assert "1" == rewards[0]
    assert tokens[0] > again[0]


def test_a_trajectory_is_shown(browser: Browser, page: Path) -> None:
    """All of its turns, from the first, with what they printed, and the verdict; the report is out of sight."""
    text = show(browser, page, number_of(page, "last"))

    for words in ("1. run", "2. read", "3. write, executable", "4. edit", "5. run", "6. python", "7. submit"):
        assert words in text
    for words in ("ls -l", "main.sh", "\\xff\\x00binary", "exited, code 0", "signaled, signal 9", "Verdict AC"):
        assert words in text
    assert "This is last." in browser.evaluate("document.querySelector('#view').textContent")
    assert True is browser.evaluate("document.querySelector('#report').hidden")


def test_trajectories_are_walked_through(browser: Browser, page: Path) -> None:
    """By the arrow keys, back by Escape, and every link of the report leads to one."""
    browser.open(page, "#e7")
    browser.wait_until("!document.querySelector('#view').hidden")
    browser.press("ArrowRight")
    browser.wait_until("location.hash === '#e8'")
    browser.press("ArrowLeft")
    browser.wait_until("location.hash === '#e7'")
    browser.press("Escape")
    browser.wait_until("document.querySelector('#view').hidden && !document.querySelector('#report').hidden")
    links = set(browser.evaluate("[...document.links].map((link) => link.getAttribute('href'))"))

    assert all(0 <= int(link.removeprefix("#e")) < 250 for link in links)
    for link in sorted(links)[::25]:
        assert "Episode" in show(browser, page, int(link.removeprefix("#e"))).title()


@pytest.mark.parametrize("anchor", ["", "#e0", "#e1", "#e2", "#e999", "#e<b>"])
def test_no_attack_runs_and_nothing_is_asked_for(browser: Browser, tmp_path: Path, anchor: str) -> None:
    """In the report as in each trajectory, with every attack at once."""
    page = make_page(tmp_path, attack=" ".join([*ATTACKS, FETCH]))
    browser.open(page, anchor)
    if anchor in ("#e0", "#e1", "#e2"):
        browser.wait_until("!document.querySelector('#view').hidden")
    tags: list[str] = browser.evaluate("[...document.querySelectorAll('*')].map((each) => each.localName)")

    assert browser.evaluate(PWNED) is None
    assert "3 of 3" == browser.evaluate(STARTED)
    assert not {"img", "iframe", "link", "object", "embed", "base"} & set(tags)
    assert 1 == len(browser.asked)


def test_an_attack_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    """On a page that escapes nothing and forbids nothing the same words run, and ask for what they name."""
    page = tmp_path / "open.html"
    page.write_text(f"<!doctype html><html><body>{ATTACKS[2]}{FETCH}</body></html>")

    browser.open(page)
    browser.wait_until(f"{PWNED} === '1'")

    assert {"http://127.0.0.1:9/a", "http://127.0.0.1:9/b"} <= set(browser.asked)


def test_the_policy_of_the_page_holds_alone(browser: Browser, tmp_path: Path) -> None:
    """Where markup of a stranger were in the page after all, it would neither run nor fetch."""
    page = make_page(tmp_path, episodes=20)
    strange = f"{ATTACKS[0]}{ATTACKS[2]}<svg onload={PWNED}=1></svg>{FETCH}"
    page.write_text(page.read_text().replace("<footer>", f"{strange}<footer>"))

    browser.open(page)

    assert 2 == browser.evaluate("document.images.length")
    assert "20 of 20" == browser.evaluate(STARTED)  # its own script runs
    assert browser.evaluate(PWNED) is None
    assert [f"file://{page}"] == browser.asked


def test_a_large_run_is_shown_at_once(browser: Browser, tmp_path: Path) -> None:
    """5,000 episodes: no larger than a picture, and soon there; the bound is far beyond what it takes (0.2 s)."""
    page = make_page(tmp_path, episodes=5000)

    browser.open(page)
    took: dict[str, Any] = browser.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
    text = show(browser, page, 4999)

    assert page.stat().st_size < 8 << 20
    assert "5,000 of 5,000" == browser.evaluate(STARTED)
    assert took["loadEventEnd"] < 10_000
    assert "Verdict" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("anchor", ["", "#e0"])
def test_light_and_dark_and_narrow(browser: Browser, page: Path, scheme: str, width: int, anchor: str) -> None:
    """The page follows what the reader prefers, and nothing sticks out of a narrow window."""
    browser.open(page, anchor, width, scheme)
    browser.wait_until(f"document.querySelector('#view').hidden === {'false' if anchor else 'true'}")
    first = _first_pixel(browser.screenshot())

    assert (min(first) > 200, max(first) < 60) == (scheme == "light", scheme == "dark")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def _first_pixel(png: bytes) -> tuple[int, ...]:
    """Return red, green and blue of the first pixel of a picture (PNG, third edition, 8 bits a channel)."""
    content, at = b"", 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            content += png[at + 8 : at + 8 + length]
        at += length + 12
    # nothing is before the first pixel, so that each filter leaves it as it is
    return tuple(zlib.decompress(content)[1:4])
