"""A trained model of any family, exported: opened again it is the model that the step goes on from, under the names and in the form of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.tools.cli import main
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

BATCH, LENGTH, VOCABULARY = 2, 7, 40
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 4},
    "qwen2": {},
    "qwen3": {},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {"tie_word_embeddings": True},
    "phi3": {},
}
FUSED = "model.layers.0.self_attn.qkv_proj.weight"


def batch(number: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([11, number])
    ids, target = (rng.integers(0, VOCABULARY, (BATCH, LENGTH), dtype=np.int32) for _ in range(2))
    target[0, :number] = -100
    return ids, target


def written(family: str, folder: Path) -> Path:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "head_dim": 8, "intermediate_size": 48, "pad_token_id": 0}
    config = small_config(family, **sizes, **FAMILIES[family])
    write_hf_checkpoint(folder, config, random_model(config, 3, std=0.1))
    return folder


def stepped(folder: Path, **options: Any) -> ost.TrainStep:
    step = ost.train_step(
        folder, batch=(BATCH, LENGTH), optimizer=ost.AdamW(lr=1e-2), device="cpu", threads=1, **options
    )
    for number in range(2):
        step(*batch(number))
    return step


def logits_of(folder: Path) -> Array:
    """Of every token of the third batch, from the compiled model."""
    model = ost.compile(folder, buckets={"B": [BATCH], "T": [LENGTH]}, logits="all", device="cpu", threads=1)
    return np.asarray(model(input_ids=batch(2)[0])["logits"], np.float64)


def loss_of(logits: Array) -> float:
    """The mean cross entropy against the third targets, in float64."""
    target = batch(2)[1]
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, np.maximum(target, 0)[..., None], -1)[..., 0]
    losses = np.log(np.exp(shifted).sum(-1)) - chosen
    return float(losses[target != -100].mean())


def tensors_of(folder: Path) -> dict[str, Array]:
    """As stored, by name."""
    with ost.load(folder).checkpoint as checkpoint:
        return {
            name: np.array(checkpoint.map(name).view(source.dtype.numpy).reshape(source.shape))
            for name, source in checkpoint.tensors.items()
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_model_is_the_one_that_was_trained(family: str, tmp_path: Path) -> None:
    folder = written(family, tmp_path / "old")
    step = stepped(folder)
    trained = step.parameters()
    ost.export_model(ost.load(folder), trained, tmp_path / "new")
    old, new = tensors_of(folder), tensors_of(tmp_path / "new")
    assert list(new) == list(old)
    assert all(np.any(new[name] != old[name]) for name in old), "every tensor was trained"
    expected = step(*batch(2)).loss
    assert loss_of(logits_of(tmp_path / "new")) == pytest.approx(expected, rel=3e-5)
    assert abs(loss_of(logits_of(folder)) - expected) > 1e-3 * expected, "two steps change the loss"
    again = ost.train_step(tmp_path / "new", batch=(BATCH, LENGTH), device="cpu", threads=1)
    for name, values in again.parameters().items():
        np.testing.assert_allclose(values, trained[name], 0, 1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("family", "frozen"), [("gemma", ("*norm*", "model.embed*")), ("phi3", (f"{FUSED}.rows_0_*", "*.mlp.*"))]
)
def test_what_is_frozen_is_exported_as_it_was(family: str, frozen: tuple[str, ...], tmp_path: Path) -> None:
    folder = written(family, tmp_path / "old")
    step = stepped(folder, frozen=frozen)
    ost.export_model(ost.load(folder), step.parameters(), tmp_path / "new")
    old, new = tensors_of(folder), tensors_of(tmp_path / "new")
    assert list(new) == list(old)
    same = {name for name in old if np.array_equal(old[name], new[name])}
    asked = ("norm", "embed") if family == "gemma" else (".mlp.",)
    assert same == {name for name in old if any(part in name for part in asked)}
    if family == "phi3":
        rows = np.all(old[FUSED] == new[FUSED], axis=1)
        assert rows[0]
        assert np.array_equal(rows, np.arange(len(rows)) < rows.sum()), "the first rows are frozen, the others are not"
    assert loss_of(logits_of(tmp_path / "new")) == pytest.approx(step(*batch(2)).loss, rel=3e-5)


RUN = """
[model.new]
config = { model_type = "llama", hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 1, max_position_embeddings = 64 }

[data]
stdlib = 6000
sequence = 8
batch = 2

[train]
steps = 2
folder = "out"
device = "cpu"
threads = 1
frozen = [FROZEN]
"""


def run(config: Path, frozen: str) -> int:
    config.write_text(RUN.replace("FROZEN", frozen))
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config), "--json"])
    return int(caught.value.code or 0)


def test_a_configuration_freezes_by_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    assert run(config, '"model.layers.*.input*", "modle.norm*"') == 2
    assert "no weight is called like modle.norm*" in capsys.readouterr().out
    assert run(config, '"model.embed*", "*norm*"') == 0
    old, new = (tensors_of(tmp_path / "out" / name) for name in ("initial", "model"))
    same = {name for name in old if np.array_equal(old[name], new[name])}
    assert same == {name for name in old if "embed" in name or "norm" in name}


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_with_it(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.parity.make_references import load_transformers  # needs torch

    folder = written(family, tmp_path / "old")
    ost.export_model(ost.load(folder), stepped(folder).parameters(), tmp_path / "new")
    theirs = load_transformers(tmp_path / "new")
    with torch.no_grad():
        expected = theirs(torch.tensor(batch(2)[0], dtype=torch.long)).logits.numpy()
    found = logits_of(tmp_path / "new")
    assert np.abs(found - expected).max() < 2e-4 * expected.std()
