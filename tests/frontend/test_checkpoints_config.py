"""`config.json` in both spellings, and everything in it that would make a model silently wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import ConfigError, DTypeError, NotYetAvailable
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import random_model, small_config

_PATH = Path("model/config.json")


def read(architecture: str = "llama", **changes: Any) -> ModelConfig:
    return config_from_huggingface(small_config(architecture, **changes), _PATH, FAMILIES)


def test_both_spellings_of_rope_and_dtype_give_the_same_configuration() -> None:
    old = read(rope_theta=5e5, torch_dtype="bfloat16")
    new = read(
        rope_theta=..., torch_dtype=..., dtype="bfloat16", rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
    )
    assert old == new
    assert (old.rope_theta, old.dtype) == (5e5, DType.BF16)


def test_head_width_is_its_own_field() -> None:
    config = read(head_dim=32)
    assert (config.hidden_size, config.num_heads, config.head_dim, config.query_width) == (64, 4, 32, 128)
    assert read().head_dim == 16
    assert read(head_dim=None).head_dim == 16


def test_biases_follow_the_family() -> None:
    plain, biased, qwen = read(), read(attention_bias=True, mlp_bias=True), read("qwen2")
    assert (plain.attention_bias, plain.attention_output_bias, plain.mlp_bias) == (False, False, False)
    assert (biased.attention_bias, biased.attention_output_bias, biased.mlp_bias) == (True, True, True)
    assert (qwen.attention_bias, qwen.attention_output_bias, qwen.mlp_bias) == (True, False, False)


def test_published_parameter_counts() -> None:
    qwen = {"vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645}
    small = read(
        "qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        **qwen,
    )
    large = read(
        "qwen2",
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        **qwen,
    )
    assert (small.parameters, large.parameters) == (494_032_768, 1_777_088_000)


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 32}]
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_parameter_count_equals_the_tensors(architecture: str, changes: dict[str, Any]) -> None:
    raw = small_config(architecture, **changes)
    assert config_from_huggingface(raw, _PATH, FAMILIES).parameters == sum(
        array.size for array in random_model(raw, 0).values()
    )


def test_end_tokens_of_the_generation_configuration_win() -> None:
    assert read(eos_token_id=[2, 3, 2]).eos_token_ids == (2, 3)
    assert read(eos_token_id=None).eos_token_ids == ()
    assert config_from_huggingface(small_config(), _PATH, FAMILIES, {"eos_token_id": [5, 6]}).eos_token_ids == (5, 6)
    assert config_from_huggingface(small_config(), _PATH, FAMILIES, {"do_sample": True}).eos_token_ids == (2,)


def test_negative_padding_means_none() -> None:
    assert read(pad_token_id=-1).pad_token_id is None
    assert read(pad_token_id=0).pad_token_id == 0


def test_class_name_replaces_a_missing_model_type() -> None:
    assert read(model_type=..., architectures=["Qwen2ForCausalLM"]).architecture == "qwen2"
    assert read(model_type=..., architectures=["LlamaForCausalLM"]).architecture == "llama"
    with pytest.raises(ConfigError, match="model_type"):
        read(model_type=..., architectures=["ElmanForCausalLM"])


def test_mistral_without_window_is_a_llama() -> None:
    assert read("mistral", sliding_window=None).architecture == "llama"
    with pytest.raises(NotYetAvailable, match="sliding-window"):
        read("mistral")  # the published default is a window of 4096
    with pytest.raises(NotYetAvailable, match="sliding-window"):
        read("mistral", sliding_window=4096)


def test_windows_that_are_off_are_accepted() -> None:
    assert read("qwen2", use_sliding_window=False, sliding_window=32768).architecture == "qwen2"
    assert read("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=2).num_layers == 2
    assert read("qwen2", layer_types=["full_attention"] * 2).num_layers == 2
    for active in (
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ):
        with pytest.raises(NotYetAvailable, match="sliding-window"):
            read("qwen2", **active)


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3", "longrope"])
def test_rotary_scaling_is_refused_in_every_spelling(place: str, key: str, kind: str) -> None:
    with pytest.raises(NotYetAvailable, match=kind):
        read(**dict[str, Any]({place: {key: kind, "factor": 8.0}}))


def test_plain_rotary_is_accepted_in_every_spelling() -> None:
    assert (
        read(rope_scaling=None)
        == read(rope_scaling={"type": "default"})
        == read(rope_parameters={"rope_type": "default"})
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 60}, "6 heads cannot share 4"),
        ({"head_dim": 15}, "even width"),
        ({"hidden_size": 66}, "not a multiple of 4 heads"),
        ({"hidden_size": 0, "head_dim": 16}, "hidden_size is 0"),
        ({"num_attention_heads": 0}, "0 heads"),
        ({"num_hidden_layers": -1}, "num_layers is -1"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"vocab_size": "96"}, "vocab_size is '96', expected an integer"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"vocab_size": 2**50, "hidden_size": 2**20}, "parameters are more than"),
        ({"eos_token_id": 96}, "eos_token_id 96 is outside the vocabulary of 96"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
        ({"rope_scaling": {"type": "spiral"}}, "unknown rotary kind 'spiral'"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "disagree"),
        ({"rope_scaling": {"factor": 2.0}}, "without a rope_type"),
        ({"rope_scaling": {"mrope_section": [1, 2, 3]}}, "MRoPE"),
        ({"rope_scaling": {"type": "mrope"}}, "MRoPE"),
        ({"rope_scaling": 3}, "expected an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "per layer type"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "given twice"),
    ],
)
def test_unusable_configurations_are_refused_when_read(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_missing_key_value_heads_mean_one_each_only_where_that_is_the_published_default() -> None:
    assert read(num_key_value_heads=...).num_kv_heads == 4
    with pytest.raises(ConfigError, match="num_key_value_heads is missing"):
        read("qwen2", num_key_value_heads=...)


def test_unknown_architecture_names_the_supported_ones() -> None:
    with pytest.raises(ConfigError, match=r"'mamba' is not supported[\s\S]*llama, qwen2"):
        read("mamba")


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match="float8_e4m3fn"):
        read(torch_dtype="float8_e4m3fn")
    assert read(torch_dtype=...).dtype is None


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().rope_theta = 1.0  # type: ignore[misc]


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"(?s)cannot share.*even width.*rms_norm_eps"):
        read(num_key_value_heads=3, head_dim=15, rms_norm_eps=-1.0)
