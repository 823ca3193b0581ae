"""`ostinato evidence validate`: which rows it takes, what it records and reports, and that a row which fails ends it with exit code 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.target import host_rows_target
from ostinato.tools.evidence import command
from ostinato.tools.evidence.report import EvidenceValidateReport
from ostinato.tools.schemas import ErrorReport
from tests.tools.conftest import Run


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "evidence"))
    return Ledger()


def arguments(*more: str) -> list[str]:
    return ["evidence", "validate", "--device", "cpu", *more]


def test_rows_of_operators_are_validated_and_recorded(ostinato: Run, ledger: Ledger) -> None:
    result = ostinato(*arguments("--ops", "scale", "--ops", "argmax", "--isa", "portable", "--json"))
    assert (result.code, result.err) == (0, "")
    report = result.report()
    assert isinstance(report, EvidenceValidateReport)
    assert (report.ok, report.architecture.partition("/")[2]) == (True, "portable")
    assert {row.operator for row in report.rows} == {"scale", "argmax"}
    records = [record for record in ledger.records() if isinstance(record, ValidationRecord)]
    assert {record.id for record in records} == {row.id for row in report.rows}
    assert all(row.passed and row.calls for row in report.rows)
    assert report.file == str(ledger.path)


def test_all_is_more_and_rows_are_fewer(ostinato: Run, ledger: Ledger) -> None:
    def classes(*more: str) -> set[tuple[str, str]]:
        report = ostinato(*arguments("--ops", "argmax", "--json", *more)).report()
        assert isinstance(report, EvidenceValidateReport)
        return {(row.row, row.signature) for row in report.rows}

    plain, every = classes(), classes("--all")
    assert {signature for _, signature in plain} < {signature for _, signature in every}
    one = classes("--all", "--rows", "argmax@host")
    assert one == {(row, signature) for row, signature in every if row == "host"}
    assert len(ledger.records()) == len(every)


def test_people_see_a_table_and_where_it_is_kept(ostinato: Run, ledger: Ledger) -> None:
    result = ostinato(*arguments("--ops", "scale"))
    assert result.code == 0
    assert "scale@host" in result.out
    assert str(ledger.path) in result.out


def test_a_row_that_fails_ends_with_1_and_says_how(
    ostinato: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in host_rows_target().rows if row.identity == "scale@host")
    wrong = replace(row, params=lambda site: (*row.params(site)[:2], 0.5, *row.params(site)[3:]))
    monkeypatch.setattr(command, "rows_asked_for", lambda *_: (wrong,))
    result = ostinato(*arguments())
    assert result.code == 1
    assert "failed: scale@host on" in result.out
    assert "values of y off" in result.out
    assert all(not record.passed for record in ledger.records())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--ops", "scael"), "there are no operators ['scael']"),
        (("--rows", "nobody"), "has no rows ['nobody']"),
        (("--isa", "mmx"), "mmx"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(ostinato: Run, ledger: Ledger, more: tuple[str, ...], says: str) -> None:
    result = ostinato(*arguments(*more, "--json"))
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, says in report.message) == (2, True)
    assert not ledger.path.exists()


def test_a_damaged_ledger_is_told_before_the_work(
    ostinato: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.path.parent.mkdir()
    ledger.path.write_text("{")
    monkeypatch.setattr("ostinato.tools.evidence.validating.survey", lambda *_: pytest.fail("it was run"))
    result = ostinato(*arguments("--ops", "scale"))
    assert result.code == 2
    assert "evidence.jsonl:1" in result.err
    assert ledger.path.read_text() == "{"
