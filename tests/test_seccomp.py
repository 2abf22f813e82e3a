"""A profile becomes a program that does what the profile says, or an error that says where the profile is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyseccomp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisandbox.errors import HostError, PolicyError
from minisandbox.seccomp import compile_profile
from tests.seccomp_lab import (
    ALLOW,
    DOCKER,
    KILL_PROCESS,
    TOKENS,
    allow,
    call_number,
    compare,
    deny,
    errno_action,
    run_filter,
    write,
)

OPERATORS: dict[str, Callable[[int, int, int], bool]] = {
    "SCMP_CMP_NE": lambda arg, value, _two: arg != value,
    "SCMP_CMP_LT": lambda arg, value, _two: arg < value,
    "SCMP_CMP_LE": lambda arg, value, _two: arg <= value,
    "SCMP_CMP_EQ": lambda arg, value, _two: arg == value,
    "SCMP_CMP_GE": lambda arg, value, _two: arg >= value,
    "SCMP_CMP_GT": lambda arg, value, _two: arg > value,
    "SCMP_CMP_MASKED_EQ": lambda arg, value, two: arg & value == two,
}
EDGES = [0, 1, 2, 3, 5, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 5 << 32, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
VALUES = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The file that a test writes its profile to."""
    return tmp_path / "profile.json"


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """A rule for read with up to two comparisons of its arguments."""
    args = []
    for index in sorted(draw(st.sets(st.integers(0, 2), max_size=2))):
        op, value = draw(st.sampled_from(sorted(OPERATORS))), draw(VALUES)
        two = draw(VALUES) & value if op == "SCMP_CMP_MASKED_EQ" else 0
        args.append({"index": index, "op": op, "value": value, "valueTwo": two})
    return allow("read", args=args) if draw(st.booleans()) else deny("read", args=args)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rules(), min_size=1, max_size=4), st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=12, max_size=12))
def test_program_does_what_the_profile_says(
    profile: Path, given_rules: list[dict[str, Any]], calls: list[tuple[int, int, int]]
) -> None:
    """Whatever the rules compare, each call gets the action of the rules that match it, or the profile is refused."""
    write(profile, *given_rules, defaultErrnoRet=38)
    try:
        program = compile_profile(profile)
    except PolicyError as error:
        assert any(words in str(error) for words in ("two actions", "can match", "more than 200 cases"))
        return

    for call in calls:
        actions = {
            ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else errno_action(1)
            for rule in given_rules
            if all(OPERATORS[arg["op"]](call[arg["index"]], arg["value"], arg["valueTwo"]) for arg in rule["args"])
        }
        assert (actions or {errno_action(38)}) == {run_filter(program, call_number("read"), call)[0]}


def test_order_of_two_rules_does_not_open_a_gap(profile: Path) -> None:
    """2^32-1 is neither at most 32 nor above 2^32; libseccomp 2.5.4, given the comparisons as they are, allows it."""
    at_least, at_most = compare(0, "GE", (1 << 32) + 1), compare(0, "LE", 32)
    program = compile_profile(write(profile, allow("read", args=[at_least]), allow("read", args=[at_most])))

    results = [run_filter(program, call_number("read"), [arg])[0] for arg in (32, (1 << 32) - 1, (1 << 32) + 1)]
    assert [ALLOW, errno_action(1), ALLOW] == results


@pytest.mark.parametrize("optimize", [1, 2])
def test_only_a_tree_is_shallow(optimize: int) -> None:
    """The bound on steps that the shipped profiles keep is one that a list of rules does not keep."""
    program = pyseccomp.SyscallFilter(pyseccomp.ERRNO(38))
    program.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, optimize)
    for number in range(330):
        program.add_rule(pyseccomp.ALLOW, number)
    with open(os.memfd_create("program"), "w+b", buffering=0) as file:
        program.export_bpf(file)
        file.seek(0)
        code = file.read()

    assert (optimize == 2) == (max(run_filter(code, number)[1] for number in range(400)) <= 20)


