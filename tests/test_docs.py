"""What keeps the documents true: each name, link, table and example in them is compared with the code."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import minisandbox
from bench.samples import Report
from minisandbox import errors, policy
from minisandbox.cli.main import COMMANDS, Parser
from minisandbox.images.rootfs import KINDS
from minisandbox.kernel.protocol import Stage
from minisandbox.policy import load_policy, parse_size, policy_names
from minisandbox.spec import Limits
from tests.benchmarks import facts_of, measured, table, to_paste
from tests.cli import json_of
from tests.cli import minisandbox as minisandbox_command

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MANUAL = (DOCS / "manual.md").read_text()
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SOURCES = [
    path
    for folder in ("minisandbox", "bench", "examples", "tools", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h", ".sh") and path != Path(__file__)
]
HOST_PYTHON = Path("/usr/bin/python3")

FORBIDDEN = re.compile(
    r"""
    # tools
    \b[c]laude | [a]nthropic | [o]penai | [c]hatgpt | \b[g]pt-?[0-9] | \b[c]opilot | \b[c]odex\b | \b[g]emini\b
    # places of one machine
    | /[w]ork/(?:main|shared|\.) | /[r]oot/\.pyenv | \b[D]ESIGN\.md | \b[S]TYLE\.md
    # package registries
    | (?:[r]egistry|[m]irror|[a]rtifactory|[n]exus|[p]ypi-proxy)\.[a-z0-9-]+\.[a-z]{2,} | --?[i]ndex-url
    """,
    re.VERBOSE | re.IGNORECASE,
)


def words_of(pattern: str, text: str) -> set[str]:
    """Return what stands between backticks and fits."""
    return {word for word in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(pattern, word)}


def rows_of(text: str, width: int) -> list[list[str]]:
    """Return the cells of every row of a table that has so many columns."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == width]


def section_of(text: str, title: str) -> str:
    """Return a section of the second level, with its heading."""
    return text[text.index(f"\n## {title}\n") :].split("\n## ", 2)[1]


def fields_of(kind: type) -> list[str]:
    """Return the fields of a value that crosses the public interface, none for other classes."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind.__struct_fields__) if issubclass(kind, msgspec.Struct) else []


PUBLIC = {
    name: thing
    for name in minisandbox.__all__
    if isinstance(thing := getattr(minisandbox, name, None), type) and not issubclass(thing, Exception)
}


@pytest.mark.parametrize("name", [name for name, kind in PUBLIC.items() if fields_of(kind)])
def test_every_field_is_in_the_manual(name: str) -> None:
    """What a public value holds is described."""
    missing = set(fields_of(PUBLIC[name])) - words_of(r"\w+", MANUAL)

    assert set() == missing


def test_every_call_of_a_sandbox_is_in_the_manual_as_it_is() -> None:
    """The table of calls names the arguments of each, in their order, and no call that there is not."""
    written = {}
    for row in rows_of(MANUAL, 2):
        if call := re.fullmatch(r"`await (\w+)\((.*)\)`", row[0]):
            arguments = [part.partition("=")[0] for part in call[2].split(", ") if part not in ("", "*")]
            written[call[1]] = arguments
    expected = {name: list(inspect.signature(getattr(minisandbox.Sandbox, name)).parameters)[1:] for name in written}

    assert {"run", "start", "open_terminal", "read_file", "write_file", "kill_all"} <= written.keys()
    assert expected == written


@pytest.mark.parametrize("function", [minisandbox.Supervisor.open_sandbox, minisandbox.open_supervisor])
def test_every_argument_is_in_the_manual(function: Any) -> None:
    """The first column of a table names each."""
    arguments = set(inspect.signature(function).parameters) - {"self"}

    assert set() == arguments - {row[0].strip("`") for row in rows_of(MANUAL, 3)}


def test_every_exit_reason_is_in_the_manual() -> None:
    """The table has each reason once, and no other."""
    rows = [row[0].strip("`") for row in rows_of(section_of(MANUAL, "Exit reasons"), 2)]

    assert sorted(reason.value for reason in minisandbox.ExitReason) == sorted(rows[2:])


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of all its commands."""
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from options_of(command)


def test_every_option_is_in_the_manual() -> None:
    """Each option of each command is there, and the manual knows no other."""
    parser = Parser(prog="minisandbox")
    commands = parser.add_subparsers()
    for module in COMMANDS:
        module.add_parser(commands)
    options = {"--version", *options_of(parser)}
    written = set(re.findall(r"--[a-z][a-z-]+", section_of(MANUAL, "Command line")))

    assert set() == options - written - set(re.findall(r"[\w-]+", section_of(MANUAL, "Command line")))
    assert set() == written - options


