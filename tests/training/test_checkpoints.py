"""Checkpoints: what was saved comes back, what is damaged or of another run is refused by name, and nothing is lost when writing stops at any point."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from ostinato.ir.errors import ConfigError, LifecycleError, StaleArtifact, WeightsError
from ostinato.ir.version import VERSION as PACKAGE
from ostinato.runtime.training.checkpoint import LATEST, Checkpoints, read_checkpoint
from ostinato.runtime.training.disk import Disk
from ostinato.runtime.training.record import RECORD, json_hash
from tests.training.snapshots import same, snapshot


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "runs")
    assert checkpoints.load() is None
    made = checkpoints.save(snapshot(7))
    assert made.name == "step-00000007"
    assert checkpoints.latest() == made
    found = checkpoints.load(snapshot(0))
    assert found is not None
    assert same(found, snapshot(7))
    assert not any(array.flags.writeable for array in found.parameters.values() if array.size)
    assert names(made) == [RECORD, "parameters.safetensors", "state.safetensors"]
    said = json.loads((made / RECORD).read_text())
    assert (said["version"], said["package"], said["step"], said["seed"]) == (1, PACKAGE, 7, 11)


def test_the_tensors_are_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    made = Checkpoints(tmp_path).save(snapshot(3))
    loaded = safetensors.load_file(made / "parameters.safetensors")
    assert set(loaded) == set(snapshot(3).parameters)
    assert all(np.array_equal(loaded[name], value) for name, value in snapshot(3).parameters.items())


def test_the_same_snapshot_gives_the_same_files(tmp_path: Path) -> None:
    reversed_names = dict(reversed(list(snapshot(3).parameters.items())))
    one = Checkpoints(tmp_path / "one").save(snapshot(3))
    two = Checkpoints(tmp_path / "two").save(snapshot(3, parameters=reversed_names))
    for name in names(one):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_the_newest_are_kept_and_steps_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        checkpoints.save(snapshot(step))
    assert names(tmp_path) == [LATEST, "step-00000003", "step-00000010"]
    again = checkpoints.save(snapshot(10, seed=12))
    assert again.name == "step-00000010.1"
    assert names(tmp_path) == [LATEST, "step-00000010", "step-00000010.1"]
    # a run that went back to an earlier checkpoint is what goes on, whatever its step
    checkpoints.save(snapshot(4))
    assert checkpoints.latest() == tmp_path / "step-00000004"
    found = checkpoints.load()
    assert found is not None
    assert found.step == 4


class Crash(BaseException):
    """The machine stopped."""


class Stopping(Disk):
    """Stops at the operation of that number, after half of it where it can be cut."""

    def __init__(self, at: int, error: Callable[[], BaseException] = Crash) -> None:
        self.at, self.done, self.error = at, 0, error

    def _count(self) -> bool:
        self.done += 1
        return self.done == self.at

    def make_folder(self, path: Path) -> None:
        if self._count():
            raise self.error()
        super().make_folder(path)

    def write(self, file: BinaryIO, data: memoryview | bytes) -> None:
        if self._count():
            super().write(file, bytes(data)[: len(data) // 2])
            raise self.error()
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        if self._count():
            raise self.error()

    def sync_folder(self, path: Path) -> None:
        if self._count():
            raise self.error()

    def rename(self, old: Path, new: Path) -> None:
        if self._count():
            raise self.error()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if self._count():
            inside = sorted(path.rglob("*"))
            inside[0].unlink()
            raise self.error()
        super().remove(path)


def stops() -> list[int]:
    """Every operation of the third `save` into a folder that keeps two."""
    return list(range(1, 33))


@pytest.mark.parametrize("at", stops())
def test_a_crash_at_any_operation_loses_nothing(at: int, tmp_path: Path) -> None:
    good = Checkpoints(tmp_path, keep=2)
    good.save(snapshot(1))
    good.save(snapshot(2))
    disk = Stopping(at)
    try:
        Checkpoints(tmp_path, keep=2, disk=disk).save(snapshot(3))
    except Crash:
        pass
    else:
        assert disk.done < at, "the list of operations is too short"
    found = Checkpoints(tmp_path, keep=2).load(snapshot(0))
    assert found is not None
    assert same(found, snapshot(found.step))
    assert found.step in (2, 3)
    # and the run goes on
    good.save(snapshot(3) if found.step == 2 else snapshot(4))
    good.save(snapshot(5))
    assert names(tmp_path)[-1] == "step-00000005"
    assert len(names(tmp_path)) == 3
    for path in good.all():
        assert same(read_checkpoint(path), snapshot(int(path.name[-8:])))


def test_the_operations_of_a_save_are_all_tried(tmp_path: Path) -> None:
    good = Checkpoints(tmp_path, keep=2)
    good.save(snapshot(1))
    good.save(snapshot(2))
    disk = Stopping(0)
    Checkpoints(tmp_path, keep=2, disk=disk).save(snapshot(3))
    assert 20 < disk.done < max(stops())


def test_a_crash_in_the_first_save_leaves_nothing_that_looks_like_a_checkpoint(tmp_path: Path) -> None:
    for at in stops():
        folder = tmp_path / str(at)
        try:
            Checkpoints(folder, disk=Stopping(at)).save(snapshot(1))
        except Crash:
            found = Checkpoints(folder).load()
            assert found is None or same(found, snapshot(1))
        Checkpoints(folder).save(snapshot(1))
        assert names(folder)[:2] == [LATEST, "step-00000001"]


@pytest.mark.parametrize("at", [1, 2, 5, 9, 14, 17])
def test_a_full_disk_is_an_error_and_the_latest_stays(at: int, tmp_path: Path) -> None:
    good = Checkpoints(tmp_path)
    good.save(snapshot(1))
    disk = Stopping(at, lambda: OSError(28, "No space left on device"))
    with pytest.raises(ConfigError, match=r"cannot be written.*No space left") as caught:
        Checkpoints(tmp_path, disk=disk).save(snapshot(2))
    assert "make room" in str(caught.value)
    found = good.load()
    assert found is not None
    assert found.step == 1


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ConfigError, match="cannot be written"), Checkpoints(tmp_path / "file" / "runs").locked():
        pass


_HOLDER = """
import sys, time
from ostinato.runtime.training.checkpoint import Checkpoints
with Checkpoints(sys.argv[1]).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time_writes_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LifecycleError, match="another process writes checkpoints"):
            Checkpoints(tmp_path).save(snapshot(1))
        holder.kill()
    Checkpoints(tmp_path).save(snapshot(1))


