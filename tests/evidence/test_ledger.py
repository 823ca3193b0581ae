"""The files of records: what is written is read again, nothing damaged is skipped or lost, and processes that write at once lose nothing of each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinato.backend_hip.evidence.known import DeviceRecords
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger, shipped_records, user_folder
from ostinato.backend_hip.evidence.records import (
    Environment,
    RunFigures,
    TimingRecord,
    ValidationRecord,
    read_record,
    write_record,
)
from ostinato.ir.errors import ConfigError

HERE = Environment(device="a card", architecture="sm_90", wave=32, kernel_hash="ab", version="1")
ROOT = Path(__file__).resolve().parents[2]


def validation(signature: str = "f32->f32", **changes: Any) -> ValidationRecord:
    fields = {
        "environment": HERE,
        "operator": "scale",
        "row": "hip",
        "level": "tuned",
        "signature": signature,
        "sources": {"row": "1", "elementwise/elementwise": "2"},
        "calls": 3,
        "seed": 7,
        "maximum_error": 1.5e-7,
        "passed": True,
    }
    return ValidationRecord.made(**{**fields, **changes})


def timing(**changes: Any) -> TimingRecord:
    mine, theirs = (RunFigures(name=name, seconds=(1.0, 0.5), peak_bytes=9) for name in ("fast", "default"))
    fields = {
        "environment": HERE,
        "scope": "model",
        "subject": "abc",
        "workload": "decode d1",
        "candidate": mine,
        "baseline": theirs,
        "ratio": 1.02,
        "outputs": "equal",
        "passed": True,
    }
    return TimingRecord.made(**{**fields, **changes})


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = (validation(), validation("bf16->bf16", passed=False, reason="one value off"), timing())
    ledger = Ledger(tmp_path / "evidence")
    ledger.add(records)
    assert Ledger(tmp_path / "evidence").records() == records
    assert [read_record(write_record(record)) for record in records] == list(records)


def test_a_later_record_takes_the_place_of_an_earlier_one_of_its_key(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path), validation("f16->f16")
    ledger.add([validation(), other])
    ledger.add([again := validation(seed=8)])
    assert ledger.records() == (other, again)


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "off"},
        {"calls": 0},
        {"maximum_error": None},
        {"maximum_error": -1.0},
        {"maximum_error": 2e-7, "bound": 1e-7},
        {"maximum_error": float("nan")},
    ],
)
def test_a_record_that_contradicts_itself_is_none(changes: dict[str, Any]) -> None:
    """Whoever forges one and its id with it."""
    with pytest.raises(ValueError, match=r"passed|greater than|finite"):
        validation(**changes)


def test_a_record_that_was_changed_by_hand_does_not_check() -> None:
    line = write_record(validation(passed=False, reason="off"))
    with pytest.raises(ValueError, match="the id is"):
        read_record(line.replace('"passed":false', '"passed":true'))
    with pytest.raises(ValueError, match="speed"):
        read_record(line.replace('"calls":3', '"calls":3,"speed":1'))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-9], "it is cut off"),
        (lambda data: data.replace(b'"seed":7', b'"seed":6', 1), "the id is"),
        (lambda data: data + b"\x00\xff garbage\n", "JSON"),
        (lambda data: data + b'{"kind":"rumour"}\n', "kind"),
        (lambda data: data.replace(b'"calls":3', b'"calls":-3', 1), "greater than or equal to 0"),
    ],
)
def test_a_damaged_ledger_is_an_error_and_stays_as_it_is(tmp_path: Path, damage: Any, says: str) -> None:
    ledger = Ledger(tmp_path)
    ledger.add([validation(), validation("f16->f16")])
    ledger.path.write_bytes(damage(ledger.path.read_bytes()))
    before = ledger.path.read_bytes()
    for action in (ledger.records, lambda: ledger.add([timing()]), DeviceRecords(HERE, ledger).known):
        with pytest.raises(ConfigError, match=rf"{ledger.path}:[123]: .*{says}[\s\S]*`ostinato evidence prune`"):
            action()
        assert ledger.path.read_bytes() == before


def test_prune_mends_a_damaged_ledger_and_keeps_the_rest(tmp_path: Path) -> None:
    ledger, kept = Ledger(tmp_path), validation("f16->f16")
    ledger.add([kept, validation()])
    with ledger.path.open("ab") as file:
        file.write(b"{half a line")
    done = ledger.prune(lambda record: record.id == kept.id)
    assert (done.kept, len(done.removed), [number for number, _ in done.damaged]) == (1, 1, [3])
    assert ledger.records() == (kept,)
    assert ledger.prune().damaged == ()


def test_a_process_that_dies_while_it_writes_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, record = Ledger(tmp_path), validation()
    ledger.add([record])

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        ledger.add([timing()])
    monkeypatch.undo()
    assert ledger.records() == (record,)
    ledger.add([timing()])
    assert len(ledger.records()) == 2


def test_a_killed_writer_leaves_a_whole_file_and_no_lock(tmp_path: Path) -> None:
    """Killed as hard as can be, at the worst moment: with half of the new file written."""
    ledger = Ledger(tmp_path)
    ledger.add([validation()])
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ostinato.backend_hip.evidence import ledger as module\n"
        "from tests.evidence.test_ledger import timing\n"
        "module.os.fsync = lambda file: os.kill(os.getpid(), 9)\n"
        f"module.Ledger(Path({str(tmp_path)!r})).add([timing()])\n"
    )
    run = subprocess.run([sys.executable, "-c", script], env=_environment(), cwd=ROOT, check=False)
    assert run.returncode == -9
    assert len(ledger.records()) == 1
    ledger.add([timing()])
    assert len(ledger.records()) == 2


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ostinato.backend_hip.evidence.ledger import Ledger\n"
        "from tests.evidence.test_ledger import validation\n"
        f"ledger = Ledger(Path({str(tmp_path)!r}))\n"
        "for number in range(12): ledger.add([validation(f'{sys.argv[1]}.{number}')])\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(number)], env=_environment(), cwd=ROOT)
        for number in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    found = {record.signature for record in Ledger(tmp_path).records() if isinstance(record, ValidationRecord)}
    assert found == {f"{writer}.{number}" for writer in range(3) for number in range(12)}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "mine"))
    assert user_folder() == tmp_path / "mine"
    Ledger().add([validation()])
    assert (tmp_path / "mine" / "evidence.jsonl").exists()
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert user_folder().parts[-2:] == ("ostinato", "evidence")


def test_a_ledger_that_cannot_be_written_keeps_records_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ledger = Ledger(tmp_path / "file")
    with pytest.raises(ConfigError, match=rf"cannot be used[\s\S]*{FOLDER_VARIABLE}"):
        ledger.add([validation()])
    records = DeviceRecords(HERE, ledger, shipped=False)
    with pytest.warns(RuntimeWarning, match="for this process alone"):
        records.add([validation()])
    assert records.known() is records.known()
    assert records.unwritten == 1


def test_shipped_records_are_of_the_architecture_that_is_asked_for(tmp_path: Path) -> None:
    other = validation(environment=HERE.model_copy(update={"architecture": "x86_64/avx2"}))
    (tmp_path / "sm_90.jsonl").write_text(write_record(validation(time="2026-01-01T00:00:00+00:00")))
    (tmp_path / "x86_64-avx2.jsonl").write_text(write_record(other))
    assert shipped_records("x86_64/avx2", tmp_path) == (other,)
    assert len(shipped_records(folder=tmp_path)) == 2
    (tmp_path / "timing-sm_90.jsonl").write_text(write_record(timing()))
    assert [record.kind for record in shipped_records("sm_90", tmp_path)] == ["validation", "timing"]
    assert shipped_records("gfx942", tmp_path) == ()
