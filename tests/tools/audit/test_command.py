"""`ostinato audit`: pointers and numbers of every entry as a table and as JSON, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.runtime.audit import AuditFinding, AuditReport
from ostinato.tools.audit.report import AddressAuditReport
from tests.tools.conftest import Run

SHAPES = ("--shapes", "B=1,T=4")


def test_every_entry_is_in_the_report(ostinato: Run, tiny: Path) -> None:
    result = ostinato("audit", str(tiny), "--shapes", "B=1,T=4,8", "--json")
    assert result.code == 0, result.err
    report = result.report()
    assert isinstance(report, AddressAuditReport)
    assert report.ok
    assert [entry.entry for entry in report.entries] == ["prefill[N=4,R=1]", "prefill[N=8,R=1]"]
    for entry in report.entries:
        assert {pointer.region.partition("/")[2] for pointer in entry.pointers} >= {"arena", "io", "weights", "state"}
        assert entry.scalars
        assert {slot.name for slot in entry.slots} >= {"input_ids", "position"}


def test_the_table_is_cut_unless_all_is_asked_for(ostinato: Run, tiny: Path) -> None:
    short = ostinato("audit", str(tiny), *SHAPES)
    assert short.code == 0
    assert "more (--all, or --json)" in short.out
    assert "everything holds" in short.out
    full = ostinato("audit", str(tiny), *SHAPES, "--all")
    assert "more (--all" not in full.out
    assert len(full.out.splitlines()) > len(short.out.splitlines())


def test_modes_without_addresses_are_a_usage_error(ostinato: Run, tiny: Path) -> None:
    result = ostinato("audit", str(tiny), *SHAPES, "--mode", "eager")
    assert result.code == 2
    assert "no planned addresses" in result.err
    assert ostinato("audit", str(tiny), *SHAPES, "--mode", "captured", "--device", "cpu").code in (0, 2)


def test_a_finding_is_a_failed_check(ostinato: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = AuditFinding(
        "frozen scalar", "y", "0.5 was planned and the row gives 0.25 now", "read it from device memory"
    )

    def audited(self: object, entry: str | None = None) -> AuditReport:
        return AuditReport(entry or "", "host:0", 0, (), (), (), (finding,))

    monkeypatch.setattr("ostinato.runtime.executable.Executable.audit", audited)
    result = ostinato("audit", str(tiny), *SHAPES)
    assert result.code == 1
    assert "frozen scalar: y: 0.5 was planned" in result.out
    assert "1 finding" in result.out
