"""`Embedder.encode` with sentence-transformers' conventions: texts in any container, order, truncation, prompts, normalisation, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.errors import ConfigError, DTypeError, ShapeError, WeightsError
from ostinato.tools.compare.differences import bits_equal
from tests.frontend.make_encoders import NORMALIZE, POOLING, TRANSFORMER, write_encoder, write_modules

TEXTS = ["The capital of France is Paris.", "", "Größe, naïve", "It's 1234567 degrees, isn't it?", "the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), seed=5)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> ost.Embedder:
    return ost.Embedder(folder, threads=1)


def test_one_text_gives_one_vector_and_a_list_keeps_its_order(embedder: ost.Embedder) -> None:
    found = embedder.encode(TEXTS)
    assert found.shape == (5, embedder.dimension)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        single = embedder.encode(text)
        assert single.shape == (embedder.dimension,)
        assert bits_equal(single, vector)
    assert bits_equal(embedder.encode(TEXTS, batch_size=2), found)
    assert bits_equal(embedder.encode(TEXTS[::-1])[::-1], found)


def test_containers_of_texts(embedder: ost.Embedder) -> None:
    found = embedder.encode(TEXTS)
    for given in (tuple(TEXTS), np.array(TEXTS), iter(TEXTS)):
        assert bits_equal(embedder.encode(given), found)
    assert embedder.encode([]).shape == (0, embedder.dimension)
    assert embedder.encode([]).dtype == np.float32


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "sentences are a NoneType"),
        (7, "sentences are a int"),
        (b"bytes", "sentences are a bytes"),
        ({"a": 1}, "sentences are a dict"),
        ({"a"}, "sentences are a set"),
        (["good", 3], r"sentences\[1\].*expected text, found int 3"),
        (["good", None], r"sentences\[1\].*found NoneType"),
        ([["nested"]], r"sentences\[0\].*found list"),
        (np.zeros(2), r"sentences\[0\].*found float64"),
        ("half of a pair \ud83d", "cannot be encoded"),
    ],
)
def test_what_is_no_text_is_refused_by_name(embedder: ost.Embedder, sentences: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        embedder.encode(sentences)


def test_an_empty_text_is_its_special_tokens(embedder: ost.Embedder) -> None:
    assert embedder.token_ids("") == [2, 3]
    assert embedder.encode("").any()


def test_texts_are_cut_at_the_limit(folder: Path, embedder: ost.Embedder) -> None:
    long = "the France " * 100
    assert embedder.max_seq_length == 64  # the model's positions
    ids = embedder.token_ids(long)
    assert len(ids) == 64
    assert (ids[0], ids[-1]) == (2, 3)
    assert bits_equal(embedder.encode(long), embedder.encode(long + "and more"))
    short = ost.Embedder(folder, max_seq_length=8, threads=1)
    assert len(short.token_ids(long)) == 8
    assert bits_equal(short.encode("the the"), embedder.encode("the the"))


@pytest.mark.parametrize("length", [0, 65, 1.5, "8"])
def test_an_unusable_limit_is_refused(folder: Path, length: Any) -> None:
    with pytest.raises(ConfigError, match="max_seq_length"):
        ost.Embedder(folder, max_seq_length=length)


def test_a_limit_that_only_holds_the_special_tokens(folder: Path) -> None:
    with pytest.raises(ConfigError, match="max_length"):
        ost.Embedder(folder, max_seq_length=1, threads=1).encode("the")
    assert bits_equal(
        ost.Embedder(folder, max_seq_length=2, threads=1).encode("the"), ost.Embedder(folder, threads=1).encode("")
    )


def test_normalisation_follows_the_modules_unless_asked(tmp_path: Path, embedder: ost.Embedder) -> None:
    plain = embedder.encode(TEXTS)
    unit = embedder.encode(TEXTS, normalize_embeddings=True)
    assert not np.allclose(np.linalg.norm(plain, axis=1), 1)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    modules = write_modules(write_encoder(tmp_path, seed=5), kinds=(TRANSFORMER, POOLING, NORMALIZE))
    other = ost.Embedder(modules, threads=1)
    assert bits_equal(other.encode(TEXTS), unit)
    assert bits_equal(other.encode(TEXTS, normalize_embeddings=False), plain)
    with pytest.raises(ConfigError, match="normalize_embeddings is 'yes'"):
        other.encode(TEXTS, normalize_embeddings="yes")  # type: ignore[arg-type]


def test_prompts_stand_in_front(tmp_path: Path, embedder: ost.Embedder) -> None:
    write_modules(write_encoder(tmp_path, seed=5))
    settings = {"prompts": {"query": "the ", "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    prompted = ost.Embedder(tmp_path, threads=1)
    expected = embedder.encode([f"the {text}" for text in TEXTS])
    assert bits_equal(prompted.encode(TEXTS), expected)
    assert bits_equal(prompted.encode(TEXTS, prompt_name="query"), expected)
    assert bits_equal(prompted.encode(TEXTS, prompt_name="document"), embedder.encode(TEXTS))
    assert bits_equal(embedder.encode(TEXTS, prompt="the "), expected)
    for wrong, message in (
        ({"prompt_name": "passage"}, "no prompt 'passage'"),
        ({"prompt": "a", "prompt_name": "query"}, "a prompt and the name of one"),
        ({"prompt": 3}, "the prompt is 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            prompted.encode(TEXTS, **wrong)


def test_a_pooling_without_the_prompt_takes_none(tmp_path: Path) -> None:
    directory = write_modules(write_encoder(tmp_path), {"pooling_mode": "mean", "include_prompt": False})
    embedder = ost.Embedder(directory, threads=1)
    assert embedder.encode("the").shape == (64,)
    with pytest.raises(ConfigError, match="leaves the tokens of a prompt out"):
        embedder.encode("the", prompt="query: ")


def test_lower_case_is_the_modules_or_the_tokenizers(tmp_path: Path) -> None:
    upper, lower = "PARIS Größe ΣΊΣΥΦΟΣ", "paris größe σίσυφοσ"
    cased = ost.Embedder(write_cased(tmp_path / "cased"), threads=1)
    assert cased.token_ids(upper) != cased.token_ids(lower)
    lowered = ost.Embedder(
        write_modules(write_cased(tmp_path / "lowered"), settings={"do_lower_case": True}), threads=1
    )
    assert lowered.token_ids(upper) == lowered.token_ids(lower) == cased.token_ids(lower)


def write_cased(directory: Path) -> Path:
    """An encoder whose tokenizer keeps the case."""
    write_encoder(directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(tokenizer))
    return directory


@pytest.mark.parametrize("size", [0, -1, 2.5, None])
def test_an_unusable_batch_size_is_refused(embedder: ost.Embedder, size: Any) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        embedder.encode(TEXTS, batch_size=size)


def test_similarity_is_the_cosine(embedder: ost.Embedder) -> None:
    found = embedder.encode(TEXTS)
    table = embedder.similarity(found, found[:2])
    assert table.shape == (5, 2)
    assert table.dtype == np.float32
    assert np.allclose(np.diag(table), 1, atol=1e-6)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert np.allclose(table, unit @ unit[:2].T, atol=1e-6)
    assert not embedder.similarity(np.zeros((1, 64), np.float32), found).any()
    with pytest.raises(ShapeError, match="expected \\[n, dimension\\]"):
        embedder.similarity(found[0], found)
    texts: Any = TEXTS
    for given, named in ((texts, "left: .*found list"), (texts[0], "left: .*found str")):
        with pytest.raises(DTypeError, match=named):
            embedder.similarity(given, found)
    with pytest.raises(DTypeError, match=r"right: .*found ndarray"):
        embedder.similarity(found, np.array(texts))


def test_a_checkpoint_without_a_tokenizer(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    embedder = ost.Embedder(tmp_path, threads=1)
    with pytest.raises(WeightsError, match="tokenizer"):
        embedder.encode("the")
    assert embedder.executable([[2, 3]])["embedding"].shape == (1, 64)


@pytest.mark.parametrize("mode", ["eager", "reference"])
def test_other_modes_give_the_same_vectors(folder: Path, embedder: ost.Embedder, mode: str) -> None:
    expected, found = embedder.encode(TEXTS), ost.Embedder(folder, mode=mode, threads=1).encode(TEXTS)
    assert np.abs(found - expected).max() <= (0 if mode == "eager" else 1e-5)