def keys_of(kind: Any) -> Iterator[str]:
    """Yield the keys of a file that is read into a struct, those of its tables among them."""
    for field in msgspec.structs.fields(kind):
        yield field.encode_name
        for inner in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from keys_of(inner)


def test_every_key_of_a_policy_is_in_the_manual() -> None:
    """Tables are written in brackets, keys beside them; those of limits have their own table."""
    text = section_of(MANUAL, "Policies")
    written = {word.strip("[]") for word in words_of(r"[\w\[\]]+", text)}

    assert set() == set(keys_of(policy._File)) - written


def test_every_key_of_a_recipe_is_in_the_manual() -> None:
    """Those that all kinds share, and those of each kind."""
    text = section_of(MANUAL, "Rootfs")
    written = {word.strip("[]") for word in words_of(r"[\w\[\]]+", text)}
    keys = {"kind", *(key for kind in KINDS for key in keys_of(kind))}

    assert set() == keys - written
    assert {str(kind.__struct_config__.tag) for kind in KINDS} <= set(re.findall(r'"(\w+)"', text))


def test_limits_of_the_policies_are_those_of_the_manual() -> None:
    """The table of limits has a row for each, with the values of the policies that come with the package."""
    rows = rows_of(section_of(MANUAL, "Limits"), 6)
    names = [heading.removesuffix(".toml") for heading in rows[0][3:]]
    policies = [load_policy(name).limits for name in names]
    expected = {field: [getattr(limits, field) for limits in policies] for field in Limits.__struct_fields__}
    written = {row[0].strip("`"): [limit_of(cell) for cell in row[3:]] for row in rows[2:]}

    assert sorted(policy_names()) == sorted(names)
    assert expected == written


def limit_of(cell: str) -> float | None:
    """Return what a cell of the table of limits says."""
    return None if cell == "-" else parse_size(cell)


def test_every_exception_is_in_the_manual_with_its_code() -> None:
    """Class, exit code and whether trying again may help are those of errors.py."""
    classes = [
        thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, errors.SandboxError)
    ]
    expected = {
        kind.__name__: (str(errors.exit_code(kind.__new__(kind))), "yes" if kind.retryable else "no")
        for kind in classes
    }
    rows = rows_of(section_of(MANUAL, "Errors"), 4)[2:]

    assert expected == {row[0].strip("`"): (row[1], row[2]) for row in rows}


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made of their text."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures, code left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file that is there, and a heading in it."""
    broken = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors_of(target))):
            broken.append(link)

    assert [] == broken


def test_pages_link_to_each_other() -> None:
    """Every page is reached from the README, and some link is looked at."""
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links_of(ROOT / "README.md")}

    assert {page for page in PAGES[1:] if page.parent == DOCS} <= linked


