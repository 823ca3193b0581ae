"""Configurations and inputs that other systems read wrongly without a word: head widths, head ratios, strided token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.model import trace_forward
from ostinato.ir.graph import Role
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


def model_of(directory: Path, family: str = "llama", **changes: Any) -> ost.Model:
    config = small_config(family, **changes)
    return ost.load(write_hf_checkpoint(directory, config, random_model(config, 7)))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"])
def test_the_width_of_a_head_need_not_be_hidden_by_heads(tmp_path: Path, family: str) -> None:
    model = model_of(tmp_path, family, hidden_size=64, num_attention_heads=4, head_dim=32)
    shapes = {item.value.name: item.value.type.shape for item in trace_forward(model).with_role(Role.WEIGHT)}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (128, 64)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (64, 64)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (64, 128)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"])
def test_heads_that_cannot_share_keys_are_found_when_the_configuration_is_read(tmp_path: Path, family: str) -> None:
    with pytest.raises(ost.ConfigError, match="6 heads cannot share 4 key/value heads"):
        model_of(tmp_path, family, num_attention_heads=6, num_key_value_heads=4, head_dim=16)


def test_token_ids_in_any_memory_order_equal_their_contiguous_copy(tmp_path: Path, rng: np.random.Generator) -> None:
    executable = ost.compile(model_of(tmp_path), buckets={"B": [4], "T": [4]}, context=8)
    ids = rng.integers(0, 96, (4, 4), dtype=np.int32)
    wide = rng.integers(0, 96, (8, 8), dtype=np.int32)

    def logits(array: Array) -> Array:
        found: Array = executable(input_ids=array)["logits"]
        return found

    for view in (ids.T, np.asfortranarray(ids), ids[::-1], ids[:, ::-1], wide[::2, ::2], wide[1::2, 7:3:-1]):
        np.testing.assert_array_equal(logits(view), logits(np.ascontiguousarray(view)))
    assert (logits(ids.T) != logits(ids)).any()  # the test can tell them apart
