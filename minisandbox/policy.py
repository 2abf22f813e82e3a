"""Policies: what a sandbox may see, hold and use. Read from policies/*.toml, checked, and from then on a value.

It starts nothing and looks at nothing of the host but the policy's own files. What a key means, its unit and its
default stand beside it in policies/default.toml.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.binds import Bind, check_absolute
from minisandbox.capabilities import CAPABILITIES as CAPABILITIES
from minisandbox.capabilities import capability_mask as capability_mask
from minisandbox.choices import Addresses as Addresses
from minisandbox.choices import Network as Network
from minisandbox.choices import Proc as Proc
from minisandbox.data import data_dir
from minisandbox.document import Document, read_document
from minisandbox.endpoints import parse_endpoint, parse_endpoints
from minisandbox.errors import HostError, PolicyError, UsageError
from minisandbox.seccomp import compile_profile
from minisandbox.spec import Limits

FORMAT = 1
"""The format of policy files that this version reads."""

NAMESPACES = ("mount", "pid", "ipc", "uts", "user")
"""Namespaces that every sandbox has. None can be switched off, since the isolation of the others rests on each."""

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_UIDS = range(65535)  # that a sandbox's user namespace maps


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy. Raises UsageError when a value is wrong or two of them contradict each other."""

    name: str
    network: Network
    allow: tuple[str, ...] = ()
    """Endpoints that can be reached all the same, through a proxy; only with a network of the sandbox's own."""
    user: str
    """Who runs commands: a name that the rootfs knows, or a uid as text."""
    capabilities: frozenset[str]
    """What root inside keeps, by full name. Towards the sandbox alone: none counts outside its user namespace."""
    limits: Limits
    seccomp: tuple[Path, ...]
    """Profiles. Each becomes a filter of its own, and a call must pass them all; of two error numbers the last one's
    counts (seccomp(2))."""
    proc: Proc
    binds: tuple[Bind, ...]
    hostname: str
    env: dict[str, str]
    addresses: Addresses = Addresses.RANDOM

    def __post_init__(self) -> None:
        _check_allow(self.allow, self.network)
        check_user(self.user)
        capability_mask(self.capabilities)
        _check_privilege(self.user, self.capabilities)
        check_hostname(self.hostname)
        for name, value in self.env.items():
            _check_variable(name, value)
        for index in range(len(self.binds)):
            _check_hides_none(self.binds[index], self.binds[:index])

    @property
    def namespaces(self) -> frozenset[str]:
        """The kinds of namespace that the sandbox has of its own."""
        return frozenset((*NAMESPACES, "network") if self.network is Network.NONE else NAMESPACES)


# The tables of a policy file, with what holds for each key that is left out.
class _Namespaces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    network: Network = Network.NONE
    mount: bool = True
    pid: bool = True
    ipc: bool = True
    uts: bool = True
    user: bool = True


class _Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[str, ...] = ()


class _User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = "root"
    capabilities: tuple[str, ...] = ()


class _Seccomp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profiles: tuple[str, ...] = ("default.json", "terminal.json")


class _Proc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    view: Proc = Proc.FULL


class _Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    addresses: Addresses = Addresses.RANDOM


class _Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hostname: str = "sandbox"


class _Bind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    target: str
    writable: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    namespaces: _Namespaces = _Namespaces()
    network: _Network = _Network()
    user: _User = _User()
    limits: dict[str, Any] = {}
    seccomp: _Seccomp = _Seccomp()
    proc: _Proc = _Proc()
    process: _Process = _Process()
    host: _Host = _Host()
    env: dict[str, Any] = {}
    bind: tuple[_Bind, ...] = ()


def policy_names() -> list[str]:
    """Return the names of the policies that come with the package."""
    return sorted(path.stem for path in (data_dir() / "policies").glob("*.toml"))


def load_policy(name_or_path: str | Path) -> Policy:
    """Return a policy by name, or that of a file when a Path is given, or a text with "/" or ending in ".toml".

    Raises UsageError when no policy has the name, PolicyError with file and line when the file is wrong.
    """
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".toml"):
        path = Path(name_or_path)
    elif text in policy_names():
        path = data_dir() / "policies" / f"{text}.toml"
    else:
        raise UsageError(f"there is no policy {text!r}; there are {', '.join(policy_names())}, and files (NAME.toml)")
    return _to_policy(path.stem, read_document(path, PolicyError))


def check_policy(name_or_path: str | Path) -> Policy:
    """Return a policy as `load_policy` does, once its seccomp profiles are known to compile."""
    policy = load_policy(name_or_path)
    filters(policy)
    return policy


def filters(policy: Policy) -> tuple[bytes, ...]:
    """Return the BPF programs of a policy, in the order in which they must be installed.

    A profile is compiled when its content or the capabilities are new, and else found in a few microseconds.
    Raises PolicyError with file and line when a profile is wrong, HostError when libseccomp is missing.
    """
    try:
        return tuple(compile_profile(path, capabilities=policy.capabilities) for path in policy.seccomp)
    except OSError as error:
        raise HostError(f"cannot make a filter: {error.strerror}") from error


