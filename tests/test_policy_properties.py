"""What holds for policy files of any content: round trips, the line of an error, and no other kind of error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisandbox.binds import Bind
from minisandbox.data import data_dir
from minisandbox.errors import PolicyError
from minisandbox.policy import CAPABILITIES, Addresses, Network, Policy, Proc, check_policy, load_policy
from minisandbox.spec import Limits

POLICIES = data_dir() / "policies"
PROFILES = st.lists(st.sampled_from(["default.json", "terminal.json"]), max_size=3)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x7f="), max_size=8)
LIMITS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.integers(1, 1 << 20) for name in Limits.__struct_fields__ if name.endswith(("_bytes", "es"))},
        **{name: st.integers(1, 1000) | st.floats(0.001, 1000) for name in ("wall_time_s", "cpu_time_s", "cpus")},
    },
)

in_one_directory = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that a test writes its policy to."""
    return tmp_path / "mine.toml"


ENDPOINTS = ["a.example:80", "*.b.example:443/private", "[::1]:8000", "b\u00fccher.example:1"]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """A policy with values of all kinds."""
    user = draw(st.sampled_from(["root", "0", "nobody", "1000"]))
    names = draw(st.sets(st.sampled_from(sorted(CAPABILITIES)))) if user in ("root", "0") else ()
    targets = draw(st.lists(st.sampled_from(["/a", "/b/c", "/d e"]), unique=True))
    network = draw(st.sampled_from(Network))
    allow = draw(st.lists(st.sampled_from(ENDPOINTS), max_size=3)) if network is Network.NONE else ()
    return Policy(
        name="mine",
        network=network,
        allow=tuple(allow),
        user=user,
        capabilities=frozenset(names),
        limits=Limits(**draw(LIMITS)),
        seccomp=tuple(POLICIES / name for name in draw(PROFILES)),
        proc=draw(st.sampled_from(Proc)),
        addresses=draw(st.sampled_from(Addresses)),
        binds=tuple(Bind(source=Path("/srv"), target=target, writable=draw(st.booleans())) for target in targets),
        hostname=draw(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)),
        env=draw(st.dictionaries(WORDS.filter(bool), WORDS, max_size=3)),
    )


def quoted(value: object) -> str:
    """Return a value as TOML: texts, numbers, booleans and arrays look as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def tables(policy: Policy) -> list[list[str]]:
    """Return the lines of each table of a policy's file, the header first."""
    limits = {name: getattr(policy.limits, name) for name in Limits.__struct_fields__}
    return [
        ["[namespaces]", f"network = {quoted(policy.network.value)}"],
        ["[network]", f"allow = {quoted(policy.allow)}"],
        ["[user]", f"name = {quoted(policy.user)}", f"capabilities = {quoted(sorted(policy.capabilities))}"],
        ["[limits]", *(f"{name} = {quoted(value)}" for name, value in limits.items() if value is not None)],
        ["[seccomp]", f"profiles = {quoted([str(path) for path in policy.seccomp])}"],
        ["[proc]", f"view = {quoted(policy.proc.value)}"],
        ["[process]", f"addresses = {quoted(policy.addresses.value)}"],
        ["[host]", f"hostname = {quoted(policy.hostname)}"],
        ["[env]", *(f"{quoted(name)} = {quoted(value)}" for name, value in policy.env.items())],
        *(
            ["[[bind]]", "source = '/srv'", f"target = {quoted(bind.target)}", f"writable = {quoted(bind.writable)}"]
            for bind in policy.binds
        ),
    ]


@in_one_directory
@given(policies())
def test_policy_is_what_its_file_says(file: Path, policy: Policy) -> None:
    """A policy that is written down and loaded is the same policy."""
    file.write_text("\n".join(["format = 1", *(line for table in tables(policy) for line in table)]))

    assert policy == load_policy(file)


BAD_LINES = st.sampled_from(["nmae = 1", "'' = []", '"a.b" = """\n"""', "x.y = {}", "x = [\n1,\n]"])
FILLERS = st.lists(st.sampled_from(["", "# name = 1", "  # [user]", "\t"]), max_size=2)


@in_one_directory
@given(policies(), BAD_LINES, st.data())
def test_unknown_key_is_found_wherever_it_stands(file: Path, policy: Policy, bad: str, data: st.DataObject) -> None:
    """Among tables in any order, comments and blank lines, the error has the line of the one bad key."""
    all_tables = [["[[bind]]", "source = '/srv'", "target = '/last'"], *tables(policy)]
    victim = data.draw(st.sampled_from([table for table in all_tables if table[0] != "[env]"]))
    victim.insert(data.draw(st.integers(1, len(victim))), bad)
    lines = ["format = 1"]
    for table in data.draw(st.permutations(all_tables)):
        for line in table:
            lines += [*data.draw(FILLERS), line]
    file.write_text("\n".join(lines))
    with pytest.raises(PolicyError, match="unknown key") as caught:
        load_policy(file)

    above = "\n".join(lines[: lines.index(bad)])
    assert above.count("\n") + 2 == caught.value.line


DEFAULT = (POLICIES / "default.toml").read_text()
PIECES = st.text(max_size=10) | st.sampled_from(
    ["[[bind]]\n", "-", "'", '"', "[", "{", "\n", "limits.", "= 99999999999"]
)


@in_one_directory
@given(st.lists(st.tuples(st.integers(0, len(DEFAULT)), st.integers(0, 40), PIECES), min_size=1, max_size=4))
def test_damaged_policy_is_read_or_refused(file: Path, damages: list[tuple[int, int, str]]) -> None:
    """Whatever is cut out of default.toml or put in, there is a policy or a PolicyError with a line of the file."""
    text = DEFAULT
    for start, length, piece in damages:
        text = text[:start] + piece + text[start + length :]
    file.write_text(text, newline="")
    try:
        check_policy(file)
    except PolicyError as error:
        assert file == error.file
        assert 0 <= error.line <= text.count("\n") + 1


@in_one_directory
@given(st.binary(max_size=50))
def test_junk_is_refused(file: Path, content: bytes) -> None:
    """A file of noise is a PolicyError."""
    file.write_bytes(content)
    with pytest.raises(PolicyError):
        load_policy(file)