NAMES = set(re.findall(r"\w+", "\n".join(path.read_text() for path in SOURCES))) | {
    stage.name.lower() for stage in Stage
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_symbols_exist(page: Path) -> None:
    """What stands in backticks and looks like a file or a symbol of the code is one."""
    words = words_of(r"[\w./-]+\.(?:py|c|h|toml|json|sh)", page.read_text())
    files = {word for word in words if "/" in word and not word.startswith(("layers/", "rootfs/<"))}
    places = (ROOT, ROOT / "minisandbox", page.parent)
    symbols = words_of(r"_?[a-z]\w*_\w+|[A-Z][a-z]+(?:[A-Z][a-z]+)+(?:\.\w+)?|_[A-Z]\w+", page.read_text())
    unknown = {symbol for symbol in symbols if not set(symbol.split(".")) <= NAMES}
    unknown -= {symbol for symbol in unknown if symbol.lower().startswith("minisandbox")}  # see test_prometheus.py

    assert set() == {file for file in files if not any((place / file).exists() for place in places)}
    assert set() == unknown


def test_every_stage_is_in_the_architecture() -> None:
    """Those of a command and of a file transfer are named by how they begin."""
    written = words_of(r"[\w*]+", (DOCS / "architecture.md").read_text())
    stages = {re.sub(r"^(command|file)_.*", r"\1_*", stage.name.lower()) for stage in Stage if stage}

    assert set() == stages - written


def blocks_of(page: Path, language: str) -> list[str]:
    """Return the blocks of a page that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_example_of_the_readme_is_short() -> None:
    """Ten lines, blank ones aside."""
    example, _policy = blocks_of(ROOT / "README.md", "python")

    assert len([line for line in example.splitlines() if line]) <= 10


@pytest.mark.requires_root
def test_example_of_the_readme_prints_what_it_says(state_dir: Path) -> None:
    """The first example runs as it stands, but for the state directory, which is the tests' own."""
    if not HOST_PYTHON.exists():
        pytest.skip(f"this host has no {HOST_PYTHON}, which the example runs")
    example, _policy = blocks_of(ROOT / "README.md", "python")
    (printed,) = blocks_of(ROOT / "README.md", "text")
    opened = f"open_supervisor(state_dir=__import__('pathlib').Path({str(state_dir)!r}))"

    assert 1 == example.count("open_supervisor()")
    run = subprocess.run(
        [sys.executable, "-c", example.replace("open_supervisor()", opened)], cwd=ROOT, capture_output=True, text=True
    )

    assert ("", printed) == (run.stderr, run.stdout)


@pytest.mark.requires_root
def test_policy_of_the_readme_plays(state_dir: Path, tmp_path: Path) -> None:
    """As it stands there, two turns in each episode, and what looks around earns nothing."""
    _example, policy = blocks_of(ROOT / "README.md", "python")
    (tmp_path / "mine.py").write_text(policy)
    words = ("rollout", "--policy", "python:mine:act", "--out", tmp_path / "run", "--limit", "1", "--json")
    run = minisandbox_command(state_dir, *words, ROOT / "examples" / "tasks", under=("env", "-C", str(tmp_path)))
    (played,) = json_of(run)["policies"].values()

    assert (0, 1, 0.0) == (run.returncode, played["episodes"], played["mean_reward"])


def benchmark_table(report: Report) -> str:
    """Return what docs/benchmarks.md says of a measurement."""
    at_once = sorted(next(iter(report.samples.values())).rates)
    headings = ["", "p50 ms", "p90 ms", "p99 ms", "x bare", "samples", *(f"starts/s, {number}" for number in at_once)]
    rows = []
    for key, samples in report.samples.items():
        times = [f"{samples.latency(fraction) * 1e3:.2f}" for fraction in (0.5, 0.9, 0.99)]
        rates = [f"{samples.throughput(number):,.0f}" for number in at_once]
        rows.append([samples.label, *times, f"{report.ratio(key):.2f}", str(len(samples.latency_s)), *rates])
    return f"{facts_of(report.machine)}\n\n{table(headings, rows)}"


def test_table_of_the_benchmark_is_what_was_measured() -> None:
    """The figures of the page are those of the samples beside it."""
    report, block = measured("launch", Report)
    expected = benchmark_table(report)

    assert expected == block, to_paste(expected)


def test_readme_has_no_figures_of_its_own() -> None:
    """A time or a multiple that the README names stands in the benchmarks."""
    figures = re.findall(r"\b[0-9][0-9.,]*(?: ?ms| ?us| x|x| times)\b", (ROOT / "README.md").read_text())

    assert [] == [figure for figure in figures if figure not in (DOCS / "benchmarks.md").read_text()]


class Kind(enum.Enum):
    """What a change fragment may be about."""

    ADDED = "added"
    CHANGED = "changed"
    FIXED = "fixed"
    REMOVED = "removed"
    SECURITY = "security"


def test_fragments_are_named_and_short() -> None:
    """Each is NAME.KIND.md with one to three sentences."""
    fragments = [path for path in (DOCS / "changes").iterdir() if path.name != "README.md"]
    names = rf"[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(kind.value for kind in Kind)})\.md"

    assert fragments
    assert [] == [path.name for path in fragments if not re.fullmatch(names, path.name)]
    assert [] == [path.name for path in fragments if not 1 <= len(re.findall(r"[.!](?:\s|$)", path.read_text())) <= 3]


def tracked_files() -> list[Path]:
    """Return the files of the repository, those that were not added yet among them."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so which files are tracked is not known")
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    # git reads no checkout of another user's
    if shutil.which("git") is None or ROOT.stat().st_uid != os.geteuid():
        pytest.skip("this user has no git, or not this checkout, so which files are tracked is not known")
    names = subprocess.run(listing, capture_output=True, check=True).stdout.split(b"\0")
    return [path for name in names if name and (path := ROOT / name.decode()).is_file()]


def text_of(path: Path) -> str:
    """Return the text of a file, nothing when it is no text."""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode(errors="replace")


def test_project_speaks_of_itself_alone() -> None:
    """No file names tools, machines or registries that the project was made with."""
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked_files()
        for match in FORBIDDEN.finditer(text_of(path))
    }

    assert set() == found


def test_forbidden_words_are_seen() -> None:
    """The pattern finds what it is for, and leaves alone what only looks like it."""
    bad = ["see /wo_rk/main/x", "by Cl_aude", "GP_T-4", "regi_stry.example.org", "pip --ind_ex-url x"]
    good = ["--cwd /work", "$PWD:/work:rw", "~/.pyenv/versions", "the registry of commands", "from PyPI"]

    assert all(FORBIDDEN.search(text.replace("_", "")) for text in bad)
    assert not any(FORBIDDEN.search(text) for text in good)
