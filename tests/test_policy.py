"""A policy file becomes a policy that says the same, or an error with the line on which it is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from minisandbox.binds import Bind
from minisandbox.data import data_dir
from minisandbox.errors import PolicyError, UsageError
from minisandbox.policy import (
    CAPABILITIES,
    Network,
    Policy,
    Proc,
    capability_mask,
    check_policy,
    filters,
    load_policy,
    parse_size,
    policy_names,
)
from minisandbox.spec import Limits

POLICIES = data_dir() / "policies"
SHIPPED = (POLICIES / "default.json", POLICIES / "terminal.json")

in_one_directory = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that a test writes its policy to."""
    return tmp_path / "mine.toml"


def load(file: Path, *lines: str) -> Policy:
    """Write a policy that begins with its format, and load it."""
    file.write_text("\n".join(["format = 1", *lines]))
    return load_policy(file)


def test_shipped_policies_are_complete() -> None:
    """Each compiles, has no network, and leaves none of memory, processes, files, time and output without a limit."""
    for name in policy_names():
        policy = check_policy(name)
        unlimited = {field for field in Limits.__struct_fields__ if getattr(policy.limits, field) is None}

        assert (name, Network.NONE, SHIPPED) == (policy.name, policy.network, policy.seccomp)
        assert unlimited <= {"cpu_time_s", "cpus"}
    assert ["agent", "default", "strict"] == policy_names()


def test_strict_policy_gives_nothing_that_default_does_not() -> None:
    """An ordinary user, no capability, processes alone in /proc, and no limit above that of the default."""
    strict, default = load_policy("strict"), load_policy("default")
    pairs = [(getattr(strict.limits, field), getattr(default.limits, field)) for field in Limits.__struct_fields__]

    assert ("nobody", frozenset(), Proc.PID) == (strict.user, strict.capabilities, strict.proc)
    assert ("root", Proc.FULL) == (default.user, default.proc)
    assert all(limit <= other for limit, other in pairs if limit is not None and other is not None)


def test_default_policy_shows_every_key() -> None:
    """A reader of default.toml sees each key there is, set or as a comment."""
    text = (POLICIES / "default.toml").read_text()
    sections = "namespaces network user limits seccomp proc process host env".split()
    keys = "format network mount pid ipc uts user allow name capabilities profiles view addresses hostname"

    assert sections == re.findall(r"(?m)^\[(\w+)\]", text)
    bind = {"source", "target", "writable"}
    assert {*keys.split(), *bind, *Limits.__struct_fields__, "TZ"} == set(re.findall(r"(?m)^(?:# )?(\w+) = ", text))


def test_left_out_keys_are_as_default_policy_says(file: Path) -> None:
    """A file with its format alone has the defaults that the comments of default.toml name."""
    assert Policy(
        name="mine",
        network=Network.NONE,
        user="root",
        capabilities=frozenset(),
        limits=Limits(output_kept_bytes=4 << 20),
        seccomp=SHIPPED,
        proc=Proc.FULL,
        binds=(),
        hostname="sandbox",
        env={},
    ) == load(file)


def test_every_key_counts(file: Path) -> None:
    """What the file says is what the policy has."""
    (file.parent / "own.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    policy = load(
        file,
        "namespaces = { network = 'host', pid = true }",
        "user = { name = '0', capabilities = ['CAP_CHOWN', 'CAP_KILL'] }",
        "limits = { memory_bytes = '1G', wall_time_s = 0.5, processes = 7, cpus = 1.5, stdout_bytes = 10 }",
        "seccomp.profiles = ['./own.json', 'terminal.json']",
        "proc.view = 'pid'",
        "host.hostname = 'box-1.example'",
        "env = { PATH = '/bin', 'odd name' = '' }",
        "[[bind]]\nsource = '/srv'\ntarget = '/srv/a'",
        "[[bind]]\nsource = '/srv'\ntarget = '/srv/ab'\nwritable = true",
    )

    assert policy == Policy(
        name="mine",
        network=Network.HOST,
        user="0",
        capabilities=frozenset({"CAP_CHOWN", "CAP_KILL"}),
        limits=Limits(memory_bytes=1 << 30, wall_time_s=0.5, processes=7, cpus=1.5, stdout_bytes=10),
        seccomp=(file.parent / "own.json", SHIPPED[1]),
        proc=Proc.PID,
        binds=(
            Bind(source=Path("/srv"), target="/srv/a"),
            Bind(source=Path("/srv"), target="/srv/ab", writable=True),
        ),
        hostname="box-1.example",
        env={"PATH": "/bin", "odd name": ""},
    )
    listed = load(file, "network.allow = ['api.example.org:443', '*.example.net:80/private']")
    assert ("api.example.org:443", "*.example.net:80/private") == listed.allow
    assert {"mount", "pid", "ipc", "uts", "user"} == policy.namespaces
    assert policy.namespaces | {"network"} == load_policy("default").namespaces


