"""`ostinato evidence`: what is listed, shown, taken out and handed on, and what becomes of a ledger that is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.backend_hip.evidence.gates import BASELINE, PAIRS
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger, read_file
from ostinato.backend_hip.evidence.records import Record, RunFigures, TimingRecord, ValidationRecord
from ostinato.backend_hip.impls import ROWS
from ostinato.saving.facts import environment_of
from ostinato.stages import open_device
from ostinato.tools.evidence.report import (
    EvidenceExportReport,
    EvidenceListReport,
    EvidencePruneReport,
    EvidenceShowReport,
)
from ostinato.tools.evidence.texts import names_a_path, without_paths
from ostinato.tools.schemas import ErrorReport
from tests.tools.conftest import Run

HERE = environment_of(open_device("cpu"))
POLICY = "fuse_example=off"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "evidence"))
    return Ledger()


def timing(subject: str = "one", **changes: Any) -> TimingRecord:
    fields: dict[str, Any] = {
        "environment": HERE,
        "scope": "model",
        "subject": subject,
        "label": subject,
        "workload": "d1 f32",
        "candidate": RunFigures(name=POLICY, seconds=(1.0,) * PAIRS),
        "baseline": RunFigures(name=BASELINE, seconds=(1.05,) * PAIRS),
        "ratio": 1.05,
        "outputs": "equal",
        "passed": True,
    }
    return TimingRecord.made(**{**fields, **changes})


def validation(**changes: Any) -> ValidationRecord:
    fields: dict[str, Any] = {
        "environment": HERE,
        "operator": "add",
        "row": ROWS[0].name,
        "level": "tuned",
        "signature": "f32,f32->f32",
        "sources": {},
        "calls": 3,
        "seed": 1,
        "maximum_error": 1e-7,
        "bound": 4e-7,
        "passed": True,
    }
    return ValidationRecord.made(**{**fields, **changes})


GOOD = timing()
STALE = timing("two", environment=HERE.model_copy(update={"kernel_hash": "older"}))
REJECTED = timing(
    "three", candidate=RunFigures(name=POLICY), ratio=None, outputs="outside tolerance", passed=False, reason="off"
)
FAILED = validation(passed=False, reason="off")
ELSEWHERE = timing("four", environment=HERE.model_copy(update={"architecture": "sm_90", "device": "A card"}))
ALL = (GOOD, STALE, REJECTED, FAILED, ELSEWHERE)


def test_records_are_listed_with_where_they_stand(ostinato: Run, ledger: Ledger) -> None:
    ledger.add(ALL)
    result = ostinato("evidence", "ls", "--json")
    report = result.report()
    assert isinstance(report, EvidenceListReport)
    assert result.code == 0
    states = {line.id: line.state for line in report.records if line.origin == "yours"}
    assert states == {
        GOOD.id: "current",
        STALE.id: "stale",
        REJECTED.id: "rejected",
        FAILED.id: "failed",
        ELSEWHERE.id: "elsewhere",
    }
    assert report.total == report.current + report.failed + report.rejected + report.stale + report.elsewhere >= 5
    text = ostinato("evidence", "ls").out
    assert "kernel_hash older, here" in text
    assert "1.050x" in text
    found = ostinato("evidence", "ls", "three", "--json").report()
    assert isinstance(found, EvidenceListReport)
    assert [line.id for line in found.records] == [REJECTED.id]


def test_records_of_one_kind(ostinato: Run, ledger: Ledger) -> None:
    ledger.add(ALL)
    report = ostinato("evidence", "ls", "--kind", "timing", "--json").report()
    assert isinstance(report, EvidenceListReport)
    assert {line.id for line in report.records} == {record.id for record in ALL if record.kind == "timing"}
    assert ostinato("evidence", "ls", "--kind", "rumour").code == 2


def test_an_empty_ledger_is_no_error(ostinato: Run, ledger: Ledger) -> None:
    assert ostinato("evidence", "ls").code == 0
    assert "nothing to take out" in ostinato("evidence", "prune").out
    assert not ledger.path.exists()


def test_a_validation_is_judged_by_its_sources(ostinato: Run, ledger: Ledger) -> None:
    records = (
        validation(),
        validation(signature="a", sources={"row": "another"}),
        validation(signature="b", row="none"),
    )
    ledger.add(records)
    report = ostinato("evidence", "ls", "--json").report()
    assert isinstance(report, EvidenceListReport)
    lines = {line.id: line for line in report.records}
    assert [lines[record.id].state for record in records] == ["current", "stale", "stale"]
    assert lines[records[0].id].figure == pytest.approx(0.25)
    assert "0.25 of bound" in ostinato("evidence", "ls", records[0].id).out


def test_a_record_is_shown_whole_with_its_gate(ostinato: Run, ledger: Ledger) -> None:
    ledger.add((GOOD, STALE))
    report = ostinato("evidence", "show", GOOD.id[:6], "--json").report()
    assert isinstance(report, EvidenceShowReport)
    assert report.record == GOOD
    assert report.gate is not None
    assert not report.gate.passed
    assert report.gate.evidence == (GOOD.id,)
    assert [name for name, _ in report.gate.unused] == [STALE.id]
    text = ostinato("evidence", "show", GOOD.id).out
    assert "1 of 2 models" in text
    assert f"{STALE.id} does not count: stale" in text
    ledger.add((timing("two"),))
    assert f"gate of {POLICY}: passed" in ostinato("evidence", "show", GOOD.id).out


@pytest.mark.parametrize("name", ["no-such-record", "", "a"])
def test_a_record_that_is_not_there(ostinato: Run, ledger: Ledger, name: str) -> None:
    ledger.add((GOOD,))
    result = ostinato("evidence", "show", name, "--json")
    assert result.code == 2
    assert isinstance(result.report(), ErrorReport)


def test_prune_says_before_it_does(ostinato: Run, ledger: Ledger) -> None:
    ledger.add(ALL)
    before = ledger.path.read_bytes()
    with ledger.path.open("ab") as file:
        file.write(b'{"kind":"timing"}\ntorn')
    damaged = ledger.path.read_bytes()
    dry = ostinato("evidence", "prune", "--json").report()
    assert isinstance(dry, EvidencePruneReport)
    assert (dry.dry, dry.kept) == (True, 3)
    assert {line.id for line in dry.removed} == {STALE.id, FAILED.id}
    assert [number for number, _ in dry.damaged] == [6, 7]
    assert ledger.path.read_bytes() == damaged, "a dry run changes nothing"
    text = ostinato("evidence", "prune", "--yes").out
    for told in (STALE.id, FAILED.id, "line 6 is no record", "line 7 is no record", "4 taken out, 3 records left"):
        assert told in text
    assert {record.id for record in ledger.records()} == {GOOD.id, REJECTED.id, ELSEWHERE.id}
    assert set(ledger.path.read_bytes().splitlines()) < set(before.splitlines()), "what is left is as it was"


@pytest.mark.parametrize("command", [("ls",), ("show", "abcd"), ("export", "out.jsonl")])
def test_a_damaged_ledger_is_an_error_and_stays(
    ostinato: Run, ledger: Ledger, tmp_path: Path, command: tuple[str, ...]
) -> None:
    ledger.add((GOOD,))
    with ledger.path.open("ab") as file:
        file.write(b"not a record\n")
    damaged = ledger.path.read_bytes()
    arguments = [str(tmp_path / part) if part.endswith(".jsonl") else part for part in command]
    result = ostinato("evidence", *arguments)
    assert result.code == 2
    assert "evidence.jsonl:2" in result.err
    assert "prune" in result.err
    assert ledger.path.read_bytes() == damaged


def test_what_is_exported_can_be_read_elsewhere(ostinato: Run, ledger: Ledger, tmp_path: Path) -> None:
    told = timing("five", passed=False, reason="see /home/someone/secret/model.bin")
    ledger.add((*ALL, told))
    file = tmp_path / "folder" / "set.jsonl"
    report = ostinato("evidence", "export", str(file), "--json").report()
    assert isinstance(report, EvidenceExportReport)
    assert report.records == 4
    assert dict(report.left_out) == {
        STALE.id: f"stale: kernel_hash older, here {HERE.kernel_hash}",
        told.id: "its text names a place of this machine",
    }
    assert {record.id for record in read_file(file)} == {GOOD.id, REJECTED.id, FAILED.id, ELSEWHERE.id}
    assert str(tmp_path) not in file.read_text()
    Ledger().prune(lambda record: False)
    listed = ostinato("evidence", "ls", "--from", str(file), "--json").report()
    assert isinstance(listed, EvidenceListReport)
    assert {line.origin for line in listed.records} == {"file"}
    assert len(listed.records) == 4
    assert ostinato("evidence", "ls", "--from", str(tmp_path / "none")).code == 2
    only = ostinato("evidence", "export", str(file), "--only", "sm_90", "--json").report()
    assert isinstance(only, EvidenceExportReport)
    assert only.records == 0


def test_the_ledger_is_not_exported_onto_itself(ostinato: Run, ledger: Ledger, tmp_path: Path) -> None:
    """What does not hold here would be lost."""
    ledger.add(ALL)
    before = ledger.path.read_bytes()
    (tmp_path / "link").symlink_to(ledger.path)
    for place in (ledger.path, tmp_path / "link"):
        result = ostinato("evidence", "export", str(place))
        assert (result.code, "is the ledger itself" in result.err) == (2, True)
    assert ledger.path.read_bytes() == before


def test_a_set_can_be_a_ledger(ledger: Ledger, tmp_path: Path, ostinato: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.add((GOOD,))
    ostinato("evidence", "export", str(tmp_path / "other" / "evidence.jsonl"))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "other"))
    found: tuple[Record, ...] = Ledger().records()
    assert [record.id for record in found] == [GOOD.id]


def test_unusable_places_are_usage_errors(ostinato: Run, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ostinato("evidence", "export", str(tmp_path / "file" / "set.jsonl")).code == 2
    assert ostinato("evidence").code in (0, 2)
    assert ostinato("evidence", "no-such-command").code == 2
    for command in ("ls", "show", "validate", "tune", "screen", "prune", "export"):
        assert f"ostinato evidence {command}" in " ".join(ostinato("evidence", command, "--help").out.split())


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("/home/user/models/q: it is no checkpoint", "<path>: it is no checkpoint"),
        ("cannot read '/tmp/a b/c.so'", "cannot read '<path> b/c.so'"),
        ("C:\\Users\\someone\\x is gone", "<path> is gone"),
        ("see ~/cache/kernels", "see <path>"),
    ],
)
def test_paths_are_taken_out_of_texts(text: str, bare: str) -> None:
    assert names_a_path(text)
    assert without_paths(text) == bare
    assert not names_a_path(bare)


@pytest.mark.parametrize(
    "text", ["x86_64/avx512_bf16", "0.9 of 1.2", "f32,bf16@CF,_->f32;counted", "1/2 of them", json.dumps({"a": "b/c"})]
)
def test_what_is_no_path_stays(text: str) -> None:
    assert not names_a_path(text)
    assert without_paths(text) == text
