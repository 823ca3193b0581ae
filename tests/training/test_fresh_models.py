"""Models made from nothing, and trained ones exported: ordinary Hugging Face directories that are opened like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.export import export_model
from ostinato.frontend.fresh import new_model
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.frontend.tokenizer.train import byte_tokenizer, trained_tokenizer
from ostinato.ir.errors import ConfigError, ShapeError, WeightsError
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TEXTS = ["the cat sat on the mat, the dog sat on the log. ", "naïve 日本語 🙂 text\n\twith tabs"] * 4


def values(model: ost.Model, name: str) -> np.ndarray[Any, Any]:
    source = model.checkpoint.tensor(name)
    return model.checkpoint.map(name).view(source.dtype.numpy).reshape(source.shape)


def test_a_fresh_model_is_opened_and_writes(tmp_path: Path) -> None:
    model = new_model(tmp_path / "new", SMALL, seed=3)
    assert model.config.vocab_size == 257
    assert model.config.eos_token_ids == (0,)
    assert values(model, "model.norm.weight").tolist() == [1.0] * 32
    embedding = values(model, "model.embed_tokens.weight")
    assert abs(float(embedding.std()) - 0.02) < 0.001
    assert abs(float(values(model, "model.layers.1.mlp.down_proj.weight").std()) - 0.01) < 0.001
    llm = ost.LLM(tmp_path / "new", max_num_seqs=1, context=32, device="cpu")
    (output,) = llm.generate("Hello", ost.SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    assert len(output.token_ids) == 4


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"])
def test_every_family_of_decoders_can_be_made(family: str, tmp_path: Path) -> None:
    config = {key: value for key, value in small_config(family).items() if key not in ("vocab_size", "torch_dtype")}
    model = new_model(tmp_path / "new", {**config, "pad_token_id": 0}, dtype="bf16")
    assert model.family.name == model.config.architecture
    norm = model.checkpoint.tensor("model.norm.weight")
    assert values(model, norm.name).astype(np.float32).tolist() == [1.0 - norm.shift] * 64
    ost.trace(model, "forward")  # strict: every tensor is used


def test_weights_follow_from_the_seed_and_the_name(tmp_path: Path) -> None:
    one, two = (new_model(tmp_path / name, SMALL, seed=5) for name in ("one", "two"))
    deeper = new_model(tmp_path / "deep", {**SMALL, "num_hidden_layers": 3}, seed=5)
    other = new_model(tmp_path / "other", SMALL, seed=6)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    name = "model.layers.1.self_attn.q_proj.weight"
    assert np.array_equal(values(one, name), values(deeper, name))
    assert not np.array_equal(values(one, name), values(other, name))
    assert not np.array_equal(values(two, name), values(two, name.replace("1", "0")))


def round_trips(tokenizer: Tokenizer) -> None:
    for text in (*TEXTS, "".join(map(chr, range(1, 1024))), "\x00", "<|endoftext|>", "  two  blanks "):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert 0 not in ids  # the end token is never read from a text
    assert tokenizer.encode("<|endoftext|>", parse_special=True) == [0]


def test_bytes_and_trained_tokenizers_write_every_text(tmp_path: Path) -> None:
    round_trips(Tokenizer(byte_tokenizer()))
    assert sorted(Tokenizer(byte_tokenizer()).encode("".join(map(chr, range(128))))) != []
    backend = trained_tokenizer(TEXTS, 300)
    assert backend.get_vocab_size() == 300
    assert trained_tokenizer(TEXTS, 300).to_str() == backend.to_str()
    round_trips(Tokenizer(backend))
    model = new_model(tmp_path / "new", SMALL, tokenizer=TEXTS, vocab_size=300)
    assert model.config.vocab_size == 300
    assert len(model.checkpoint.tokenizer().encode("the cat sat")) < 6
    round_trips(model.checkpoint.tokenizer())


@pytest.mark.parametrize(
    ("changes", "given", "told"),
    [
        ({"model_type": "bert"}, {}, "encoder|missing"),
        ({"model_type": "nothing"}, {}, "not supported"),
        ({"num_key_value_heads": 3}, {}, "cannot share"),
        ({"vocab_size": 100}, {}, "the tokenizer has 257 tokens"),
        ({}, {"tokenizer": "bpe"}, "tokenizer is 'bpe'"),
        ({}, {"tokenizer": TEXTS}, "needs vocab_size"),
        ({}, {"tokenizer": TEXTS, "vocab_size": 100}, "vocab_size is 100"),
        ({}, {"tokenizer": [""], "vocab_size": 300}, "no text"),
        ({}, {"dtype": "f64"}, "dtype is 'f64'"),
        ({}, {"seed": -1}, "seed is -1"),
    ],
)
def test_models_that_cannot_be_made_leave_no_folder(
    changes: dict[str, Any], given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        new_model(tmp_path / "new", {**SMALL, **changes}, **given)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        new_model(tmp_path, SMALL)
    with pytest.raises(ConfigError, match="there already"):
        new_model(tmp_path / "kept", SMALL)
    with pytest.raises(ConfigError, match="cannot be written"):
        new_model(tmp_path / "kept" / "below", SMALL)
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.parametrize("dtype", ["checkpoint", "f32", "bf16"])
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_an_exported_model_has_the_new_weights_and_the_old_files(family: str, dtype: str, tmp_path: Path) -> None:
    config = small_config(family, tie_word_embeddings=True)
    write_hf_checkpoint(tmp_path / "old", config, random_model(config, 3))
    for name in ("tokenizer.json", "generation_config.json"):
        (tmp_path / "old" / name).write_text("{}")
    old = ost.load(tmp_path / "old")
    trained = {
        name: np.asarray(values(old, name), np.float32) * 2 + np.float32(source.shift)
        for name, source in old.checkpoint.tensors.items()
    }
    export_model(old, trained, tmp_path / "out", dtype=dtype)
    new = ost.load(tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "out/config.json").read_text())["hidden_size"] == 64
    assert new.precision("auto") == ("bf16" if dtype == "bf16" else "f32")
    for name, source in new.checkpoint.tensors.items():
        expected = (trained[name] - np.float32(source.shift)).astype(source.dtype.numpy)
        assert np.array_equal(values(new, name), expected)


def test_parameters_of_another_model_are_not_exported(tmp_path: Path) -> None:
    model = new_model(tmp_path / "new", SMALL)
    good = {name: np.zeros(tensor.shape, np.float32) for name, tensor in model.checkpoint.tensors.items()}
    norm = "model.norm.weight"
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({**good, "extra": good[norm]}, WeightsError, "extra"),
        ({}, WeightsError, "there are none"),
        ({**good, norm: np.zeros(3, np.float32)}, ShapeError, r"shape \[3\], expected \[32\]"),
    ]
    for parameters, error, told in cases:
        with pytest.raises(error, match=told):
            export_model(model, parameters, tmp_path / "out")
    with pytest.raises(ConfigError, match="there already"):
        export_model(model, good, tmp_path / "new")
    with pytest.raises(ConfigError, match="no name that a new folder can have"):
        export_model(model, good, ".")
    with pytest.raises(ConfigError, match="vocab_size is 300 of a tokenizer that learns none"):
        new_model(tmp_path / "other", SMALL, vocab_size=300)
    with pytest.raises(WeightsError, match="a value has no place in float16: 1e"):
        export_model(model, {**good, norm: good[norm] + np.float32(1e6)}, tmp_path / "out", dtype="f16")
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        export_model(model, good, tmp_path / "out", dtype="int8")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parity
def test_transformers_opens_fresh_and_exported_models(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = new_model(tmp_path / "new", SMALL, tokenizer=TEXTS, vocab_size=300, seed=2)
    parameters = {name: np.asarray(values(model, name)) for name in model.checkpoint.tensors}
    export_model(model, parameters, tmp_path / "out", dtype="f32")
    ids = np.array([model.checkpoint.tokenizer().encode(TEXTS[0])], dtype=np.int32)
    ours = ost.compile(model, buckets={"B": [1], "T": [ids.size]}, logits="all", device="cpu")(input_ids=ids)["logits"]
    for folder in (tmp_path / "new", tmp_path / "out"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits = theirs(torch.tensor(ids, dtype=torch.long)).logits.numpy()
        assert np.abs(logits - ours).max() < 1e-4
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer(TEXTS[1])["input_ids"] == model.checkpoint.tokenizer().encode(TEXTS[1])
