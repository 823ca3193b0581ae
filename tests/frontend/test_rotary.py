"""Rotary kinds: the published formulas, every spelling of them in both formats, and what is refused.

The formulas are restated here in float64, pair by pair; where torch is installed they are compared with transformers' own functions too.
"""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.checkpoints import GgufCheckpoint, ModelConfig, open_checkpoint
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.errors import ConfigError, LifecycleError, WeightsError
from ostinato.ir.interp import interpret
from ostinato.ir.types import Array, DType, TensorType
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint

_PATH = Path("model/config.json")
WIDTHS = (2, 16, 64, 80, 128)
THETAS = (10000.0, 5e5, 1e6)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}


def factors(pairs: int, most: float) -> list[float]:
    return [float(value) for value in np.linspace(1.0, most, pairs)]


def longrope(width: int) -> dict[str, Any]:
    return {
        "short_factor": factors(width // 2, 1.5),
        "long_factor": factors(width // 2, 40.0),
        "original_max_position_embeddings": 4096,
    }


def read(family: str = "llama", **changes: Any) -> ModelConfig:
    return config_from_huggingface(small_config(family, **changes), _PATH, FAMILIES)


def rotary_of(family: str = "llama", **changes: Any) -> Rotary:
    found = read(family, **changes).rotary
    assert found is not None
    return found


def scaled(kind: str, width: int, theta: float, **numbers: Any) -> Rotary:
    return rotary_of(head_dim=width, rope_theta=theta, rope_scaling={"rope_type": kind, **numbers})


def plain(width: int, theta: float) -> list[float]:
    return [theta ** (-2 * pair / width) for pair in range(width // 2)]


def close(found: Array, expected: list[float]) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theta", THETAS)
def test_default_frequencies_follow_the_published_formula(width: int, theta: float) -> None:
    close(rotary_of(head_dim=width, rope_theta=theta).frequencies(), plain(width, theta))


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.5])
def test_linear_frequencies_are_divided_by_the_factor(factor: float) -> None:
    close(scaled("linear", 64, 1e4, factor=factor).frequencies(), [f / factor for f in plain(64, 1e4)])


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("trained", [32, 4096, 32768])
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_frequencies_follow_the_published_formula(theta: float, trained: int, truncate: bool) -> None:
    width, factor, fast, slow = 128, 4.0, 24.0, 2.0
    low, high = (width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    expected = []
    for pair, frequency in enumerate(plain(width, theta)):
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        expected.append(frequency * (1 - ramp) + frequency / factor * ramp)
    numbers = {"beta_fast": fast, "beta_slow": slow, "truncate": truncate, "original_max_position_embeddings": trained}
    close(scaled("yarn", width, theta, factor=factor, **numbers).frequencies(), expected)


def test_yarn_raises_the_temperature_as_published() -> None:
    assert scaled("yarn", 64, 1e4, **YARN).attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert scaled("yarn", 64, 1e4, attention_factor=1.5, **YARN).attention_factor == 1.5
    weighted = scaled("yarn", 64, 1e4, mscale=0.7, mscale_all_dim=0.4, **YARN).attention_factor
    assert weighted == pytest.approx((0.07 * math.log(4) + 1) / (0.04 * math.log(4) + 1))
    assert scaled("yarn", 64, 1e4, factor=1.0).attention_factor == 1.0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theta", THETAS)
def test_llama3_frequencies_follow_the_published_formula(width: int, theta: float) -> None:
    expected = []
    for frequency in plain(width, theta):
        turns = 8192 * frequency / (2 * math.pi)  # over the trained length
        smooth = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    close(scaled("llama3", width, theta, **LLAMA3).frequencies(), expected)


def test_longrope_divides_by_one_list_or_the_other() -> None:
    rotary = scaled("longrope", 32, 1e4, **longrope(32))
    for numbers in (rotary.short_factor, rotary.long_factor):
        expected = [f / n for f, n in zip(plain(32, 1e4), numbers, strict=True)]
        close(rotary.scaled_frequencies(numbers), expected)
    growth = 256 / 4096  # max_position_embeddings of the small configuration: no growth, no factor
    assert (rotary.factor, rotary.attention_factor) == (growth, 1.0)
    grown = scaled("longrope", 32, 1e4, factor=32.0, **longrope(32)).attention_factor
    assert grown == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def angles(rotary: Rotary, position: int, length: int) -> Array:
    """The angle of every pair at that position of a sequence of that length, in (-pi, pi], through the operators that a model uses."""
    builder = GraphBuilder("tables")
    at = builder.input("position", TensorType((1,), DType.I32, ("N",)))
    sizes = builder.input("length", TensorType((1,), DType.I32, ("N",)))
    if rotary.kind == "dynamic":
        cos, sin = F.rotary_table_dynamic(
            at,
            sizes,
            theta=rotary.theta,
            width=rotary.width,
            factor=rotary.factor,
            original_positions=rotary.original_positions,
        )
    else:
        short, long = (
            builder.constant(name, rotary.scaled_frequencies(numbers))
            for name, numbers in (("short", rotary.short_factor), ("long", rotary.long_factor))
        )
        cos, sin = F.rotary_table_longrope(at, sizes, short, long, original_positions=rotary.original_positions)
    inputs = {"position": np.array([position], np.int32), "length": np.array([length], np.int32)}
    outputs = interpret(builder.finish([cos, sin]), inputs).outputs
    angle: Array = np.arctan2(outputs[sin.name][0].astype(np.float64), outputs[cos.name][0])
    return angle


@pytest.mark.parametrize("length", [1, 256, 257, 300, 5000])
def test_dynamic_base_grows_past_the_configured_length(length: int) -> None:
    rotary = scaled("dynamic", 64, 1e4, factor=4.0)
    grown = 1e4 * (4.0 * max(length, 256) / 256 - 3.0) ** (64 / 62)
    np.testing.assert_allclose(angles(rotary, 1, length), plain(64, grown), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [1, 4096, 4097])
def test_longrope_is_long_past_the_trained_length(length: int) -> None:
    rotary = scaled("longrope", 32, 1e4, **longrope(32))
    numbers = rotary.long_factor if length > 4096 else rotary.short_factor
    np.testing.assert_allclose(angles(rotary, 1, length), rotary.scaled_frequencies(numbers), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_depend_on_a_length_are_not_given_without_one(kind: str) -> None:
    config = read(head_dim=32, rope_scaling={"rope_type": kind, **longrope(32), "factor": 2.0})
    assert config.depends_on_length
    assert config.rotary is not None
    with pytest.raises(LifecycleError, match="depend on the length"):
        config.rotary.frequencies()


@pytest.mark.parity
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("width", [16, 64, 80, 128])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("linear", {"factor": 2.5}),
        ("dynamic", {"factor": 4.0}),
        ("yarn", YARN),
        ("yarn", {**YARN, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False}),
        ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.5}),
        ("llama3", LLAMA3),
        ("longrope", None),
    ],
)
def test_frequencies_equal_those_of_transformers(
    kind: str, numbers: dict[str, Any] | None, width: int, theta: float
) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    functions = importlib.import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    scaling = {"rope_type": kind, **(longrope(width) if numbers is None else numbers)}
    keys = small_config("llama", head_dim=width, rope_theta=theta, rope_scaling=scaling)
    theirs = transformers.LlamaConfig(**json.loads(json.dumps(keys)))
    ours = config_from_huggingface(keys, _PATH, FAMILIES).rotary
    assert ours is not None
    for length in (200, 256, 4096, 4097, 20000):
        expected, attention_factor = functions[kind](theirs, seq_len=length)
        assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-7)
        if not ours.depends_on_length:
            np.testing.assert_allclose(ours.frequencies(), expected.numpy(), rtol=1e-6, atol=0)
        else:
            np.testing.assert_allclose(angles(ours, 1, length), expected.numpy(), rtol=0, atol=1e-6)


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", **YARN},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "longrope", **longrope(16)},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_every_spelling_of_rotary_scaling_gives_the_same_embedding(scaling: dict[str, Any]) -> None:
    typed = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    old = rotary_of(rope_theta=5e5, rope_scaling=scaling)
    assert (old.kind, old.theta) == (scaling["rope_type"], 5e5)
    for changes in (
        {"rope_theta": 5e5, "rope_scaling": typed},
        {"rope_theta": 5e5, "rope_scaling": scaling | typed},
        {"rope_theta": ..., "rope_parameters": {**scaling, "rope_theta": 5e5}},
        {"rope_theta": ..., "rope_parameters": {**typed, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": {**scaling, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": scaling, "rope_scaling": typed},
        {"rope_theta": 5e5, "rope_parameters": {"full_attention": scaling}},
        {"rope_theta": ..., "rope_parameters": {"full_attention": {**scaling, "rope_theta": 5e5}}},
    ):
        assert rotary_of(**dict[str, Any](changes)) == old


def test_layers_with_a_window_may_have_a_rotary_embedding_of_their_own() -> None:
    parameters = {
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 2e4},
    }
    windows = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    for family in ("qwen2", "qwen3", "gemma3_text"):
        config = read(family, rope_theta=..., head_dim=16, rope_parameters=parameters, **windows)
        assert config.rotary == Rotary(kind="linear", theta=1e6, width=16, factor=8.0)
        assert config.local_rotary == Rotary(theta=2e4, width=16)
    same = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e6}}
    assert read("qwen2", rope_theta=..., rope_parameters=same, **windows).local_rotary is None
    assert read("qwen2", rope_theta=..., rope_parameters=parameters).local_rotary is None  # no layer has a window


