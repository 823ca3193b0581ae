"""`ostinato train --dry-run`: whether a step fits, from the plan alone, and what is missing where it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.tools.cli import main
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
    assert (code, report.fits, report.missing_bytes, report.message, report.chunks) == (0, True, 0, "", 1)
    memory = report.memory
    assert memory.total == memory.parameters + memory.optimizer_state + memory.arena + memory.io + memory.constants
    assert memory.optimizer_state >= 2 * memory.parameters > 0, "two moments of each"
    assert memory.arena >= memory.lower_bound >= memory.saved > 0
    assert (memory.gap, memory.status, memory.recomputed, memory.weights) == (0, "optimal", 0, 0)
    assert 0 < memory.gradients_live <= memory.gradients == memory.parameters
    assert sum(tenant.bytes for tenant in memory.peak) <= memory.arena
    assert any("frontend/" in tenant.line for tenant in memory.peak)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_a_limit_is_kept_or_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, free = dry_run(capsys, written(tmp_path))
    code, kept = dry_run(capsys, written(tmp_path, memory_limit=str(free.memory.arena)))
    assert (code, kept.fits) == (0, True)
    assert kept.memory.arena == free.memory.arena
    code, short = dry_run(capsys, written(tmp_path, memory_limit="1024"))
    assert (code, short.fits) == (1, False)
    assert short.missing_bytes > 0
    assert f"{short.missing_bytes} bytes are missing" in short.message
    assert "frontend/" in short.message


def test_what_a_device_has_is_enough_or_by_so_many_bytes_too_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path)
    _, free = dry_run(capsys, config)
    total, arena = free.memory.total, free.memory.arena
    code, enough = dry_run(capsys, config, "--memory", str(total))
    assert (code, enough.fits, enough.memory.limit, enough.memory.missing) == (0, True, total, 0)
    code, short = dry_run(capsys, config, "--memory", str(total - 1))
    assert (code, short.fits, short.missing_bytes, short.memory.missing) == (1, False, 1, 1)
    held = short.memory.peak[0]
    assert short.message.startswith(f"1 bytes short of {total}; the most is held by {held}; ")
    assert f"train.memory_limit = {arena - 1} asks for a plan" in short.message
    _, hopeless = dry_run(capsys, config, "--memory", "1KiB")
    assert hopeless.missing_bytes == total - 1024
    assert "asks for a plan" not in hopeless.message


@pytest.mark.parametrize(("more", "code", "told"), [((), 0, "fits: "), (("--memory", "1kB"), 1, " bytes short\n")])
def test_a_verdict_for_people(
    more: tuple[str, ...], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(written(tmp_path)), "--dry-run", *more])
    assert (caught.value.code or 0) == code
    shown = capsys.readouterr().out
    assert told in shown
    for row in ("parameters", "optimizer state", "saved for backward", "gradients", "values computed twice"):
        assert row in shown


def test_memory_is_asked_of_a_dry_run_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (("--memory", "1GiB"), "use it with --dry-run"),
        (("--dry-run", "--memory", "much"), "expected a number of bytes"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["train", str(written(tmp_path)), *arguments])
        assert caught.value.code == 2
        assert told in capsys.readouterr().err


def test_a_gpu_need_not_be_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = dry_run(capsys, written(tmp_path), "--target", "sm_90", "--memory", "24GiB")
    assert json.loads(report.model_dump_json())["kind"] == "train_plan"
    assert (code, report.target, report.memory.limit) == (0, "sm_90", 24 << 30)
    assert report.memory.device.startswith("hip:")
