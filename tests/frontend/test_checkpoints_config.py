"""`config.json` in both spellings, and everything in it that would make a model silently wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import small_config

_PATH = Path("model/config.json")


def read(architecture: str = "llama", **changes: Any) -> ModelConfig:
    return config_from_huggingface(small_config(architecture, **changes), _PATH, FAMILIES)


def test_both_spellings_of_rope_and_dtype_give_the_same_configuration() -> None:
    old = read(rope_theta=5e5, torch_dtype="bfloat16")
    new = read(
        rope_theta=..., torch_dtype=..., dtype="bfloat16", rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
    )
    assert old == new
    assert (old.rotary, old.dtype) == (Rotary(theta=5e5, width=16), DType.BF16)


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


def test_a_window_of_null_or_zero_or_switched_off_is_none() -> None:
    for off in ({"sliding_window": None}, {"sliding_window": 0}, {"sliding_window": 4, "use_sliding_window": False}):
        config = read("mistral", **off)
        assert (config.architecture, config.windows) == ("mistral", ())
        assert [config.window(layer) for layer in (0, 1)] == [0, 0]
    assert read("mistral", sliding_window=8).windows == (8, 8)
    assert read("mistral").windows == (4096, 4096)  # the published default


def test_windows_of_qwen_need_their_switch() -> None:
    for family in ("qwen2", "qwen3"):
        assert read(family, use_sliding_window=False, sliding_window=32768).windows == ()
        assert read(family, sliding_window=4).windows == ()
        on = {"use_sliding_window": True, "sliding_window": 4}
        assert read(family, max_window_layers=2, **on).windows == ()
        assert read(family, max_window_layers=1, **on).windows == (0, 4)
        assert read(family, max_window_layers=0, **on).windows == (4, 4)
        assert read(family, layer_types=["full_attention"] * 2).windows == ()
        assert read(family, layer_types=["sliding_attention", "full_attention"], **on).windows == (4, 0)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is off"),
        ("qwen2", {"layer_types": ["full_attention"]}, "expected a list of 2"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": -1, "max_window_layers": 0}, "negative"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "one kind of layer"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "one kind of layer"),
        ("phi3", {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, "one kind of layer"),
        ("mistral", {"sliding_window": "8"}, "expected an integer"),
        ("llama", {"use_sliding_window": True}, "not part of this family"),
        ("llama", {"layer_types": ["sliding_attention"] * 2}, "sliding_window is off"),
        ("gemma3_text", {"sliding_window": None}, "local layers of this family need one"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    ],
)
def test_windows_that_cannot_be_computed_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(family, **changes)


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
        ({"rms_norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"rms_norm_eps": float("nan")}, "norm_eps is nan"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"vocab_size": "96"}, "vocab_size is '96', expected an integer"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        (
            {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 4, "num_hidden_layers": 4096, "head_dim": 16},
            "parameters are more than",
        ),
        ({"eos_token_id": 96}, "eos_token_id 96 is outside the vocabulary of 96"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
        ({"rope_scaling": {"type": "spiral"}}, "unknown rotary kind 'spiral'"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "disagree"),
        ({"rope_scaling": {"factor": 2.0}}, "without a rope_type"),
        ({"rope_scaling": {"mrope_section": [1, 2, 3]}}, "MRoPE"),
        ({"rope_scaling": {"type": "mrope"}}, "MRoPE"),
        ({"rope_scaling": 3}, "expected an object"),
        ({"rope_parameters": {"full_attention": None}}, "per layer type has 'full_attention': None"),
        ({"rope_parameters": {"other_attention": {}}}, "per layer type has 'other_attention'"),
        ({"rope_parameters": {"sliding_attention": {}}}, "full_attention is not among them"),
        ({"rope_parameters": {"full_attention": {}}, "rope_scaling": {"type": "default"}}, "for all layers and per"),
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
    with pytest.raises(ConfigError, match=r"'mamba' is not supported[\s\S]*llama"):
        read("mamba")


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match="float8_e4m3fn"):
        read(torch_dtype="float8_e4m3fn")
    assert read(torch_dtype=...).dtype is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windows": (4,)}, "1 layers have a window or none, 2 need one each"),
        ({"windows": (4, -4)}, r"windows \[-4\] are negative"),
        ({"local_rotary": Rotary(width=16)}, "no layer has a window"),
        ({"rotary": Rotary(width=32)}, "rotary width 32 is more than the head width 16"),
        ({"rotary": Rotary(width=16, kind="spiral")}, "rotary kind 'spiral' is unknown"),
        ({"rotary": Rotary(width=16, divisors=(1.0,))}, "divisors has 1 numbers, 8 pairs need one each"),
        ({"activation": "relu"}, "activation 'relu' is unknown"),
        ({"attention_scale": 0.0}, "attention_scale is 0.0"),
        ({"embedding_scale": float("nan")}, "embedding_scale is nan"),
        ({"logit_soft_cap": -1.0}, "logit_soft_cap is -1.0"),
    ],
)
def test_records_that_no_model_could_run_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(read(), **change)


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().norm_eps = 1.0  # type: ignore[misc]


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"(?s)cannot share.*norm_eps.*even width"):
        read(num_key_value_heads=3, head_dim=15, rms_norm_eps=-1.0)
