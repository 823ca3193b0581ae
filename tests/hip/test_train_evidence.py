"""Whether small updates share a launch on a GPU is for whole-model runs to say: records of training steps that pass their gate take the grouping out, others do
not, and every bit stays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.evidence.first_use import with_validation
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import Environment, TimingRecord
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.graph import Graph
from ostinato.stages import Lowered
from ostinato.training import TracedTraining, trace_training_step
from tests.backend_hip.gpu.machine import CACHE
from tests.training.planted import gained, recipe
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

POLICY = "fuse_updates=off"


@pytest.fixture
def device(gpu: HipDevice, tmp_path: Path) -> HipDevice:
    """The card with a ledger of its own."""
    return HipDevice(gpu.native, cache=CodeCache(CACHE), ledger=Ledger(tmp_path / "evidence"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint("llama", tmp_path / "model", num_hidden_layers=1)


def plant(device: HipDevice, subjects: Iterable[str], changed: dict[str, Any] | None = None, **fields: Any) -> None:
    assert device.records is not None
    environment: Environment = device.records.environment.model_copy(update=changed or {})
    made: list[TimingRecord] = [gained(POLICY, subject, environment, **fields) for subject in subjects]
    device.records.add(made)


def lowered(step: TracedTraining, device: HipDevice) -> Lowered:
    return step.lower(with_validation(device.target, "never"))


def updates(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes if node.op.startswith("adamw")}


def test_only_runs_of_two_models_take_the_grouping_of_updates_out(device: HipDevice, folder: Path) -> None:
    step = trace_training_step(str(folder), recipe())
    assert "adamw_group" in updates(lowered(step, device).graph)
    plant(device, ("one", "two"), {"kernel_hash": "older"})
    plant(device, ("one",))
    held = lowered(step, device)
    assert "adamw_group" in updates(held.graph), "stale records, and one model"
    said = str(held.explain("adamw_group"))
    assert "policy fuse_updates=off: bypassed: stale: 1 of 2 models gain 1.01x" in said, said
    plant(device, ("two",))
    assert updates(lowered(step, device).graph) == {"adamw"}
    plant(device, ("three",), ratio=0.9)
    assert "adamw_group" in updates(lowered(step, device).graph), "it slows a third one down"


def test_what_evidence_takes_out_leaves_every_bit(device: HipDevice, folder: Path) -> None:
    options: dict[str, Any] = {"device": device, "validate": "never"}
    grouped = make(folder, mode="planned", **options)
    plant(device, ("one", "two"))
    single = [make(folder, mode=mode, **options) for mode in ("eager", "planned")]
    assert [updates(made.program.graphs["train"]) for made in single] == [{"adamw"}] * 2
    assert "adamw_group" in updates(grouped.program.graphs["train"])
    assert {made(*batch(0)).loss for made in single} == {grouped(*batch(0)).loss}
    assert [state_of(made) for made in single] == [state_of(grouped)] * 2