def parse_size(text: str) -> int:
    """Return bytes from a text like "256M": a whole number, then nothing or K, M, G or T (powers of 1024)."""
    match = re.fullmatch(r"([0-9]{1,18})([KMGT]?)", text)
    if match is None:
        raise UsageError(f"not a size: {text!r}; write a whole number of bytes, or one with K, M, G or T, as 256M")
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


def check_user(user: str) -> None:
    """Raise UsageError unless `user` could be a user name, or is a uid that a sandbox has."""
    if not _USER.fullmatch(user) and user not in map(str, _UIDS):
        raise UsageError(f"not a user: {user!r}; give a name, or a uid from 0 to {_UIDS[-1]}")


def check_hostname(hostname: str) -> None:
    """Raise UsageError unless the kernel and everybody else takes it for a host name (hostname(7))."""
    if not _HOSTNAME.fullmatch(hostname):
        raise UsageError(f"not a host name: {hostname!r}; use up to 64 letters, digits, '-' and '.'")


def _check_allow(allow: tuple[str, ...], network: Network) -> None:
    parse_endpoints(allow)
    if allow and network is Network.HOST:
        raise UsageError("an allow list is for a network of the sandbox's own; the host's network reaches everything")


def _check_privilege(user: str, capabilities: frozenset[str]) -> None:
    if capabilities and user not in ("root", "0"):
        raise UsageError(f"capabilities are for root, but commands run as {user}; leave them out, or run as root")


def _check_variable(name: str, value: object) -> None:
    if not name or "=" in name or "\0" in name:
        raise UsageError(f"not a name of an environment variable: {name!r}")
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"the environment variable {name} must be a text without NUL, not {value!r}")


def _check_hides_none(bind: Bind, earlier: Iterable[Bind]) -> None:
    for other in earlier:
        if (other.target + "/").startswith(bind.target + "/"):
            raise UsageError(f"the bind at {bind.target} hides the earlier one at {other.target}; put it first")


def _to_policy(name: str, document: Document) -> Policy:
    """Check a file key by key, so that every error has its line, and return the policy."""
    file = document.convert(_File)
    if file.format != FORMAT:
        raise document.error(("format",), f"format {file.format} is not known; this version reads {FORMAT}")
    for namespace in NAMESPACES:
        if not getattr(file.namespaces, namespace):
            raise document.error(("namespaces", namespace), f"no sandbox goes without its {namespace} namespace")
    for index, endpoint in enumerate(file.network.allow):
        with document.at("network", "allow", index):
            parse_endpoint(endpoint)
    with document.at("network", "allow"):
        _check_allow(file.network.allow, file.namespaces.network)
    with document.at("user", "name"):
        check_user(file.user.name)
    for index, capability in enumerate(file.user.capabilities):
        with document.at("user", "capabilities", index):
            capability_mask([capability])
    with document.at("user", "capabilities"):
        _check_privilege(file.user.name, frozenset(file.user.capabilities))
    with document.at("host", "hostname"):
        check_hostname(file.host.hostname)
    for variable, value in file.env.items():
        with document.at("env", variable):
            _check_variable(variable, value)
    return Policy(
        name=name,
        network=file.namespaces.network,
        allow=file.network.allow,
        user=file.user.name,
        capabilities=frozenset(file.user.capabilities),
        limits=_to_limits(file.limits, document),
        seccomp=_to_profiles(file.seccomp.profiles, document),
        proc=file.proc.view,
        binds=_to_binds(file.bind, document),
        hostname=file.host.hostname,
        env=file.env,
        addresses=file.process.addresses,
    )


def _to_limits(table: dict[str, Any], document: Document) -> Limits:
    limits = Limits()
    for name, value in table.items():
        with document.at("limits", name):
            if name not in Limits.__struct_fields__:
                raise UsageError(f"unknown key {name!r}; there are {', '.join(Limits.__struct_fields__)}")
            is_size = isinstance(value, str) and name.endswith("_bytes")
            limits = msgspec.structs.replace(limits, **{name: parse_size(value) if is_size else value})
    return limits


def _to_profiles(names: Iterable[str], document: Document) -> tuple[Path, ...]:
    """Return the profiles, which stand beside the policy file; one given by its bare name may be a shipped one."""
    profiles = []
    for index, name in enumerate(names):
        places = [document.path.parent / name, *([] if "/" in name else [data_dir() / "policies" / name])]
        found = [place.absolute() for place in places if "\0" not in name and place.is_file()]
        if not found:
            raise document.error(("seccomp", "profiles", index), f"there is no profile {name!r}")
        profiles.append(found[0])
    return tuple(profiles)


def _to_binds(tables: Iterable[_Bind], document: Document) -> tuple[Bind, ...]:
    binds: list[Bind] = []
    for index, table in enumerate(tables):
        with document.at("bind", index, "source"):
            check_absolute("bind source", table.source)
        with document.at("bind", index, "target"):
            bind = Bind(source=Path(table.source), target=table.target, writable=table.writable)
            _check_hides_none(bind, binds)
            binds.append(bind)
    return tuple(binds)
