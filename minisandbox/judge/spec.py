"""The judge's vocabulary: outcomes, integrity levels, artifacts, plans of cells and what cells record.

Values only, checked at construction and trusted afterwards; how they are encoded is fixed, since digests are taken of
it. This module does no I/O.
"""

from __future__ import annotations

import enum
import hashlib
import math
from typing import Any, TypeVar

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.evidence import Evidence
from minisandbox.spec import Limits

T = TypeVar("T")


class Outcome(enum.Enum):
    """What came of a test, and of all of them. Their order is their priority: the first that holds is told."""

    IE = "IE"
    """We failed: no score at all."""
    REJ = "REJ"
    """The artifacts cannot be judged."""
    TAMPER = "TAMPER"
    """It is proved that the pass was forged."""
    CE = "CE"
    """It does not compile."""
    TLE = "TLE"
    """More CPU time than its budget."""
    ILE = "ILE"
    """It waited, without using its budget, until the guard against that ended it."""
    MLE = "MLE"
    """More memory than its budget."""
    OLE = "OLE"
    """More output than its budget, on a stream or on its disk."""
    RTE = "RTE"
    """It failed: an exit code, a signal, no answer or none that is one."""
    WA = "WA"
    """Its answer is wrong."""
    PARTIAL = "PARTIAL"
    """Some tests passed, where each counts for itself."""
    AC = "AC"
    """Accepted."""

    @property
    def priority(self) -> int:
        """0 for what counts most."""
        return _PRIORITY[self]


_PRIORITY = {outcome: at for at, outcome in enumerate(Outcome)}


class Integrity(enum.Enum):
    """How far a verdict can be trusted, from a self-reported one up."""

    L0 = "L0"
    """Self-reported: from where the submission could write."""
    L1 = "L1"
    """Fresh sandbox, trusted tests, the result from text or an exit code, in the submission's own process."""
    L2 = "L2"
    """L1, and a hardened launch, whole test roots replaced, exact ids, records out of band."""
    L3 = "L3"
    """L2, and mirrors, canaries and ablations are clean, and the task is certified."""
    L4 = "L4"
    """The submission in a sandbox where expected values never are; only data crosses."""
    L5 = "L5"
    """L4, and fresh keyed inputs with a trusted reference, and tests certified by mutation."""

    @property
    def level(self) -> int:
        """The number in the name."""
        return int(self.value[1])


MOST_WALL_PER_CPU = 50.0
"""How much longer than its CPU time a program may take that is hardly ever let run, and yet does not wait."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a submission may use for one test. CPU time decides; no clock does, so that a busy host is no reason."""

    cpu_time_s: float = 10.0
    idle_s: float = 10.0
    """How long it may wait: it is ended when it used less than a hundredth of a processor for so long."""
    memory_bytes: int = 512 << 20
    processes: int = 64
    disk_bytes: int = 128 << 20
    output_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not 0.0 < self.idle_s < math.inf or self.output_bytes < 1:
            raise UsageError("idle_s is a time in seconds, greater than 0, and output_bytes 1 or more")
        self.limits()

    def limits(self) -> Limits:
        """Return the limits of a sandbox for this. Raises UsageError for what is none."""
        return Limits(
            wall_time_s=self.idle_s + MOST_WALL_PER_CPU * self.cpu_time_s,
            cpu_time_s=self.cpu_time_s,
            memory_bytes=self.memory_bytes,
            processes=self.processes,
            disk_bytes=self.disk_bytes,
            stdout_bytes=self.output_bytes,
            stderr_bytes=self.output_bytes,
            output_kept_bytes=2 * self.output_bytes,
        )


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was taken in. Its content is a blob of the store."""

    path: str
    """Relative to the submission, of plain names."""
    sha256: str
    size: int
    executable: bool = False
    link: str = ""
    """Of a symbolic link its text, which leads nowhere out of the submission; it has no content."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken in of a submission: files and nothing else, by path. Its digest names the submission."""

    files: tuple[Artifact, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rejected: bool = False
    """Whether it cannot be judged; the evidence says why."""

    def __post_init__(self) -> None:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise UsageError("the files of a manifest must be in order, and each there once")

    @property
    def digest(self) -> str:
        """The digest of the files."""
        return digest_of([(file.path, file.sha256, file.executable, file.link) for file in self.files])


class Role(enum.Enum):
    """What a cell is run for."""

    BUILD = "build"
    """Makes of the submission what is run. When it fails, nothing is run."""
    MAIN = "main"
    """Its tests are the ones that count."""
    MIRROR = "mirror"
    """Its tests are changed so that no honest submission passes any."""
    CANARY = "canary"
    """Its tests fail whatever the submission is."""
    ABLATION = "ablation"
    """The tests again, without files that only tests would need. A pass should not depend on them."""
    INFRA_ONLY = "infra-only"
    """The tests again with nothing but such files: a pass is forged."""


AFTER_PASS = frozenset({Role.MIRROR, Role.CANARY, Role.ABLATION, Role.INFRA_ONLY})
"""Cells that are run, and must be, where all tests passed; else there is nothing to doubt."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One run in sandboxes of its own."""

    name: str
    role: Role = Role.MAIN
    tests: tuple[str, ...] = ()
    """The ids that it must report, each once."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of a judgement. The tests of its main cells are what is expected of a submission."""

    cells: tuple[Cell, ...]

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        tests = self.expected
        if len(set(names)) != len(names):
            raise UsageError("two cells of a plan have one name")
        if not tests or len(set(tests)) != len(tests) or not all(tests):
            raise UsageError("a plan needs tests, each with an id of its own")

    @property
    def expected(self) -> tuple[str, ...]:
        """The ids of all tests that count."""
        return tuple(test for cell in self.cells if cell.role is Role.MAIN for test in cell.tests)


class TestRecord(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What came of one test."""

    __test__ = False

    id: str
    outcome: Outcome
    worth: float | None = None
    """How much of it is right, above 0 and below 1, where the outcome is PARTIAL."""


class CellUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in a cell. Never part of a decision."""

    name: str
    cpu_time_s: float | None = None
    wall_time_s: float = 0.0
    memory_peak_bytes: int | None = None
    marginal: bool = False
    """Whether more than half of the CPU time or memory of its budget was used."""
    notes: tuple[str, ...] = ()
    """For a person: what a checker or a compiler said, shortened and escaped."""


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a cell: tests and evidence, or that we failed."""

    cell: str
    tests: tuple[TestRecord, ...] = ()
    ended: bool = True
    """Whether whoever ran the tests said that these are all."""
    failure: str | None = None
    """Why there is no result, which is our fault."""
    evidence: tuple[Evidence, ...] = ()
    usage: CellUsage | None = None


def canonical(value: Any) -> bytes:
    """Return the one encoding of a value that digests and signatures are taken of."""
    return msgspec.json.encode(value, order="sorted")


def digest_of(value: Any) -> str:
    """Return the digest of the canonical encoding, as "sha256:" and hexadecimal digits."""
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"
