"""Markers for the vendors' profilers: a range a step in the planned mode, through whatever library is there, and nothing where nobody asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime import markers
from ostinato.runtime.device import Table
from ostinato.runtime.markers import MARKERS_VARIABLE, MarkedTable
from tests.runtime.fake_markers import FakeMarkers, build
from tests.training.tiny import batch, checkpoint, make

IDS = np.array([[3, 14, 15, 9]], np.int32)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("markers"))


@pytest.fixture
def fake(library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMarkers:
    """The only library that is there."""
    monkeypatch.setattr(
        markers, "_LIBRARIES", (("libnone.so", "a", "b"), (str(library), "nvtxRangePushA", "nvtxRangePop"))
    )
    found = FakeMarkers(library)
    found.take()
    return found


def ranges(nodes: list[str]) -> list[str]:
    return [line for node in nodes for line in (node, "-")]


def test_a_planned_run_is_a_range_a_step_with_the_same_bits(tiny: ost.TextExecutable, fake: FakeMarkers) -> None:
    expected = tiny(IDS)["logits"].tobytes()
    assert fake.take() == []
    marked = tiny.clone(markers=True)
    assert marked(IDS)["logits"].tobytes() == expected
    plan = marked.bucket(4, 1)
    assert fake.take() == ranges([step.node for step in plan.steps])
    assert marked.clone()(IDS)["logits"].tobytes() == expected, "a clone has them too"
    assert fake.take()
    assert marked.clone(markers=False)(IDS)["logits"].tobytes() == expected
    assert fake.take() == []


def test_the_environment_asks_for_all_that_is_compiled(
    tiny_model: ost.Model, fake: FakeMarkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKERS_VARIABLE, "1")
    options: dict[str, Any] = {"buckets": {"B": [1], "T": [4]}, "context": 8, "threads": 1}
    ost.compile(tiny_model, **options)(IDS)
    assert fake.take()
    ost.compile(tiny_model, markers=False, **options)(IDS)
    assert fake.take() == []
    monkeypatch.setenv(MARKERS_VARIABLE, "0")
    ost.compile(tiny_model, **options)(IDS)
    assert fake.take() == []
    ost.compile(tiny_model, markers=True, **options)(IDS)
    assert fake.take()


def test_a_training_step_is_marked_and_its_clone(tmp_path: Path, fake: FakeMarkers) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), mode="planned", markers=True)
    fake.take()
    step(*batch(0))
    assert fake.take() == ranges([found.node for found in step.plan.steps])
    step.clone()(*batch(0))
    assert len(fake.take()) == 2 * len(step.plan.steps)


def test_a_profile_is_not_marked(tiny: ost.TextExecutable, fake: FakeMarkers) -> None:
    marked = tiny.clone(markers=True)
    marked.profile(next(iter(marked.entries)), runs=1)
    assert fake.take() == []


def test_a_failed_step_ends_its_range(tiny: ost.TextExecutable, fake: FakeMarkers) -> None:
    marked = tiny.clone(markers=True)
    entry = next(iter(marked.entries))
    inputs = marked.example_inputs(entry)
    inputs["input_ids"][0] = 4000
    with pytest.raises(ost.BoundsError):
        marked.run(entry, inputs)
    found = fake.take()
    assert found.count("-") == len(found) / 2


def test_markers_without_a_library_or_with_a_word_that_is_none_are_refused(
    tiny: ost.TextExecutable, tiny_model: ost.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "_LIBRARIES", (("libnone.so", "a", "b"),))
    with pytest.raises(ost.DeviceUnavailable, match=r"no library of markers.*\n?.*libnone.so"):
        tiny.clone(markers=True)
    monkeypatch.setenv(MARKERS_VARIABLE, "yes")
    with pytest.raises(ost.ConfigError, match="'yes'"):
        ost.compile(tiny_model, buckets={"B": [1], "T": [4]}, context=8)
    monkeypatch.delenv(MARKERS_VARIABLE)
    with pytest.raises(ost.ConfigError, match="markers is 1"):
        ost.compile(tiny_model, buckets={"B": [1], "T": [4]}, context=8, markers=1)  # type: ignore[arg-type]


def test_a_library_without_the_functions_is_passed_over(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (str(library), "nvtxRangePushA", "nvtxRangePop")
    monkeypatch.setattr(markers, "_LIBRARIES", ((str(library), "roctxRangePushA", "roctxRangePop"), wanted))
    assert markers.open_markers().library == str(library)


def test_the_vendors_library_is_found_by_its_name(library: Path) -> None:
    """In a process of its own, whose loader looks in that folder."""
    code = "from ostinato.runtime.markers import open_markers; print(open_markers().library)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == library.name


class _Counted:
    """A table that notes its calls."""

    status_bytes = 12

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        self.calls.append(("enqueue", first, count))

    def finish(self) -> None:
        self.calls.append(("finish", 0, 0))

    def run(self, first: int = 0, count: int = -1) -> None:
        raise AssertionError("one submission a step")

    def capture(self, first: int = 0, count: int = -1) -> object:
        self.calls.append(("capture", first, count))
        return self


def test_a_marked_table_submits_step_by_step_and_captures_as_a_whole(fake: FakeMarkers) -> None:
    counted = _Counted()
    inner: Table = counted  # type: ignore[assignment]
    table = MarkedTable(inner, ["a", "b", "c"], markers.open_markers())
    assert table.status_bytes == 12
    table.enqueue(1)
    table.run(0, 2)
    table.capture(0, 3)
    assert counted.calls == [
        ("enqueue", 1, 1),
        ("enqueue", 2, 1),
        ("enqueue", 0, 1),
        ("enqueue", 1, 1),
        ("finish", 0, 0),
        ("capture", 0, 3),
    ]
    assert fake.take() == ranges(["b", "c", "a", "b"])
