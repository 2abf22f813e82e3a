"""Turn a seccomp profile, a JSON file in the OCI/Docker format, into a BPF program, by way of libseccomp.

It never installs a filter, and never admits a second architecture, whatever `archMap` lists: a call through a foreign
entry (int 0x80, x32) kills the process. What libseccomp would drop or weaken without a word is an error here.
The format: opencontainers/runtime-spec config-linux.md, "Seccomp", with Docker's `archMap`, `includes` and `excludes`.
"""

from __future__ import annotations

import errno
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from minisandbox.document import Document, Key, decode_document, read_content
from minisandbox.errors import HostError, PolicyError

_ARCHITECTURES = {"x86_64": ("X86_64", "amd64"), "aarch64": ("AARCH64", "arm64")}
"""By machine (uname -m): libseccomp's name, and Docker's name in `includes` and `excludes`."""

_UNIFIED_CALLS = {
    name: number
    for number, name in enumerate(
        "process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule "
        "landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 "
        "map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr "
        "lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr "
        "file_setattr".split(),
        start=440,
    )
}
"""Calls newer than libseccomp 2.5.0, whose numbers all architectures share (linux/scripts/syscall.tbl)."""

_LONE_CALLS = {"uretprobe": ("x86_64", 335), "uprobe": ("x86_64", 336), "riscv_hwprobe": ("riscv64", 258)}
"""As above, but each of one architecture."""

_MAX_U64 = (1 << 64) - 1
_MAX_CASES = 200
_MAX_PROGRAM_BYTES = 4096 * 8  # BPF_MAXINSNS of struct sock_filter

_Action = Literal[
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_LOG",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_TRAP",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_KILL_PROCESS",
]
"""Without TRACE and NOTIFY on purpose: whoever traces or listens could then let the call pass."""


