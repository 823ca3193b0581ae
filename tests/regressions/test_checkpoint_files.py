"""Checkpoints of which a part is absent, stray, damaged or twice there: opened from the outside, as a user does, and run where they may be."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ostinato as ost
from tests.frontend.make_checkpoints import Tensors, random_model, small_config, write_hf_checkpoint, write_safetensors

BUCKETS = {"B": [1], "T": [4]}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def logits(folder: Path) -> npt.NDArray[np.float32]:
    exe = ost.compile(folder, buckets=BUCKETS, context=8, precision="f32", threads=1)
    return np.array(exe(input_ids=[[5, 1, 90, 7]])["logits"])


@pytest.fixture
def tensors(seed: int) -> Tensors:
    return random_model(small_config(), seed)


@pytest.fixture
def sharded(tmp_path: Path, tensors: Tensors) -> Path:
    """A directory of two shards and an index."""
    return write_hf_checkpoint(tmp_path / "sharded", small_config(), tensors, shards=2)


def test_a_shard_that_the_index_names_and_nobody_has_is_refused(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ost.WeightsError, match=r"1 of 2 weight files .* not there: model-00002-of-00002\.safetensors"):
        ost.load(sharded)


def test_a_stray_file_beside_the_index_changes_nothing_and_is_named(sharded: Path, tensors: Tensors) -> None:
    before = logits(sharded)
    stray = sharded / "model-00003-of-00003.safetensors"
    write_safetensors(stray, {name: array + 1 for name, array in tensors.items()})
    np.testing.assert_array_equal(logits(sharded), before)
    assert ost.load(sharded).checkpoint.ignored_files == (stray,)


def test_a_shard_cut_by_100_bytes_is_refused_with_both_sizes(sharded: Path) -> None:
    shard = sharded / "model-00001-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(
        ost.WeightsError, match=rf"{shard.name} is cut short: .* {len(content)} bytes.* {len(content) - 100}"
    ):
        ost.load(sharded)


def test_a_pointer_in_place_of_a_shard_is_called_a_pointer(sharded: Path) -> None:
    digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 988\n"
    assert 120 < len(pointer) < 135
    (sharded / "model-00001-of-00002.safetensors").write_text(pointer)
    with pytest.raises(
        ost.WeightsError, match=r"(?s)Git LFS pointer of a 988 byte file, not a safetensors.*git lfs pull"
    ):
        ost.load(sharded)


def test_bfloat16_is_read_bit_by_bit_in_a_fresh_process(tmp_path: Path, tensors: Tensors) -> None:
    """NumPy alone has no such type: whatever registers it must not depend on what was imported before."""
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    folder = write_hf_checkpoint(tmp_path / "halves", small_config(torch_dtype="bfloat16"), halves)
    code = (
        "import sys, ostinato as ost\nprint(ost.load(sys.argv[1]).checkpoint.map('model.norm.weight').tobytes().hex())"
    )
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == halves["model.norm.weight"].tobytes().hex()
    widened = {name: array.astype(np.float32) for name, array in halves.items()}
    expected = logits(write_hf_checkpoint(tmp_path / "widened", small_config(), widened))
    np.testing.assert_array_equal(logits(folder), expected)


def test_a_tied_head_that_is_left_out_is_the_embedding(tmp_path: Path, tensors: Tensors) -> None:
    del tensors[HEAD]
    tied = write_hf_checkpoint(tmp_path / "tied", small_config(tie_word_embeddings=True), tensors)
    explicit = {**tensors, HEAD: tensors[EMBEDDING]}
    untied = write_hf_checkpoint(tmp_path / "untied", small_config(), explicit)
    np.testing.assert_array_equal(logits(tied), logits(untied))
    both = write_hf_checkpoint(tmp_path / "both", small_config(tie_word_embeddings=True), explicit)
    np.testing.assert_array_equal(logits(both), logits(untied))


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_a_conflict(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf_checkpoint(tmp_path / "conflict", small_config(tie_word_embeddings=True), tensors)
    with pytest.raises(ost.WeightsError, match=r"(?s)lm_head\.weight .* differs from .*tie_word_embeddings.*false"):
        ost.load(folder)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_parameter_without_a_tensor_is_an_error_and_never_random(tmp_path: Path, tensors: Tensors, name: str) -> None:
    del tensors[name]
    folder = write_hf_checkpoint(tmp_path / "partial", small_config(), tensors)
    with pytest.raises(ost.WeightsError, match=name.replace(".", r"\.")):
        ost.compile(folder, buckets=BUCKETS, context=8)


def test_a_tensor_that_no_parameter_reads_is_an_error(tmp_path: Path, tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.extra.weight"] = np.ones((2, 2), np.float32)
    folder = write_hf_checkpoint(tmp_path / "extra", small_config(), tensors)
    with pytest.raises(ost.WeightsError, match=r"model\.layers\.0\.mlp\.extra\.weight"):
        ost.compile(folder, buckets=BUCKETS, context=8)


def test_a_configuration_cannot_change_after_the_model_was_loaded(sharded: Path) -> None:
    """Neither the record nor the file: what was compiled is what was read, and another file is another model."""
    model = ost.load(sharded)
    exe = ost.compile(model, buckets=BUCKETS, context=8, precision="f32", threads=1)
    before = np.array(exe(input_ids=[[5, 1, 90, 7]])["logits"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.config.num_layers = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        model.checkpoint.config = model.config  # type: ignore[misc]
    file = sharded / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rms_norm_eps": 0.5}))
    again = ost.compile(model, buckets=BUCKETS, context=8, precision="f32", threads=1)
    np.testing.assert_array_equal(again(input_ids=[[5, 1, 90, 7]])["logits"], before)
    assert float(np.abs(logits(sharded) - before).max()) > 0.1