@pytest.mark.parametrize(("arch", "other"), [("x86_64", "aarch64"), ("aarch64", "x86_64")])
def test_foreign_call_kills(profile: Path, arch: str, other: str) -> None:
    """A call of another architecture kills the process, also where archMap names it and the default is to allow."""
    write(profile, defaultAction="SCMP_ACT_ALLOW", archMap=DOCKER["archMap"])
    program = compile_profile(profile, arch=arch)

    assert ALLOW == run_filter(program, 0, token=TOKENS[arch])[0]
    for token in (TOKENS[other], pyseccomp.Arch.X86, pyseccomp.Arch.ARM):
        assert KILL_PROCESS == run_filter(program, 0, token=token)[0]


def test_x32_call_kills(profile: Path) -> None:
    """A number with the x32 bit kills, although its architecture is the right one."""
    program = compile_profile(write(profile, defaultAction="SCMP_ACT_ALLOW"), arch="x86_64")

    assert [KILL_PROCESS] * 3 == [run_filter(program, 0x40000000 | number)[0] for number in (0, 39, 547)]


@pytest.mark.parametrize(
    ("name", "args", "plain", "admin"),
    [
        ("read", (), ALLOW, ALLOW),
        ("write", (), errno_action(1), errno_action(1)),
        ("ptrace", (), ALLOW, ALLOW),
        ("process_vm_readv", (), errno_action(1), errno_action(1)),
        ("socket", (11,), ALLOW, ALLOW),
        ("socket", (12,), errno_action(1), errno_action(1)),
        ("socket", (13,), ALLOW, ALLOW),
        ("personality", (0xFFFFFFFF,), ALLOW, ALLOW),
        ("arch_prctl", (), ALLOW, ALLOW),
        ("bpf", (), errno_action(1), ALLOW),
        ("clone", (17,), ALLOW, ALLOW),
        ("clone", (0x10000011,), errno_action(1), ALLOW),
        ("clone3", (), errno_action(38), ALLOW),
    ],
)
def test_docker_profile_drops_in(profile: Path, name: str, args: tuple[int, ...], plain: int, admin: int) -> None:
    """Conditions on capabilities, kernels and architectures count as in Docker; calls of other machines are skipped."""
    profile.write_text(json.dumps(DOCKER))
    programs = [
        compile_profile(profile, arch="x86_64", capabilities=capabilities)
        for capabilities in (frozenset[str](), frozenset({"CAP_SYS_ADMIN"}))
    ]

    assert [plain, admin] == [run_filter(program, call_number(name), args)[0] for program in programs]


def test_calls_newer_than_libseccomp_have_their_numbers(profile: Path) -> None:
    """mseal has one number everywhere, uretprobe one on x86_64 alone, and a foreign call takes none by accident."""
    profile.write_text(json.dumps(DOCKER))
    program = compile_profile(profile, arch="x86_64")
    allowed = {number for number in range(600) if run_filter(program, number)[0] == ALLOW}

    names = ("read", "ptrace", "socket", "arch_prctl", "clone")
    assert {462, 335, *map(call_number, names)} == allowed


def test_same_content_is_compiled_once(profile: Path) -> None:
    """Asking again gives the same object; a changed file or other capabilities give another program."""
    write(profile, allow("read"), allow("chroot", includes={"caps": ["CAP_SYS_CHROOT"]}))
    first, again = compile_profile(profile), compile_profile(profile)
    other = compile_profile(profile, capabilities=frozenset({"CAP_SYS_CHROOT"}))
    write(profile, allow("write"))

    assert first is again
    assert 3 == len({first, other, compile_profile(profile)})