BIND = "[[bind]]\nsource = '/srv'\n"


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ("format = 2", 2, "Cannot overwrite a value"),
        ("nice = 1", 2, "unknown key 'nice'"),
        ("[user]\nname = 'root'\ncapability = []", 4, "unknown key 'capability'"),
        ("[limits]\nmemory = '1G'", 3, "unknown key 'memory'; there are wall_time_s"),
        ("[limits]\n\nmemory_bytes = '1GB'", 4, "not a size: '1GB'"),
        ("[limits]\nprocesses = '1K'", 3, "processes must be an integer, not '1K'"),
        ("[limits]\nwall_time_s = 0", 3, "wall_time_s must be greater than 0"),
        ("[limits]\nwall_time_s = nan", 3, "wall_time_s must be greater than 0"),
        ("[limits]\nopen_files = true", 3, "open_files must be an integer"),
        ("[limits]\ndisk_bytes = '9999T'", 3, "disk_bytes is"),
        ("[limits]\ncpus = 0xfffffffffffffffffffffffff", 3, "more than 64 bits"),
        ("[namespaces]\nnetwork = 'bridge'", 3, "namespaces.network: Invalid enum value 'bridge'"),
        ("[network]\nallow = ['a.example:80',\n'a.example']", 4, "not an endpoint: 'a.example'; write HOST:PORT"),
        ("[network]\nallow = ['*:443']", 3, "not a host: '*'"),
        ("[network]\nallow = ['127.1:80']", 3, "not a host: '127.1'"),
        ("[network]\nallow = 'a.example:80'", 3, "Expected `array`, got `str`"),
        ("[network]\nallow = ['a.example:80']\n[namespaces]\nnetwork = 'host'", 3, "an allow list is for a network of"),
        ("[network]\nallowed = []", 3, "unknown key 'allowed'"),
        ("[namespaces]\npid = false", 3, "no sandbox goes without its pid namespace"),
        ("[user]\nname = 'Jo Doe'", 3, "not a user: 'Jo Doe'"),
        ("[user]\nname = '65535'", 3, "a uid from 0 to 65534"),
        ("[user]\nname = '01'", 3, "not a user"),
        ("[user]\ncapabilities = [\n'CAP_CHOWN',\n'CAP_CHWON']", 5, "'CAP_CHWON'; did you mean CAP_CHOWN?"),
        ("[user]\nname = 'nobody'\ncapabilities = ['CAP_CHOWN']", 4, "capabilities are for root, but commands run as"),
        ("[seccomp]\nprofiles = ['default.json',\n'lost.json']", 4, "there is no profile 'lost.json'"),
        ("[seccomp]\nprofiles = ['./default.json']", 3, "there is no profile './default.json'"),
        ("[seccomp]\nprofiles = ['a\\\\u0000']", 3, "there is no profile"),
        ("[host]\nhostname = '-'", 3, "not a host name: '-'"),
        (f"[host]\nhostname = '{'a' * 65}'", 3, "not a host name"),
        ("[env]\nA = 'a'\nB = 1", 4, "environment variable B must be a text"),
        ('[env]\nA = "\\u0000"', 3, "environment variable A must be a text without NUL"),
        ("[env]\n'A=B' = ''", 3, "not a name of an environment variable: 'A=B'"),
        (BIND, 2, "missing required field `target`"),
        ("[[bind]]\nsource = 'srv'\ntarget = '/srv'", 3, "bind source 'srv' is relative"),
        (BIND + "target = 'srv'", 4, "bind target 'srv' is relative"),
        (BIND + "target = '/srv/../etc'", 4, "write /etc"),
        (BIND + "target = '/proc/x'", 4, "is /proc or below it"),
        (BIND + "target = '/srv'\n" + BIND + "target = '/srv'", 7, "hides the earlier one at /srv"),
        (BIND + "target = '/srv/a'\n" + BIND + "target = '/srv'", 7, "hides the earlier one at /srv/a; put it first"),
        ("[proc]\nview = 'none'", 3, "proc.view: Invalid enum value 'none'"),
    ],
)
def test_wrong_policy_is_refused_with_its_line(file: Path, lines: str, line: int, message: str) -> None:
    """Unknown keys and names, contradictions and values out of range: the error says what is wrong, and where."""
    with pytest.raises(PolicyError) as caught:
        load(file, lines)

    assert message in str(caught.value)
    assert (file, line) == (caught.value.file, caught.value.line)


