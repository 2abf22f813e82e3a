"""The page says of every packaged task whether it is certified, as the checks of it were."""

from __future__ import annotations

from bench.certified import CertifiedReport, Named, Printed, Unfit, checked
from minisandbox.judge.spec import Integrity
from minisandbox.tasks.certificate import Finding, Status, certificate_of
from tests.benchmarks import measured, table, to_paste


def test_what_is_refused_is_told_with_every_check_that_failed() -> None:
    """What is certified is not, whatever it was warned of."""
    failed = [
        Finding(id=id_, rule="", status=status, evidence=(id_.lower(),))
        for id_, status in (("T01", Status.FAILED), ("T02", Status.PASSED), ("T11", Status.FAILED))
    ]
    warned = [Finding(id="T19", rule="", status=Status.WARNED, evidence=("one test",))]
    tasks = tuple(
        Named(name, certificate_of(task="t", rootfs="r", runs=10, integrity=Integrity.L4, findings=findings))
        for name, findings in (("bad", failed), ("good", warned))
    )
    found = checked(Printed(tasks, (Unfit("odd", "no test"),)))

    assert (2, 1, 10) == (found.tasks, found.certified, found.runs)
    assert {"bad": {"T01": ("t01",), "T11": ("t11",)}} == found.refused
    assert ["bad"] == found.named("T01, T11")
    assert {"odd": "no test"} == found.unfit


def page_of(report: CertifiedReport) -> str:
    """Return what docs/benchmarks.md says of the checks."""
    rows = [
        [name, str(each.tasks + len(each.unfit)), str(len(each.unfit)), str(each.tasks), str(each.certified)]
        for name, each in report.sets.items()
    ]
    parts = [
        f"{report.machine}; {report.machine.measured_at}.",
        table(["", "read", "unfit", "checked", "certified"], rows),
    ]
    for name, each in report.sets.items():
        for failed, count in each.failed().most_common():
            parts.append(f"- `{name}`, {count} failed {failed}: {', '.join(each.named(failed))}.")
    return "\n\n".join(parts)


def test_tables_of_the_page_are_what_was_checked() -> None:
    """The figures and names of the page are those of the certificates."""
    report, block = measured("certified", CertifiedReport)
    expected = page_of(report)

    assert expected == block, to_paste(expected)