class _Argument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A comparison of one argument. For MASKED_EQ, `value` is the mask and `value_two` what must be left."""

    index: int
    value: int
    op: Literal[
        "SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"
    ]
    value_two: int = 0

    def cases(self) -> Iterator[tuple[int, int]]:
        """Yield masks and what they must leave, one of which fits just when the comparison holds.

        libseccomp gets these right. It mixes up several rules for one call that order or say NE: for a >= 2^32+1 beside
        a <= 32 it lets 2^32-1 pass, and for some pairs it never returns (2.5.4).
        """
        if self.op == "SCMP_CMP_MASKED_EQ":
            yield self.value, self.value_two
        if self.op in ("SCMP_CMP_EQ", "SCMP_CMP_LE", "SCMP_CMP_GE"):
            yield _MAX_U64, self.value
        below, above = self.op in ("SCMP_CMP_LT", "SCMP_CMP_LE"), self.op in ("SCMP_CMP_GT", "SCMP_CMP_GE")
        for bit in range(64):  # the highest one in which the argument differs from the value
            if self.op == "SCMP_CMP_NE" or (below if self.value >> bit & 1 else above):
                yield _MAX_U64 >> bit << bit, (self.value >> bit ^ 1) << bit


class _Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    caps: tuple[str, ...] | None = None
    arches: tuple[str, ...] | None = None
    min_kernel: str | None = None


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    action: _Action
    names: tuple[str, ...]
    errno_ret: int | None = None
    args: tuple[_Argument, ...] | None = None
    comment: str = ""
    includes: _Condition | None = None
    excludes: _Condition | None = None


class _Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    architecture: str
    sub_architectures: tuple[str, ...] | None = None


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    default_action: _Action
    default_errno_ret: int | None = None
    architectures: tuple[str, ...] | None = None
    arch_map: tuple[_Architecture, ...] | None = None
    syscalls: tuple[_Rule, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """One action for one system call whose arguments, where listed (index, mask, value), leave a value under a mask."""

    name: str
    number: int
    action: int
    args: tuple[tuple[int, int, int], ...]
    key: Key

    def overlaps(self, other: _Call) -> bool:
        """Tell whether one call could fit both."""
        return not any(
            index == other_index and mask & other_mask & (value ^ other_value)
            for index, mask, value in self.args
            for other_index, other_mask, other_value in other.args
        )


def compile_profile(path: Path, *, arch: str = os.uname().machine, capabilities: frozenset[str] = frozenset()) -> bytes:
    """Return the program (an array of struct sock_filter) that enforces a profile on `arch` (as in uname -m).

    Rules with `includes` or `excludes` count for a workload that holds `capabilities`, on the running kernel.
    Results are kept by content, so that asking again costs no more than reading the file.
    Raises PolicyError with file and line when the profile is wrong, HostError when libseccomp is missing or too old.
    """
    return _compile(path, read_content(path, PolicyError), arch, capabilities)


@functools.lru_cache(maxsize=64)
def _compile(path: Path, content: bytes, arch: str, capabilities: frozenset[str]) -> bytes:
    document = decode_document(path, content, PolicyError)
    if arch not in _ARCHITECTURES:
        raise HostError(f"cannot make seccomp filters for {arch}, only for {' and '.join(_ARCHITECTURES)}")
    profile = document.convert(_Profile)
    _check_architecture(profile, arch, document)
    default = _action(profile.default_action, profile.default_errno_ret, document, ("defaultErrnoRet",))
    calls = list(_calls(profile, arch, capabilities, document))
    _refuse_ambiguity(calls, document)
    program = _assemble(default, [call for call in calls if call.action != default], arch, document)
    if len(program) > _MAX_PROGRAM_BYTES:
        raise document.error(("syscalls",), f"the filter has {len(program) // 8} instructions, 4096 are possible")
    return program


def _check_architecture(profile: _Profile, arch: str, document: Document) -> None:
    if profile.architectures and profile.arch_map:
        raise document.error(("archMap",), "both architectures and archMap are given; keep one")
    listed = [*(profile.architectures or ()), *(entry.architecture for entry in profile.arch_map or ())]
    if listed and "SCMP_ARCH_" + _ARCHITECTURES[arch][0] not in listed:
        key = "architectures" if profile.architectures else "archMap"
        raise document.error((key,), f"the profile is not meant for {arch}")


def _calls(profile: _Profile, arch: str, capabilities: frozenset[str], document: Document) -> Iterator[_Call]:
    """Yield what the rules that count say of each system call that `arch` has. All rules are checked."""
    for index, rule in enumerate(profile.syscalls or ()):
        key = ("syscalls", index)
        action = _action(rule.action, rule.errno_ret, document, (*key, "errnoRet"))
        cases = _cases(rule.args or (), document, (*key, "args"))
        included = list(_facts(rule.includes, arch, capabilities, document, (*key, "includes")))
        excluded = list(_facts(rule.excludes, arch, capabilities, document, (*key, "excludes")))
        for at, name in enumerate(rule.names):
            number = _number(name, arch, document, (*key, "names", at))
            if number is not None and all(included) and not any(excluded):
                yield from (_Call(name, number, action, case, (*key, "names", at)) for case in cases)


def _facts(
    condition: _Condition | None, arch: str, capabilities: frozenset[str], document: Document, key: Key
) -> Iterator[bool]:
    """Yield the truth of each fact that a condition names."""
    if condition is None:
        return
    if condition.arches:
        yield _ARCHITECTURES[arch][1] in condition.arches
    for capability in condition.caps or ():
        yield capability in capabilities
    if condition.min_kernel:
        wanted = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", condition.min_kernel)
        running = re.match(r"([0-9]+)\.([0-9]+)", os.uname().release)
        if wanted is None or running is None:
            raise document.error((*key, "minKernel"), f"not a version such as 4.8: {condition.min_kernel!r}")
        yield tuple(map(int, running.groups())) >= tuple(map(int, wanted.groups()))


def _action(name: _Action, errno_ret: int | None, document: Document, key: Key) -> int:
    """Return an action as the kernel writes it. ERRNO gives EPERM unless the profile says otherwise."""
    if errno_ret is not None and (name != "SCMP_ACT_ERRNO" or not 0 <= errno_ret <= 4095):
        raise document.error(key, f"error number {errno_ret} for {name}: only SCMP_ACT_ERRNO has one, 0 to 4095")
    if name == "SCMP_ACT_ERRNO":
        return int(_libseccomp().ERRNO(errno.EPERM if errno_ret is None else errno_ret))
    return int(getattr(_libseccomp(), name.removeprefix("SCMP_ACT_")))


def _cases(args: tuple[_Argument, ...], document: Document, key: Key) -> list[tuple[tuple[int, int, int], ...]]:
    """Return the cases of a rule: all its arguments must be as one of them says."""
    each: list[list[tuple[int, int, int]]] = []
    for at, arg in enumerate(args):
        if not 0 <= arg.index <= 5:
            raise document.error((*key, at, "index"), f"a system call has arguments 0 to 5, not {arg.index}")
        if any(arg.index == earlier.index for earlier in args[:at]):
            raise document.error((*key, at, "index"), f"one rule cannot compare argument {arg.index} twice; write two")
        if arg.value_two and arg.op != "SCMP_CMP_MASKED_EQ":
            raise document.error((*key, at, "valueTwo"), f"{arg.op} takes no valueTwo")
        each.append([(arg.index, mask, value) for mask, value in arg.cases() if not value & ~mask])
        if arg.value < 0 or not each[-1]:
            raise document.error((*key, at, "value"), "no argument, a number from 0 to 2^64-1, can match this")
    if math.prod(map(len, each)) > _MAX_CASES:
        raise document.error(key, f"comes to more than {_MAX_CASES} cases; compare with EQ or MASKED_EQ")
    return list(itertools.product(*each))


def _number(name: str, arch: str, document: Document, key: Key) -> int | None:
    """Return the number of a system call on `arch`, or None for one that only other architectures have."""
    number = _resolve(name, arch)
    if number != -1:  # below -1: libseccomp's stand-in for a call of another architecture
        return number if number >= 0 else None
    if name in _UNIFIED_CALLS:
        return _UNIFIED_CALLS[name]
    if name not in _LONE_CALLS:
        raise document.error(key, f"unknown system call {name!r}")
    lone_arch, number = _LONE_CALLS[name]
    return number if arch == lone_arch else None


def _resolve(name: str, arch: str) -> int:
    # A C function gets the name: NUL would end it early.
    if not re.fullmatch(r"[a-z0-9_]+", name):
        return -1
    library = _libseccomp()
    return int(library.resolve_syscall(getattr(library.Arch, _ARCHITECTURES[arch][0]), name))


def _refuse_ambiguity(calls: list[_Call], document: Document) -> None:
    """Raise PolicyError where two rules want different things of one call: libseccomp would drop one in silence."""
    by_number: dict[int, list[_Call]] = {}
    for call in calls:
        others = by_number.setdefault(call.number, [])
        if any(call.action != other.action and call.overlaps(other) for other in others):
            message = f"{call.name} has two actions for the same arguments, of which only one would count"
            raise document.error(call.key, f"{message}; put the denial into a profile that allows all else")
        others.append(call)


def _assemble(default: int, calls: list[_Call], arch: str, document: Document) -> bytes:
    library = _libseccomp()
    program = library.SyscallFilter(default)
    token, own_token = getattr(library.Arch, _ARCHITECTURES[arch][0]), library.system_arch()
    try:
        if token != own_token:
            program.add_arch(token)
            program.remove_arch(own_token)
        program.set_attr(library.Attr.ACT_BADARCH, library.KILL_PROCESS)
        # A binary tree: the kernel runs a new filter once for each number, 600 us with a list of 330 (x86_64, 6.18).
        program.set_attr(library.Attr.CTL_OPTIMIZE, 2)
    except OSError as error:
        raise HostError(f"libseccomp 2.5 or newer is needed to make filters: {error.strerror}") from error
    whole = {call.number for call in calls if not call.args}
    for call in calls:
        if call.args and call.number in whole:
            continue  # says no more than the rule without arguments, whose action is the same
        number = call.number if token == own_token else _resolve(call.name, os.uname().machine)
        args = [library.Arg(index, library.MASKED_EQ, mask, value) for index, mask, value in call.args]
        try:
            if number != -1:
                program.add_rule(call.action, number, *args)
            elif call.action != library.ALLOW:  # to allow less is safe
                raise document.error(call.key, f"libseccomp does not know {call.name}, so not on {arch} either")
        except OSError as error:
            raise document.error(call.key, f"libseccomp refuses {call.name}: {error.strerror}") from error
    with open(os.memfd_create("seccomp"), "w+b", buffering=0) as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()


def _libseccomp() -> ModuleType:
    try:
        import pyseccomp
    except RuntimeError as error:
        raise HostError("libseccomp is missing; on Debian or Ubuntu: apt-get install libseccomp2") from error
    return pyseccomp