def test_scaling_of_gemma3_in_the_flat_spelling_leaves_local_layers_alone() -> None:
    config = read("gemma3_text", rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert config.rotary == Rotary(kind="linear", theta=1e6, width=256, factor=8.0)
    assert config.local_rotary == Rotary(theta=10000.0, width=256)
    assert read("gemma3_text", rope_local_base_freq=777.0).local_rotary == Rotary(theta=777.0, width=256)
    assert rotary_of("gemma3_text", rope_theta=...).theta == 1e6  # the family's default


def test_a_part_of_the_head_turns_only_in_a_family_that_defines_it() -> None:
    assert rotary_of("phi3", head_dim=32, partial_rotary_factor=0.75).width == 24
    assert rotary_of("phi3", head_dim=32, rope_theta=..., rope_parameters={"partial_rotary_factor": 0.5}).width == 16
    for family in ("llama", "qwen3", "mistral"):
        with pytest.raises(ConfigError, match="partial rotary"):
            read(family, partial_rotary_factor=0.75)
    with pytest.raises(ConfigError, match="even width"):
        read("phi3", head_dim=20, partial_rotary_factor=0.75)


def test_names_that_older_phi3_files_use_mean_longrope() -> None:
    numbers = longrope(16)
    for kind in ("su", "yarn", "longrope"):
        assert rotary_of("phi3", rope_scaling={"type": kind, **numbers}).kind == "longrope"
    with pytest.raises(ConfigError, match="unknown rotary kind 'su'"):
        read("llama", rope_scaling={"type": "su", **numbers})


def test_the_trained_length_beside_the_rotary_parameters_wins() -> None:
    outside = rotary_of("phi3", original_max_position_embeddings=64, rope_scaling={"type": "longrope", **longrope(16)})
    assert (outside.original_positions, outside.factor) == (64, 4.0)
    assert outside.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))
    assert (
        scaled("yarn", 16, 1e4, factor=2.0).original_positions == 256
    )  # max_position_embeddings where nothing is given


