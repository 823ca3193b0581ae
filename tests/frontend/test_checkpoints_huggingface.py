"""Hugging Face directories: which files count, tied heads, and what is refused."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ostinato.frontend.checkpoints import HEAD, open_checkpoint
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import ConfigError, LifecycleError, WeightsError
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import Tensors, random_model, small_config, write_hf_checkpoint, write_safetensors
from tests.frontend.make_tokenizers import train

_INDEX = "model.safetensors.index.json"


def make(
    directory: Path, seed: int, shards: int = 1, architecture: str = "llama", index: bool = True, **changes: Any
) -> Tensors:
    config = small_config(architecture, **changes)
    tensors = random_model(config, seed)
    write_hf_checkpoint(directory, config, tensors, shards, index)
    return tensors


def edit_index(directory: Path, **entries: Any) -> None:
    """Changes weight_map entries; `...` removes one."""
    path = directory / _INDEX
    index = json.loads(path.read_text())
    index["weight_map"].update(entries)
    index["weight_map"] = {key: value for key, value in index["weight_map"].items() if value is not ...}
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_the_written_ones(tmp_path: Path, seed: int, architecture: str, shards: int) -> None:
    tensors = make(tmp_path, seed, shards, architecture)
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert (checkpoint.format, checkpoint.path) == ("safetensors", tmp_path)
        assert set(checkpoint.tensors) == set(tensors)
        assert checkpoint.nbytes == sum(array.nbytes for array in tensors.values())
        assert checkpoint.ignored_files == ()
        for name, expected in tensors.items():
            source = checkpoint.tensors[name]
            assert (source.shape, source.dtype, source.row_order) == (expected.shape, DType.F32, None)
            assert checkpoint.map(name).tobytes() == expected.tobytes()
            checkpoint.release(name)
            assert checkpoint.map(source).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_bit_exact(tmp_path: Path, seed: int, dtype: Any) -> None:
    config = small_config()
    tensors = {name: array.astype(dtype) for name, array in random_model(config, seed).items()}
    write_hf_checkpoint(tmp_path, config, tensors)
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        for name, expected in tensors.items():
            assert checkpoint.tensors[name].dtype is DType.of(dtype)
            assert checkpoint.map(name).tobytes() == expected.tobytes()


def test_an_absent_shard_is_refused_by_name(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(
        WeightsError, match=r"2 of 3 weight files.*model-00002-of-00003\.safetensors, model-00003-of-00003"
    ):
        open_checkpoint(tmp_path, FAMILIES)


def test_a_stray_file_beside_the_index_is_ignored_and_reported(tmp_path: Path, seed: int) -> None:
    tensors = make(tmp_path, seed, shards=2)
    write_safetensors(tmp_path / "stray.safetensors", {name: array + 1 for name, array in tensors.items()})
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert [path.name for path in checkpoint.ignored_files] == ["stray.safetensors"]
        assert checkpoint.map("model.norm.weight").tobytes() == tensors["model.norm.weight"].tobytes()


def test_a_stray_file_beside_the_single_file_is_ignored_and_reported(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed)
    write_safetensors(tmp_path / "consolidated.safetensors", {"x": np.zeros(1, dtype=np.float32)})
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert [path.name for path in checkpoint.ignored_files] == ["consolidated.safetensors"]


def test_shards_without_an_index_are_refused(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed, shards=2, index=False)
    with pytest.raises(WeightsError, match="several weight files"):
        open_checkpoint(tmp_path, FAMILIES)


@pytest.mark.parametrize(
    "shard",
    ["../outside.safetensors", "/etc/passwd", "a/../../b.safetensors", "C:\\x.safetensors", "..\\x.safetensors"],
)
def test_shard_paths_that_leave_the_directory_are_refused(tmp_path: Path, seed: int, shard: str) -> None:
    make(tmp_path, seed, shards=2)
    edit_index(tmp_path, **{"model.norm.weight": shard})
    with pytest.raises(WeightsError, match="leaves the directory"):
        open_checkpoint(tmp_path, FAMILIES)


def test_index_and_shards_must_agree(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "absent", seed, shards=2)
    edit_index(tmp_path / "absent", extra="model-00001-of-00002.safetensors")
    with pytest.raises(WeightsError, match="absent: extra"):
        open_checkpoint(tmp_path / "absent", FAMILIES)
    make(tmp_path / "unlisted", seed, shards=2)
    edit_index(tmp_path / "unlisted", **{"model.norm.weight": ...})
    with pytest.raises(WeightsError, match=r"does not place there: model\.norm\.weight"):
        open_checkpoint(tmp_path / "unlisted", FAMILIES)


def test_duplicates_across_shards_are_refused(tmp_path: Path, seed: int) -> None:
    tensors = make(tmp_path, seed, shards=2)
    second = {name: tensors[name] for name in list(tensors)[len(tensors) // 2 :]}
    write_safetensors(
        tmp_path / "model-00002-of-00002.safetensors",
        {**second, "model.embed_tokens.weight": tensors["model.embed_tokens.weight"]},
    )
    with pytest.raises(WeightsError, match=r"model\.embed_tokens\.weight is stored twice"):
        open_checkpoint(tmp_path, FAMILIES)


@pytest.mark.parametrize("weight_map", [{}, None, [], "x"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, seed: int, weight_map: Any) -> None:
    make(tmp_path, seed)
    (tmp_path / _INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match="weight_map"):
        open_checkpoint(tmp_path, FAMILIES)


@pytest.mark.parametrize("entry", [{"a": 1}, {"a": ""}, {"": "model.safetensors"}, {"a": None}])
def test_malformed_index_entries_are_refused(tmp_path: Path, seed: int, entry: dict[str, Any]) -> None:
    make(tmp_path, seed)
    (tmp_path / _INDEX).write_text(json.dumps({"weight_map": entry}))
    with pytest.raises(WeightsError, match="does not name"):
        open_checkpoint(tmp_path, FAMILIES)


def test_a_tied_head_may_be_absent(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed, tie_word_embeddings=True)
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert checkpoint.config.tie_word_embeddings
        assert HEAD not in checkpoint.tensors


def test_a_tied_head_that_is_stored_must_equal_the_embedding(tmp_path: Path, seed: int) -> None:
    config = small_config(tie_word_embeddings=True)
    tensors = random_model(config, seed)
    embedding = tensors["model.embed_tokens.weight"]
    write_hf_checkpoint(tmp_path / "equal", config, {**tensors, HEAD: embedding.copy()}, shards=2)
    with open_checkpoint(tmp_path / "equal", FAMILIES) as checkpoint:
        assert HEAD not in checkpoint.tensors
        assert checkpoint.ignored_tensors == (HEAD,)
    other = embedding.copy()
    other[-1, -1] = np.nextafter(other[-1, -1], np.float32(9))
    for head in (other, embedding[:-1], embedding.astype(np.float16)):
        write_hf_checkpoint(tmp_path / "conflict", config, {**tensors, HEAD: head})
        with pytest.raises(WeightsError, match="differs from"):
            open_checkpoint(tmp_path / "conflict", FAMILIES)


def test_an_untied_head_must_exist(tmp_path: Path, seed: int) -> None:
    config = small_config()
    tensors = random_model(config, seed)
    del tensors[HEAD]
    write_hf_checkpoint(tmp_path, config, tensors)
    with pytest.raises(WeightsError, match="does not tie the head"):
        open_checkpoint(tmp_path, FAMILIES)


def test_stored_rotary_frequencies_are_ignored_and_unknown_tensors_are_kept(tmp_path: Path, seed: int) -> None:
    config = small_config()
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors = {
        **random_model(config, seed),
        buffer: np.ones(8, dtype=np.float32),
        "extra.weight": np.ones(2, dtype=np.float32),
    }
    write_hf_checkpoint(tmp_path, config, tensors)
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert checkpoint.ignored_tensors == (buffer,)
        assert "extra.weight" in checkpoint.tensors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "expected an object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 700\n", "Git LFS pointer"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
    ],
)
def test_damaged_configurations_are_refused(tmp_path: Path, seed: int, content: bytes, message: str) -> None:
    make(tmp_path, seed)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises((ConfigError, WeightsError), match=message):
        open_checkpoint(tmp_path, FAMILIES)


def test_unknown_names_and_closed_checkpoints_are_typed_errors(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed)
    checkpoint = open_checkpoint(tmp_path, FAMILIES)
    with pytest.raises(WeightsError, match="no tensor 'nope'"):
        checkpoint.map("nope")
    view = checkpoint.map("model.norm.weight")
    checkpoint.close()
    checkpoint.close()
    assert view.size == 256
    with pytest.raises(LifecycleError):
        checkpoint.map("model.norm.weight")
    with pytest.raises(LifecycleError):
        checkpoint.release("model.norm.weight")


def test_tokenizer_and_templates_of_the_directory(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed)
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert checkpoint.chat_template is None
        assert not checkpoint.has_tokenizer
        with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
            checkpoint.tokenizer()
    train().save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, Any] = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "add_bos_token": True,
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert checkpoint.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert checkpoint.chat_template == "D"
        assert checkpoint.has_tokenizer
        tokenizer = checkpoint.tokenizer()
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
        assert tokenizer.encode("Paris")[0] == 1
        assert tokenizer.encode("Paris", add_special_tokens=False)[0] != 1
        assert checkpoint.tokenizer() is tokenizer
    (tmp_path / "chat_template.jinja").write_text("{{ own }}")
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        assert checkpoint.chat_template == "{{ own }}"


def test_a_begin_token_outside_the_vocabulary_is_refused(tmp_path: Path, seed: int) -> None:
    make(tmp_path, seed)
    train().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint, pytest.raises(ConfigError, match="<s>"):
        checkpoint.tokenizer()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident set from /proc")
def test_released_pages_leave_the_resident_set(tmp_path: Path) -> None:
    rows = (16 << 20) // resource.getpagesize()
    config = small_config(
        vocab_size=rows,
        hidden_size=resource.getpagesize() // 4,
        head_dim=16,
        num_hidden_layers=1,
        tie_word_embeddings=True,
    )
    write_hf_checkpoint(
        tmp_path, config, {"model.embed_tokens.weight": np.ones((rows, config["hidden_size"]), dtype=np.float32)}
    )
    with open_checkpoint(tmp_path, FAMILIES) as checkpoint:
        view = checkpoint.map("model.embed_tokens.weight")
        before = _mapped_file_bytes()
        assert int(view[:: resource.getpagesize()].sum()) >= 0  # touches every page
        touched = _mapped_file_bytes()
        checkpoint.release("model.embed_tokens.weight")
        released = _mapped_file_bytes()
    assert touched - before > 12 << 20
    assert released - before < 4 << 20


def _mapped_file_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile"))
