"""`ostinato train --dry-run`: whether a step fits, from the plan alone, and what is missing where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.tools.cli import main
from ostinato.tools.train.command import _show_plan
from ostinato.tools.train.report import TrainPlanReport
from tests.training.test_train_command import CONFIG


def dry_run(capsys: pytest.CaptureFixture[str], config: Path, *more: str) -> tuple[int, TrainPlanReport]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config), "--dry-run", "--json", *more])
    return int(caught.value.code or 0), TrainPlanReport.model_validate_json(capsys.readouterr().out)


def written(folder: Path, **changes: str) -> Path:
    path = folder / "run.toml"
    text = CONFIG.replace("sequence = 8", "sequence = 2").replace(
        "batch = 2", "batch = 1"
    )  # few pieces of the head to try
    for key, value in changes.items():
        text = text.replace('device = "cpu"\n', "") if key == "device" else text
        text = text.replace("[train]", f"[train]\n{key} = {value}")
    path.write_text(text)
    return path


def test_a_step_is_planned_without_a_device_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = dry_run(capsys, written(tmp_path, device='"hip:7"'))
    assert (code, report.fits, report.missing_bytes, report.message) == (0, True, 0, "")
    assert report.total_bytes == sum(report.regions.values()) > report.arena_bytes >= report.lower_bound
    assert sum(tensor.bytes for tensor in report.peak) <= report.arena_bytes
    assert any(tensor.line and "frontend/" in tensor.line for tensor in report.peak)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_a_limit_is_kept_or_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, free = dry_run(capsys, written(tmp_path))
    code, kept = dry_run(capsys, written(tmp_path, memory_limit=str(free.arena_bytes)))
    assert (code, kept.fits) == (0, True)
    assert kept.arena_bytes == free.arena_bytes
    code, short = dry_run(capsys, written(tmp_path, memory_limit="1024"))
    assert (code, short.fits) == (1, False)
    assert short.missing_bytes > 0
    assert f"{short.missing_bytes} bytes are missing" in short.message
    assert "frontend/" in short.message


def test_a_verdict_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(written(tmp_path)), "--dry-run"])
    assert not caught.value.code
    assert "fits: " in capsys.readouterr().out
    _show_plan(TrainPlanReport(**{**SHORT, "peak": ()}))
    assert "3 bytes short\nwho holds what" in capsys.readouterr().out


SHORT: dict[str, Any] = {
    "model": "m",
    "target": "host",
    "fits": False,
    "missing_bytes": 3,
    "memory_limit": 5,
    "arena_bytes": 8,
    "lower_bound": 8,
    "recomputed": 0,
    "extra_work": 0.0,
    "regions": {"host:0/arena": 8},
    "total_bytes": 8,
    "message": "who holds what",
    "seconds": 0.1,
}


def test_a_report_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = dry_run(capsys, written(tmp_path), "--target", "sm_90")
    assert json.loads(report.model_dump_json())["kind"] == "train_plan"
    assert report.target == "sm_90"
    assert all(name.startswith("hip:") for name in report.regions)
