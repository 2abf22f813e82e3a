"""What was found of a task, and the certificate: bound to the task, the root file system and the judge. Values only."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from minisandbox.judge.build import judge_version
from minisandbox.judge.spec import Integrity, digest_of

FILE_NAME = "certificate.json"
SCHEMA = "msb.certificate/1"


class Status(enum.Enum):
    """What came of a check."""

    PASSED = "passed"
    WARNED = "warned"
    """A person should look at it; it does not stand in the way of a certificate."""
    FAILED = "failed"
    """The task would teach something wrong."""
    SKIPPED = "skipped"
    """It does not apply; the evidence says why."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A check, and what was seen."""

    id: str
    rule: str
    status: Status
    evidence: tuple[str, ...] = ()


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """All findings about one task, as it was in one environment and with one judge."""

    task: str
    rootfs: str
    judge: str
    certified: bool
    runs: int
    """How often the solution was judged."""
    findings: tuple[Finding, ...]
    integrity: Integrity
    """What a verdict reaches."""
    schema: str = SCHEMA

    @property
    def digest(self) -> str:
        """The digest that verdicts name."""
        return digest_of(self)

    def objection(self, task: str, rootfs: str) -> str | None:
        """Return why it is not one for a task in a root file system, by their digests; None when it is."""
        if not self.certified:
            return "the task failed its check"
        if self.task != task:
            return "the task was changed after its check"
        if self.rootfs != rootfs:
            return "the root file system is another than at the check"
        if self.judge != judge_version():
            return "the judge is another than at the check"
        return None


def certificate_of(
    *, task: str, rootfs: str, runs: int, integrity: Integrity, findings: Sequence[Finding]
) -> Certificate:
    """Return the certificate for findings, which says whether there is one that failed."""
    passed = bool(findings) and all(finding.status is not Status.FAILED for finding in findings)
    return Certificate(
        task=task,
        rootfs=rootfs,
        judge=judge_version(),
        certified=passed,
        runs=runs,
        integrity=integrity,
        findings=tuple(findings),
    )