@pytest.mark.parametrize(
    "change",
    [
        {"user": "no body"},
        {"user": "nobody"},
        {"capabilities": frozenset({"CAP_ANY"})},
        {"hostname": ""},
        {"allow": ("a.example",)},
        {"allow": ("a.example:80",), "network": Network.HOST},
        {"env": {"": "x"}},
        {"binds": (Bind(source=Path("/a"), target="/a/b"), Bind(source=Path("/a"), target="/a"))},
    ],
)
def test_policy_made_in_code_is_checked_as_well(change: dict[str, Any]) -> None:
    """A wrong value or a contradiction is an error of the caller when there is no file to blame."""
    with pytest.raises(UsageError):
        msgspec.structs.replace(load_policy("default"), **change)


def test_error_in_a_profile_names_the_profile(file: Path) -> None:
    """Loading does not compile; checking does, and blames the right file."""
    profile = file.with_name("own.json")
    profile.write_text(
        '{"defaultAction": "SCMP_ACT_ALLOW",\n"syscalls": [\n{"names": ["nope"], "action": "SCMP_ACT_LOG"}]}'
    )
    load(file, "seccomp.profiles = ['own.json']")
    with pytest.raises(PolicyError, match="unknown system call 'nope'") as caught:
        check_policy(file)

    assert (profile, 3) == (caught.value.file, caught.value.line)


def test_filters_follow_profiles_and_capabilities(file: Path) -> None:
    """One program for each profile in their order, none for none; chroot's capability makes another program."""
    with_chroot = filters(load(file, "user.capabilities = ['CAP_SYS_CHROOT']"))
    plain = filters(load(file))
    reverse = filters(load(file, "seccomp.profiles = ['terminal.json', 'default.json']"))

    assert plain == reverse[::-1]
    assert plain[0] != with_chroot[0]
    assert plain[1] is with_chroot[1] or plain[1] == with_chroot[1]
    assert () == filters(load(file, "seccomp.profiles = []"))


def test_unknown_policy_is_an_error_of_the_caller() -> None:
    """The message lists those there are; a path is never taken for a name."""
    for name in ("lax", "", "DEFAULT", "default.json"):
        with pytest.raises(UsageError, match="there are agent, default, strict"):
            load_policy(name)
    for path in ("./default", "default.toml", Path("default")):
        with pytest.raises(PolicyError, match="cannot be read: No such file or directory"):
            load_policy(path)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("1K", 1024), ("256M", 256 << 20), ("1G", 1 << 30), ("3T", 3 << 40)]
)
def test_size_is_in_powers_of_1024(text: str, size: int) -> None:
    """A number alone is bytes."""
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "K", "1k", "1.5G", "-1", "+1", " 1", "1 M", "1MB", "1MiB", "0x10", "१", "9" * 19])
def test_other_sizes_are_errors_of_the_caller(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


def test_capability_mask_is_that_of_the_kernel() -> None:
    """Bit n is capability n (capabilities(7)): the last one known is number 40."""
    known = {
        "CAP_CHOWN": 0,
        "CAP_SYS_CHROOT": 18,
        "CAP_SYS_PTRACE": 19,
        "CAP_SYS_ADMIN": 21,
        "CAP_CHECKPOINT_RESTORE": 40,
    }

    assert known == {name: capability_mask([name]).bit_length() - 1 for name in known}
    assert (1 << 41) - 1 == capability_mask(CAPABILITIES)
    assert 0 == capability_mask([])