def test_positions_reach_as_far_as_the_scaling_stretches_them() -> None:
    assert read().context_limit == 256
    assert read(rope_scaling={"type": "dynamic", "factor": 4.0}).context_limit == 1024
    assert read(rope_scaling={"type": "yarn", "factor": 4.0}).context_limit == 1024
    stretched = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert read(rope_scaling=stretched).context_limit == 256  # written in the configuration already
    assert read(rope_scaling={"type": "linear", "factor": 4.0}).context_limit == 256


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "spiral"}, "unknown rotary kind 'spiral'"),
        ({"rope_type": "linear"}, "needs factor"),
        ({"rope_type": "linear", "factor": "2"}, "expected a number"),
        ({"rope_type": "linear", "factor": 0.0}, "factor is 0.0"),
        ({"rope_type": "dynamic"}, "needs factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor"),
        ({"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}, "low_freq_factor 4.0 is not between"),
        ({"rope_type": "yarn", **YARN, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_slow 2.0 is not between"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}, "starts from 0 positions"),
        ({"rope_type": "longrope", **longrope(16), "short_factor": [1.0]}, "short_factor has 1 numbers, 8 pairs"),
        ({"rope_type": "longrope", **longrope(16), "long_factor": None}, "long_factor is missing, expected a list"),
        ({"rope_type": "longrope", **longrope(16), "long_factor": [0.0] * 8}, "not finite and positive"),
    ],
)
def test_unusable_rotary_parameters_are_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(rope_scaling=scaling)


def test_an_edited_configuration_object_has_no_effect_after_loading(tmp_path: Path, seed: int) -> None:
    raw = small_config("llama", rope_scaling={"rope_type": "longrope", **longrope(16)}, eos_token_id=[2, 3])
    config = config_from_huggingface(raw, _PATH, FAMILIES)
    kept = replace(config)
    raw["rope_scaling"]["short_factor"][0] = 99.0
    raw["rope_scaling"]["original_max_position_embeddings"] = 7
    raw["eos_token_id"].append(4)
    raw["rope_theta"] = 1.0
    assert config == kept
    assert config.rotary is not None
    with pytest.raises(AttributeError):
        config.rotary.theta = 5.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.rotary.short_factor[0] = 5.0  # type: ignore[index]

    write_hf_checkpoint(tmp_path, small_config(), random_model(small_config(), seed))
    checkpoint = open_checkpoint(tmp_path, FAMILIES)
    (tmp_path / "config.json").write_text("{}")  # nor has the file
    assert checkpoint.config == config_from_huggingface(small_config(), _PATH, FAMILIES)


def from_gguf(path: Path, family: str, metadata: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    config = small_config(family, **changes)
    write_gguf(path / "m.gguf", config, random_model(config, 0), metadata=metadata)
    with GgufCheckpoint(path / "m.gguf", FAMILIES, path / "cache") as checkpoint:
        return checkpoint.config


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "scaling", [{"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", **YARN}], ids=["linear", "yarn"]
)
def test_gguf_metadata_gives_the_same_embedding(tmp_path: Path, family: str, scaling: dict[str, Any]) -> None:
    keys: dict[str, Any] = {"head_dim": 16, "rope_scaling": scaling}
    found, expected = from_gguf(tmp_path, family, **keys).rotary, rotary_of(family, **keys)
    assert found is not None
    assert (found.kind, found.attention_factor) == (expected.kind, expected.attention_factor)
    np.testing.assert_array_equal(found.frequencies(), expected.frequencies())


def test_gguf_divisors_give_the_frequencies_of_llama3(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 64}
    found = from_gguf(tmp_path, "llama", head_dim=64, rope_scaling=scaling).rotary
    assert found is not None
    expected = rotary_of(head_dim=64, rope_scaling=scaling).frequencies()
    np.testing.assert_allclose(found.frequencies(), expected, rtol=1e-6, atol=0)
    assert np.abs(expected / found.scaled_frequencies((1.0,) * 32) - 1).max() > 0.5  # they do scale


def test_gguf_factors_are_longrope_with_or_without_its_name(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", **longrope(16)},
    }
    expected = rotary_of("phi3", **keys)
    for metadata in ({}, {"phi3.rope.scaling.type": "longrope"}):
        found = from_gguf(tmp_path, "phi3", metadata=metadata, **keys).rotary
        assert found is not None
        assert (found.kind, found.width, found.original_positions) == ("longrope", 16, 64)
        assert found.attention_factor == pytest.approx(expected.attention_factor, rel=1e-7)
        np.testing.assert_array_equal(found.short_factor, np.array(expected.short_factor, np.float32))
        np.testing.assert_array_equal(found.long_factor, np.array(expected.long_factor, np.float32))


def test_gguf_factor_without_a_kind_means_linear(tmp_path: Path) -> None:
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        found = from_gguf(tmp_path, "llama", metadata={f"llama.{key}": 4.0}).rotary
        assert found == Rotary(kind="linear", width=16, factor=4.0)
    assert from_gguf(tmp_path, "llama", metadata={"llama.rope.scale_linear": 0.0}).rotary == Rotary(width=16)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"rope.scaling.type": "spiral"}, ConfigError, "unknown rotary kind 'spiral'"),
        ({"rope.scaling.type": "longrope"}, WeightsError, r"no rope_factors_short\.weight"),
        ({"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5}, ConfigError, "yarn_ext_factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1}, ConfigError, "yarn_log_multiplier"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}, ConfigError, "factor is -2.0"),
    ],
)
def test_unusable_gguf_metadata_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_gguf(tmp_path, "llama", metadata={f"llama.{key}": value for key, value in metadata.items()})