def test_missing_libseccomp_is_a_fact_of_the_host(tmp_path: Path) -> None:
    """Without the library the error names it and how to get it."""
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    code = (
        f"import sys; sys.path[:0] = {[str(tmp_path), str(Path(__file__).parents[1])]}\n"
        "from pathlib import Path\nfrom minisandbox.seccomp import compile_profile\n"
        f"compile_profile(Path({str(write(tmp_path / 'p.json'))!r}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert 1 == run.returncode
    assert "HostError: libseccomp is missing; on Debian or Ubuntu: apt-get install libseccomp2" in run.stderr


def test_unknown_machine_is_a_fact_of_the_host(profile: Path) -> None:
    """A machine that no filter can be made for is no fault of the profile."""
    with pytest.raises(HostError, match="seccomp filters for m68k, only for x86_64 and aarch64"):
        compile_profile(write(profile), arch="m68k")


READ_TWICE = [compare(0, "EQ", 1), compare(0, "EQ", 2)]
REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], str, str]] = [
    ([allow("read"), allow("write", "raed")], {}, '"raed"', "unknown system call 'raed'"),
    ([allow("read\0x")], {}, '"read\\u0000x"', "unknown system call"),
    ([allow("ioctl"), deny("read", "ioctl", args=[compare(1, "EQ", 7)])], {}, '"ioctl"', "ioctl has two actions"),
    ([allow("ioctl"), deny("write", "ioctl")], {}, '"ioctl"', "ioctl has two actions"),
    (
        [allow("read", args=[compare(0, "LT", 9)]), deny("read", args=[compare(0, "EQ", 8)])],
        {},
        '"read"',
        "two actions",
    ),
    ([allow("read", args=READ_TWICE)], {}, '"index": 0', "cannot compare argument 0 twice"),
    ([allow("read", args=[compare(6, "EQ", 1)])], {}, '"index": 6', "arguments 0 to 5, not 6"),
    ([allow("read", args=[compare(0, "LT", 0)])], {}, '"value": 0', "can match this"),
    ([allow("read", args=[compare(0, "MASKED_EQ", 2, 3)])], {}, '"value": 2', "can match this"),
    ([allow("read", args=[compare(0, "EQ", -1)])], {}, '"value": -1', "can match this"),
    ([allow("read", args=[compare(0, "EQ", 1 << 64)])], {}, '"value": 18446744073709551616', "64 bits"),
    ([allow("read", args=[compare(0, "EQ", 1, 1)])], {}, '"valueTwo": 1', "EQ takes no valueTwo"),
    ([allow("read", args=[compare(0, "NE", 1), compare(1, "NE", 1)])], {}, '"args"', "more than 200 cases"),
    ([allow("read", args=[compare(0, "IS", 1)])], {}, '"op"', "Invalid enum value"),
    ([allow("read", errnoRet=1)], {}, '"errnoRet"', "only SCMP_ACT_ERRNO has one"),
    ([deny("read", errnoRet=4096)], {}, '"errnoRet"', "0 to 4095"),
    ([allow("read", includes={"minKernel": "new"})], {}, '"minKernel"', "not a version such as 4.8"),
    ([allow("read", includes={"cap": ["CAP_CHOWN"]})], {}, '"cap"', "unknown key 'cap'"),
    ([{"names": ["read"], "action": "SCMP_ACT_TRACE"}], {}, '"action"', "Invalid enum value"),
    ([{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}], {}, '"action"', "Invalid enum value"),
    ([], {"defaultErrnoRet": "1"}, '"defaultErrnoRet"', "Expected `int | null`, got `str`"),
    ([], {"listenerPath": "/x"}, '"listenerPath"', "unknown key 'listenerPath'"),
    ([], {"architectures": ["SCMP_ARCH_S390X"]}, '"architectures"', "not meant for x86_64"),
    ([], {"architectures": ["SCMP_ARCH_X86_64"], "archMap": DOCKER["archMap"]}, '"archMap"', "keep one"),
]


@pytest.mark.parametrize(("given_rules", "members", "place", "message"), REFUSED)
def test_wrong_profile_is_refused_with_its_line(
    profile: Path, given_rules: list[dict[str, Any]], members: dict[str, Any], place: str, message: str
) -> None:
    """The error names the file, what is wrong, and the last line on which the wrong value could be meant."""
    lines = write(profile, *given_rules, **members).read_text().splitlines()
    with pytest.raises(PolicyError) as caught:
        compile_profile(profile, arch="x86_64")

    assert message in str(caught.value)
    assert profile == caught.value.file
    assert max(number for number, line in enumerate(lines, 1) if place in line) == caught.value.line


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["read", "x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["names", "action", "args", "value", "includes"]), inner, max_size=3)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": value}).encode())
)
def test_junk_is_compiled_or_refused(profile: Path, content: bytes) -> None:
    """Whatever the file holds, there is a program or a PolicyError."""
    profile.write_bytes(content)
    try:
        program = compile_profile(profile)
    except PolicyError as error:
        assert profile == error.file
        return

    assert program
