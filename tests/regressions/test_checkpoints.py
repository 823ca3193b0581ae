"""Checkpoints that were read as something else than they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from tests.frontend.make_checkpoints import Tensors, random_model, small_config, write_gguf, write_hf_checkpoint

BUCKETS = {"B": [1], "T": [4]}


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def gguf_file(
    path: Path, tensors: Tensors, architecture: str = "llama", metadata: dict[str, Any] | None = None
) -> Path:
    return write_gguf(path / "model.gguf", small_config(architecture), tensors, metadata=metadata)


@pytest.mark.parametrize(
    ("stored", "shape"),
    [("model.norm.weight", (64,)), ("model.embed_tokens.weight", (96, 64)), ("blk.00.attn_q.weight", (64, 64))],
)
def test_two_gguf_tensors_of_one_name_are_refused(tmp_path: Path, stored: str, shape: tuple[int, ...]) -> None:
    """The second one silently took the place of the first."""
    path = gguf_file(tmp_path, random_model(small_config("llama"), 3))
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "twice.gguf", "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            (kind,) = field.types
            writer.add_key_value(field.name, field.contents(), kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor(stored, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ost.WeightsError, match=r"tensors .* and .* are both"):
        ost.load(tmp_path / "twice.gguf")


def test_qwen2_gguf_without_its_biases_is_refused(tmp_path: Path) -> None:
    config = small_config("qwen2")
    tensors = {name: array for name, array in random_model(config, 3).items() if not name.endswith(".bias")}
    path = write_gguf(tmp_path / "model.gguf", config, tensors)
    with pytest.raises(ost.WeightsError, match=r"q_proj\.bias"):
        ost.compile(path, buckets=BUCKETS, context=8)


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        ({"llama.rope.scaling.type": "spiral"}, ost.ConfigError, "unknown rotary kind 'spiral'"),
        ({"tokenizer.ggml.eos_token_id": "two"}, ost.ConfigError, "eos_token_id is 'two'"),
    ],
)
def test_gguf_metadata_that_changes_the_meaning_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[Exception], text: str
) -> None:
    path = gguf_file(tmp_path, random_model(small_config("llama"), 3), metadata=metadata)
    with pytest.raises(error, match=text):
        ost.load(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": ["llama"]}, "architecture .* is not supported"),
        ({"rope_scaling": {"rope_type": 5}}, "unknown rotary kind '5'"),
        ({"layer_types": "sliding_attention"}, "layer_types is 'sliding_attention'"),
    ],
)
def test_configuration_keys_of_the_wrong_type_are_refused(folder: Path, changes: dict[str, Any], text: str) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ost.ConfigError, match=text):
        ost.load(folder)


def test_reference_mode_reads_weights_of_mixed_halves(tmp_path: Path) -> None:
    """q, k and v are read as one weight; numpy has no common dtype for f16 and bf16."""
    config = small_config("llama")
    dtypes = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    tensors = {name: array.astype(dtypes[i % 3]) for i, (name, array) in enumerate(random_model(config, 3).items())}
    exe = ost.compile(
        write_hf_checkpoint(tmp_path / "mixed", config, tensors), buckets=BUCKETS, context=8, precision="f32"
    )
    planned, reference = (exe.clone(mode)(input_ids=[[1, 2, 3]])["logits"] for mode in ("planned", "reference"))
    np.testing.assert_allclose(planned, reference, atol=2e-4 * float(reference.std()))
