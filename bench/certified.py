"""Which tasks of the packaged sets are certified, from what `minisandbox task check SET --json` printed.

Nothing is left out: what is not certified is named with the checks that failed, what is unfit with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.samples import Machine, look_at_machine
from minisandbox.tasks.certificate import Certificate, Status

EXAMPLES = """examples:
  minisandbox task check humaneval --json >humaneval.json
  bench/certified.py humaneval.json exercises.json --json docs/certified.json"""


class Named(msgspec.Struct, frozen=True):
    """A certificate with the name of its task, as it is printed."""

    name: str
    certificate: Certificate


class Unfit(msgspec.Struct, frozen=True):
    """What of a set is no task."""

    name: str
    why: str


class Printed(msgspec.Struct, frozen=True):
    """What the command prints."""

    tasks: tuple[Named, ...]
    unfit: tuple[Unfit, ...] = ()


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one set."""

    tasks: int
    runs: int
    refused: dict[str, dict[str, tuple[str, ...]]]
    """By name, what failed: the evidence by the id of its check."""
    unfit: dict[str, str]

    @property
    def certified(self) -> int:
        """How many are."""
        return self.tasks - len(self.refused)

    def failed(self) -> Counter[str]:
        """Return how many tasks failed which checks together."""
        return Counter(", ".join(failed) for failed in self.refused.values())

    def named(self, failed: str) -> list[str]:
        """Return the tasks that failed exactly these checks."""
        return [name for name, evidence in self.refused.items() if ", ".join(evidence) == failed]


class CertifiedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all sets."""

    machine: Machine
    sets: dict[str, Checked]


def checked(printed: Printed) -> Checked:
    """Return what came of a set, by what was printed of it."""
    refused = {
        each.name: {
            finding.id: finding.evidence for finding in each.certificate.findings if finding.status is Status.FAILED
        }
        for each in printed.tasks
        if not each.certificate.certified
    }
    return Checked(
        tasks=len(printed.tasks),
        runs=min((each.certificate.runs for each in printed.tasks), default=0),
        refused=refused,
        unfit={each.name: each.why for each in printed.unfit},
    )


def main(arguments: Sequence[str]) -> int:
    """Read what was printed, print what came of it, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what was printed of a set, its name first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of it")
    options = parser.parse_args(arguments)
    report = CertifiedReport(
        machine=look_at_machine(),
        sets={path.stem: checked(msgspec.json.decode(path.read_bytes(), type=Printed)) for path in options.files},
    )
    for name, of_set in report.sets.items():
        print(f"{name}: {of_set.certified} of {of_set.tasks} are certified, {len(of_set.unfit)} unfit")
        for failed, count in of_set.failed().most_common():
            print(f"  {count} failed {failed}: {', '.join(of_set.named(failed))}")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