@pytest.mark.parametrize("name", [RECORD, "parameters.safetensors", "state.safetensors"])
def test_damage_of_any_file_is_found(name: str, tmp_path: Path) -> None:
    made = Checkpoints(tmp_path).save(snapshot(1))
    whole = (made / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 23)):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]):
            (made / name).write_bytes(damaged)
            with pytest.raises((WeightsError, StaleArtifact), match=name):
                read_checkpoint(made)
    (made / name).write_bytes(whole + b"\0")
    with pytest.raises(WeightsError, match=name):
        read_checkpoint(made)
    (made / name).unlink()
    with pytest.raises(WeightsError, match=f"{name} cannot be read"):
        read_checkpoint(made)


def forged(made: Path, **changes: Any) -> None:
    """Writes another record whose digest is right."""
    said = {**json.loads((made / RECORD).read_text()), **changes}
    said.pop("digest")
    (made / RECORD).write_text(json.dumps({**said, "digest": json_hash(said)}))


def test_foreign_records_are_refused(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path).save(snapshot(1))
    other = shutil.copytree(made, tmp_path / "other")
    (other / RECORD).write_text('{"model_type": "llama"}')
    with pytest.raises(WeightsError, match="no training checkpoint"):
        read_checkpoint(other)
    for changes, error, told in (
        ({"version": 2}, StaleArtifact, "version: expected 1, found 2"),
        ({"surprise": 1}, WeightsError, "surprise"),
        ({"step": -1}, WeightsError, "step"),
        ({"files": {}}, WeightsError, "names the files"),
        ({"files": {"../../secret": {"size": 1, "digest": ""}}}, WeightsError, "names the files"),
        ({"parameters": {"model.a": {"dtype": "f99", "shape": [4]}}}, WeightsError, "f99"),
        ({"parameters": {"model.a": {"dtype": "f32", "shape": [4]}}}, WeightsError, "another header"),
    ):
        shutil.rmtree(other)
        shutil.copytree(made, other)
        forged(other, **changes)
        with pytest.raises(error, match=told):
            read_checkpoint(other)


