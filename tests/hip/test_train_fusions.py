"""What makes a training step on a GPU fewer launches changes none of its bits: nodes for all columns of a joint product, copies in a second dtype, updates of
several parameters at once; and bf16 attention, which does change them, keeps to the step in float32 within the contract of bf16."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.target import hip_target
from ostinato.frontend.training import TrainingShape
from ostinato.ir.graph import Graph
from ostinato.training import Recipe, trace_training_step
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

FUSIONS = ("fuse_joint", "fuse_copies", "fuse_updates")
JOINT = {"rope_split_half_joint", "rope_split_half_joint_backward", "swiglu_joint_backward"}


def lowered(folder: Path, precision: str, disable: tuple[str, ...] = ()) -> Graph:
    """The step of 2 sequences of 32 tokens as a GPU with matrix units has it."""
    step = trace_training_step(str(folder), Recipe(TrainingShape(2, 32), precision=precision))
    return step.lower(hip_target("sm_90", 32), disable=disable).graph


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_fusions_leave_every_bit(family: str, gpu: HipDevice, tmp_path: Path) -> None:
    folder = checkpoint(family, tmp_path, num_hidden_layers=1)
    options: dict[str, Any] = {"device": gpu, "precision": "bf16", "mode": "planned"}
    fused, plain = make(folder, **options), make(folder, disable=FUSIONS, **options)
    made, others = (operators(exe.program.graphs["train"]) for exe in (fused, plain))
    assert made.keys() >= JOINT
    assert made["adamw_group"] == 1
    assert not (JOINT | {"adamw_group"}) & others.keys()
    assert "cast" not in made.keys() & others.keys()
    for number in range(2):
        assert fused(*batch(number)).loss == plain(*batch(number)).loss
    assert state_of(fused) == state_of(plain)


def test_an_element_a_thread_is_the_same_update(gpu: HipDevice, tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    options: dict[str, Any] = {"device": gpu, "precision": "bf16", "mode": "planned", "disable": ("fuse_updates",)}
    wide, scalar = make(folder, **options), make(folder, levels={"adamw": "hip_scalar"}, **options)
    rows = [{node.impl for node in exe.program.graphs["train"].nodes if node.op == "adamw"} for exe in (wide, scalar)]
    assert rows == [{"hip"}, {"hip_scalar"}]
    assert wide(*batch(0)).loss == scalar(*batch(0)).loss
    assert state_of(wide) == state_of(scalar)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_nothing_is_cast_or_joined_by_a_launch_of_its_own(family: str, tmp_path: Path) -> None:
    """In a layer under bf16; attention is served by the matrix units, forward and backward."""
    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    folder = checkpoint(family, tmp_path, num_hidden_layers=2, **sizes)
    graph = lowered(folder, "bf16")
    inner = [node for node in graph.nodes if "layers." in node.name]
    assert not {"cast", "concat", "contiguous", "rope_split_half", "swiglu_backward"} & {node.op for node in inner}
    rows = {node.op: node.impl for node in inner if node.op.startswith("attention_causal")}
    assert rows == {"attention_causal_saved": "hip_tile32", "attention_causal_backward": "hip_tile32"}
    attention = next(node for node in inner if node.op == "attention_causal_saved")
    assert attention.results[0].type.dtype.value == "bf16"


def test_attention_stays_float32_under_other_policies(tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path, num_hidden_layers=1)
    for precision in ("f32", "bf16[gate,up,down]"):
        graph = lowered(folder, precision)
        saved = next(node for node in graph.nodes if node.op == "attention_causal_saved")
        assert {graph.types[name or ""].dtype.value for name in saved.operands} == {"f32"}, precision


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_bf16_step_is_near_that_in_float32(family: str, tmp_path: Path) -> None:
    """On the CPU, from weights that both can hold: the loss, and every gradient by its length."""
    folder = checkpoint(family, tmp_path, num_hidden_layers=2, torch_dtype="bfloat16")
    narrow, wide = (make(folder, precision=name, optimizer=None) for name in ("bf16", "f32"))
    assert narrow(*batch(1)).loss == pytest.approx(wide(*batch(1)).loss, rel=5e-3)
    for name in wide.gradient_names:
        expected, found = (exe.gradient(name).astype(np.float64) for exe in (wide, narrow))
        assert np.linalg.norm(found - expected) <= 3e-2 * np.linalg.norm(expected), name
