"""What the tests of seccomp share: profiles, a machine that runs filters as the kernel does, a process that loads them.

The machine knows the instructions that libseccomp emits (linux/Documentation/networking/filter.rst).
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyseccomp

TOKENS = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
PROBE = Path(__file__).with_name("seccomp_probe.py")

_JUMPS = {0x15: int.__eq__, 0x25: int.__gt__, 0x35: int.__ge__, 0x45: int.__and__}
_LOAD, _AND, _JUMP, _RETURN = 0x20, 0x54, 0x05, 0x06


def write(path: Path, *rules: dict[str, Any], **members: Any) -> Path:
    """Write a profile that refuses everything but what the rules say."""
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules, **members}, indent=1))
    return path


def allow(*names: str, **members: Any) -> dict[str, Any]:
    """Return a rule that allows calls."""
    return {"names": names, "action": "SCMP_ACT_ALLOW", **members}


def deny(*names: str, **members: Any) -> dict[str, Any]:
    """Return a rule that refuses calls."""
    return {"names": names, "action": "SCMP_ACT_ERRNO", **members}


def compare(index: int, op: str, value: int, two: int = 0) -> dict[str, Any]:
    """Return a comparison."""
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": two}


DOCKER: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 1,
    "archMap": [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        {"architecture": "SCMP_ARCH_RISCV64", "subArchitectures": None},
    ],
    "syscalls": [
        allow("read", "fadvise64_64", "riscv_hwprobe", "uretprobe", "mseal", "_llseek"),
        allow("ptrace", includes={"minKernel": "4.8"}),
        allow("process_vm_readv", excludes={"minKernel": "4.8"}),
        allow("socket", args=[{"index": 0, "value": 12, "op": "SCMP_CMP_LT"}]),
        allow("socket", args=[{"index": 0, "value": 13, "op": "SCMP_CMP_EQ"}]),
        allow("personality", args=[{"index": 0, "value": 4294967295, "op": "SCMP_CMP_EQ"}]),
        allow("sync_file_range2", "cacheflush", includes={"arches": ["arm", "arm64"]}),
        allow("arch_prctl", includes={"arches": ["amd64", "x32"]}),
        allow("bpf", "clone", "clone3", includes={"caps": ["CAP_SYS_ADMIN"]}),
        allow(
            "clone",
            args=[{"index": 0, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}],
            excludes={"caps": ["CAP_SYS_ADMIN"], "arches": ["s390", "s390x"]},
        ),
        allow(
            "clone",
            args=[{"index": 1, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}],
            comment="s390 parameter ordering for clone is different",
            includes={"arches": ["s390", "s390x"]},
            excludes={"caps": ["CAP_SYS_ADMIN"]},
        ),
        deny("clone3", errnoRet=38, excludes={"caps": ["CAP_SYS_ADMIN"]}),
    ],
}
"""A file with all the shapes that Docker's own default.json has."""


def errno_action(number: int) -> int:
    """Return what a filter returns for an error number."""
    return 0x00050000 | number


def call_number(name: str, arch: str = "x86_64") -> int:
    """Return the number of a system call that libseccomp knows."""
    number = int(pyseccomp.resolve_syscall(TOKENS[arch], name))
    assert number >= 0, f"{name} is not on {arch}"
    return number


def run_filter(program: bytes, number: int, args: Sequence[int] = (), token: int = TOKENS["x86_64"]) -> tuple[int, int]:
    """Return the action of a program for a call, and how many instructions it took."""
    six = [*args, *[0] * (6 - len(args))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, token, 0, *six)
    instructions = [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]
    at = accumulator = steps = 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at, steps = at + 1, steps + 1
        if code == _RETURN:
            return operand, steps
        if code == _LOAD:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == _AND:
            accumulator &= operand
        elif code == _JUMP:
            at += operand
        else:
            at += if_true if _JUMPS[code](accumulator, operand) else if_false


def run_filters(programs: Iterable[bytes], number: int, args: Sequence[int] = (), arch: str = "x86_64") -> int:
    """Return what counts when all programs are loaded in turn: the strictest action, the last loaded of equal ones."""
    results = [run_filter(program, number, args, TOKENS[arch])[0] for program in programs]
    return min(reversed(results), key=lambda result: struct.unpack("<i", struct.pack("<I", result & 0xFFFF0000)))


def probe(programs: Iterable[bytes], steps: list[list[Any]]) -> list[int]:
    """Load programs in a new process, make it take steps (see seccomp_probe.py), and return the error number of each.

    A step that kills the process counts as minus the signal, and is the last.
    """
    request = json.dumps({"programs": [program.hex() for program in programs], "steps": steps})
    done = subprocess.run([sys.executable, PROBE], input=request, capture_output=True, text=True)
    assert done.returncode <= 0, done.stderr
    results = [int(line) for line in done.stdout.split()]
    return [*results, done.returncode] if done.returncode else results