def test_going_on_with_other_kernels_is_told_and_not_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(7))
    with pytest.warns(RuntimeWarning, match="last bits .* may differ .*: rows: expected 'c', found 'b'"):
        found = checkpoints.load(snapshot(0, computed_by={"graph": "a", "rows": "c"}))
    assert found is not None
    assert same(found, snapshot(7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.load(snapshot(0)) is not None


def test_a_checkpoint_of_another_run_is_refused_and_every_difference_told(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path).save(snapshot(1))
    changed = snapshot(
        2,
        seed=12,
        optimizer={**snapshot(1).optimizer, "lr": 1.0},
        data={"epoch": 0, "batch": 0, "identity": "other tokens"},
        configs={"model": {"hidden_size": 4, "rope_theta": 1e4}, "precision": "f32"},
        parameters={**snapshot(1).parameters, "model.a": np.zeros(5, dtype=np.float32), "model.c": np.zeros(1)},
    )
    with pytest.raises(StaleArtifact) as caught:
        read_checkpoint(made, changed)
    told = "\n".join(caught.value.differences)
    for line in (
        "seed: expected 12, found 11",
        "optimizer.lr: expected 1.0, found 0.0003",
        "data.identity: expected 'other tokens', found 'some tokens'",
        "configs.model.hidden_size: expected 4, found 3",
        "parameters.model.a.shape: expected [5], found [4]",
        "parameters.model.c: expected",
    ):
        assert line in told
    assert same(read_checkpoint(made, snapshot(5)), snapshot(1))
    with pytest.raises(StaleArtifact, match="data: expected None"):
        read_checkpoint(made, dataclasses.replace(snapshot(1), data=None))


@pytest.mark.parametrize("text", ["", "step-00000009", "../elsewhere", "step-00000001/..", "\x00", "x" * 5000])
def test_a_damaged_pointer_is_told_with_what_there_is(text: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1))
    (tmp_path / LATEST).write_text(text)
    with pytest.raises(WeightsError, match="latest") as caught:
        checkpoints.load()
    assert "step-00000001" in str(caught.value)


def test_links_and_files_in_the_place_of_checkpoints_make_room_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    """A checkpoint that was moved to another disk and linked, and what a crash left of removing it."""
    elsewhere, runs = tmp_path / "elsewhere", tmp_path / "runs"
    for folder in (elsewhere, runs):
        folder.mkdir()
    (elsewhere / "precious").write_text("x")
    (runs / "step-00000003").symlink_to(elsewhere)
    (runs / ".old-step-00000001").symlink_to(elsewhere)
    (runs / "step-00000005").write_text("a file")
    checkpoints = Checkpoints(runs, keep=1)
    for step in (4, 5):
        assert checkpoints.save(snapshot(step)).name == f"step-0000000{step}"
        assert names(runs) == sorted({LATEST, f"step-0000000{step}", "step-00000005"})
    assert names(elsewhere) == ["precious"]


@pytest.mark.parametrize("part", ["parameters", "state", "optimizer", "data", "configs"])
def test_parts_that_are_no_mappings_of_names_are_refused(part: str) -> None:
    for value in (5, {5: np.zeros(1)}):
        with pytest.raises(ConfigError, match=f"{part} of a checkpoint is a"):
            snapshot(1, **{part: value})


def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plain JSON"):
        Checkpoints(tmp_path).save(snapshot(1, configs={"model": object()}))
    with pytest.raises(ConfigError, match="plain JSON"):
        Checkpoints(tmp_path).save(snapshot(1, optimizer={"lr": float("nan")}))
