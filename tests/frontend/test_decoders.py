"""Every decoder family from both formats: the same weights give the same logits, bit for bit; and what is the family's own in its files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.layers import Weights
from ostinato.frontend.model import trace_forward
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph, Role
from ostinato.ir.types import Array, DType
from ostinato.ir.weights import WeightPart
from tests.frontend.make_checkpoints import Tensors, random_model, small_config, write_gguf, write_hf_checkpoint
from tests.frontend.small_families import GEMMA, SMALL_DECODERS

IDS = [5, 17, 3, 92, 41, 8, 5, 60, 17, 2, 33, 71, 9, 12, 80, 44, 6]


def logits_of(model: ost.Model, **options: Any) -> Array:
    executable = ost.compile(model, buckets={"B": [1], "T": [16]}, context=64, logits="all", **options)
    logits: Array = executable(input_ids=[IDS])["logits"]
    return logits


@pytest.mark.parametrize("name", SMALL_DECODERS)
def test_both_formats_give_the_same_logits_bit_for_bit(name: str, tmp_path: Path, seed: int) -> None:
    family, changes = SMALL_DECODERS[name]
    config = small_config(family, **changes)
    tensors = random_model(config, seed)
    ours = ost.load(write_hf_checkpoint(tmp_path / "m", config, tensors))
    theirs = ost.load(write_gguf(tmp_path / "m.gguf", config, tensors))
    assert ours.config.architecture == name
    assert theirs.config.architecture == ("llama" if name == "mistral" else name)
    assert (theirs.config.windows, theirs.config.embedding_scale) == (ours.config.windows, ours.config.embedding_scale)
    assert (theirs.config.local_rotary, theirs.config.qk_norm) == (ours.config.local_rotary, ours.config.qk_norm)
    expected = logits_of(ours)
    assert expected.std() > 0.1
    np.testing.assert_array_equal(logits_of(theirs), expected)


@pytest.mark.parametrize("name", SMALL_DECODERS)
def test_a_quantised_file_of_every_family_runs(name: str, tmp_path: Path, seed: int) -> None:
    family, changes = SMALL_DECODERS[name]
    config = small_config(family, **changes)
    tensors = random_model(config, seed)
    whole = logits_of(ost.load(write_gguf(tmp_path / "whole.gguf", config, tensors)))
    quantised = logits_of(ost.load(write_gguf(tmp_path / "quantised.gguf", config, tensors, DType.Q8_0)))
    assert 0 < np.abs(quantised - whole).max() < 0.5 * whole.std()


@pytest.mark.parametrize("name", SMALL_DECODERS)
def test_eager_equals_planned_and_bf16_stays_near_f32(name: str, tmp_path: Path, seed: int) -> None:
    family, changes = SMALL_DECODERS[name]
    config = small_config(family, **changes)
    model = ost.load(write_hf_checkpoint(tmp_path, config, random_model(config, seed)))
    planned = logits_of(model)
    np.testing.assert_array_equal(logits_of(model, mode="eager"), planned)
    half = logits_of(model, precision="bf16")
    assert 0 < np.abs(half - planned).max() < 0.5 * planned.std()


def model_of(directory: Path, family: str, **changes: Any) -> tuple[ost.Model, Tensors]:
    config = small_config(family, **changes)
    tensors = random_model(config, 1)
    return ost.load(write_hf_checkpoint(directory, config, tensors)), tensors


def parts(graph: Graph) -> dict[str, tuple[WeightPart, ...]]:
    return {item.value.name: item.parts for item in graph.with_role(Role.WEIGHT)}


def test_fused_projections_are_row_ranges_of_their_tensor(tmp_path: Path) -> None:
    model, _ = model_of(tmp_path, "phi3")
    found = parts(trace_forward(model))
    qkv, gate_up = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"
    assert found[f"{qkv}.rows_0_64"] == (WeightPart(qkv, 0, 64),)
    assert found[f"{qkv}.rows_64_96"] == (WeightPart(qkv, 64, 96),)
    assert found[f"{qkv}.rows_96_128"] == (WeightPart(qkv, 96, 128),)
    assert found[f"{gate_up}.rows_0_96"] == (WeightPart(gate_up, 0, 96),)
    assert found[f"{gate_up}.rows_96_192"] == (WeightPart(gate_up, 96, 192),)


def test_fused_projections_become_one_weight_again_under_their_own_name(tmp_path: Path) -> None:
    model, _ = model_of(tmp_path, "phi3")
    lowered = ost.trace(model).lower(dims={"B": 1, "T": 4})
    tensors = [[part.tensor for part in found] for found in parts(lowered.graph).values()]
    assert ["model.layers.0.self_attn.qkv_proj.weight"] * 3 in tensors
    assert ["model.layers.0.mlp.gate_up_proj.weight"] * 2 in tensors


@pytest.mark.parametrize("rows", [(0, 0), (-1, 4), (100, 129), (8, 4)])
def test_rows_that_a_tensor_does_not_have_are_refused(tmp_path: Path, rows: tuple[int, int]) -> None:
    model, _ = model_of(tmp_path, "phi3")
    weights = Weights(GraphBuilder("rows"), model.checkpoint.tensors, None)
    with pytest.raises(ost.WeightsError, match="are outside its 128 rows"):
        weights.matrix("model.layers.0.self_attn.qkv_proj.weight", (128, 64), rows=rows)


def test_a_fused_tensor_of_another_height_is_refused(tmp_path: Path) -> None:
    config = small_config("phi3")
    tensors = random_model(config, 1)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    tensors[name] = tensors[name][:-1]
    with pytest.raises(ost.WeightsError, match=r"expected shape \[128, 64\]"):
        ost.trace(ost.load(write_hf_checkpoint(tmp_path, config, tensors)))


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
def test_gains_that_are_stored_less_one_say_so_in_the_manifest(tmp_path: Path, family: str) -> None:
    model, tensors = model_of(tmp_path, family, **GEMMA)
    transforms = {part.tensor: part.transform for found in parts(trace_forward(model)).values() for part in found}
    assert {name for name, transform in transforms.items() if transform == "shift"} == {
        name for name, array in tensors.items() if array.ndim == 1
    }
    assert "none" in transforms.values()


@pytest.mark.parametrize(("dtype", "expected"), [("float32", math.sqrt(72)), ("bfloat16", 8.5), ("float16", 8.484375)])
def test_embeddings_are_scaled_in_the_precision_of_the_weights(tmp_path: Path, dtype: str, expected: float) -> None:
    config = small_config("gemma", **GEMMA, hidden_size=72, torch_dtype=dtype)
    stored = np.dtype({"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype])
    tensors: Tensors = {name: array.astype(stored) for name, array in random_model(config, 1).items()}
    model = ost.load(write_hf_checkpoint(tmp_path, config, tensors))
    assert model.config.embedding_scale == math.sqrt(72)
    (scale,) = [node for node in trace_forward(model).nodes if node.op == "scale"]
    assert scale.attrs["factor"] == float(np.float32(expected))
    (scale,) = [node for node in trace_forward(model, precision="f32").nodes if node.op == "scale"]
    assert scale.attrs["factor"] == float(np.float32(math.sqrt(72)))


def test_local_layers_turn_by_their_own_tables(tmp_path: Path) -> None:
    model, _ = model_of(
        tmp_path,
        "gemma3_text",
        **GEMMA,
        rope_theta=1e6,
        sliding_window_pattern=2,
        sliding_window=4,
        num_hidden_layers=4,
    )
    graph = trace_forward(model)
    turned = [node for node in graph.nodes if node.op == "rope_split_half"]
    tables = {node.results[0].name: str(node.operands[1]) for node in graph.nodes if node.op == "rotary_table"}
    assert set(tables.values()) == {"inverse_frequency", "local_inverse_frequency"}
    used = [tables[str(node.operands[1])] for node in turned[::2]]
    assert used == ["local_inverse_frequency", "inverse_frequency"] * 2
    windows = [node.attrs["window"] for node in graph.nodes if node.op == "attention_causal"]
    assert windows == [4, 0, 4, 0]


def test_soft_caps_of_null_are_off_and_absent_ones_are_the_published_ones(tmp_path: Path) -> None:
    off = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"))
    model, _ = model_of(tmp_path / "off", "gemma2", **GEMMA, **off)
    assert (model.config.attention_soft_cap, model.config.logit_soft_cap) == (0.0, 0.0)
    assert not [node for node in trace_forward(model).nodes if node.op == "tanh"]
    model, _ = model_of(tmp_path / "on", "gemma2", **GEMMA)
    assert (model.config.attention_soft_cap, model.config.logit_soft_cap) == (50.0, 30.0)
    assert model.config.score_scale == 256**-0.5


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma", {"hidden_act": "silu"}, "hidden_act 'silu'"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not part of this family"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attention_soft_cap is -1.0"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ost.ConfigError, match=message):
        model_of(tmp_path, family, **{**GEMMA, **changes})


def test_the_largest_gemmas_scale_scores_by_their_hidden_width_in_gguf_files(tmp_path: Path) -> None:
    for family, layers in (("gemma2", 46), ("gemma3_text", 62)):
        for count, width in ((layers, 64 / 4), (2, 32)):
            config = small_config(family, **GEMMA, num_hidden_layers=count, intermediate_size=8, vocab_size=8)
            with ost.load(write_gguf(tmp_path / "m.gguf", config, random_model(config, 1))).checkpoint as checkpoint:
                assert checkpoint.config.attention_scale == width**-0.5


def test_a_window_of_four_leaves_token_i_the_keys_from_i_minus_3(tmp_path: Path, seed: int) -> None:
    """In one layer: what lies further back changes nothing, what lies three back does."""
    config = small_config("mistral", num_hidden_layers=1, sliding_window=4)
    model = ost.load(write_hf_checkpoint(tmp_path, config, random_model(config, seed)))
    executable = ost.compile(model, buckets={"B": [1], "T": [6]}, context=16, logits="all")
    ids = [7, 11, 13, 17, 19, 23]
    before = executable(input_ids=[ids])["logits"][0]
    for changed in range(6):
        others = [*ids[:changed], 90, *ids[changed + 1 :]]
        after = executable(input_ids=[others])["logits"][0]
        moved = [bool((after[token] != before[token]).any()) for token in range(6)]
        assert moved == [changed <= token <= changed + 3 for token in range(6)]
