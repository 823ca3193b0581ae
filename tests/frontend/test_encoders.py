"""The files of encoders: names and configurations of the BERT family, and what `modules.json` and its folders say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.checkpoints import open_checkpoint
from ostinato.frontend.checkpoints.embedding import EmbeddingRecipe
from ostinato.frontend.embed import trace_embed
from ostinato.frontend.family import Family
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.models.bert import BERT, bert
from ostinato.frontend.models.llama import llama
from ostinato.ir.errors import ConfigError, OstinatoError, WeightsError
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import Tensors, random_model, small_config, write_hf_checkpoint
from tests.frontend.make_encoders import (
    NORMALIZE,
    POOLING,
    TRANSFORMER,
    encoder_config,
    random_encoder,
    write_encoder,
    write_encoder_gguf,
    write_modules,
)
from tests.frontend.make_tokenizers import wordpiece


def recipe(directory: Path) -> EmbeddingRecipe:
    return open_checkpoint(directory, FAMILIES).embedding_recipe()


def test_pooler_heads_and_buffers_are_reported_and_not_read(tmp_path: Path, seed: int) -> None:
    config = encoder_config(architectures=["BertForMaskedLM"])
    tensors = random_encoder(config, seed)
    stored = {f"bert.{name}": array for name, array in tensors.items()}
    extra: Tensors = {
        "bert.embeddings.position_ids": np.arange(64, dtype=np.int64)[None],
        "bert.pooler.dense.weight": np.zeros((64, 64), np.float32),
        "cls.predictions.bias": np.zeros(131, np.float32),
    }
    checkpoint = open_checkpoint(write_hf_checkpoint(tmp_path, config, stored | extra), FAMILIES)
    assert set(checkpoint.ignored_tensors) == set(extra)
    assert set(checkpoint.tensors) == set(tensors)
    assert checkpoint.tensors["embeddings.LayerNorm.bias"].source_name == "bert.embeddings.LayerNorm.bias"
    trace_embed(ost.load(tmp_path))  # strict: everything else is used


def test_old_names_of_gain_and_bias_are_known(tmp_path: Path, seed: int) -> None:
    config = encoder_config()
    tensors = random_encoder(config, seed)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in tensors.items()
    }
    assert set(open_checkpoint(write_hf_checkpoint(tmp_path, config, old), FAMILIES).tensors) == set(tensors)


def test_a_tensor_under_two_names_is_refused(tmp_path: Path, seed: int) -> None:
    tensors = random_encoder(encoder_config(), seed)
    tensors["bert.embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"]
    with pytest.raises(WeightsError, match=r"stored twice: as (bert\.)?embeddings\.LayerNorm\.bias in"):
        open_checkpoint(write_hf_checkpoint(tmp_path, encoder_config(), tensors), FAMILIES)


def test_a_classifier_is_no_encoder(tmp_path: Path, seed: int) -> None:
    config = encoder_config(architectures=["BertForSequenceClassification"])
    tensors = {f"bert.{name}": array for name, array in random_encoder(config, seed).items()}
    tensors["classifier.weight"] = np.zeros((2, 64), np.float32)
    model = ost.load(write_hf_checkpoint(tmp_path, config, tensors))
    with pytest.raises(WeightsError, match=r"does not use: classifier\.weight"):
        trace_embed(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder is set"),
        ({"add_cross_attention": True}, "add_cross_attention is set"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"num_attention_heads": 5}, "hidden_size 64 is not a multiple of 5 heads"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1"),
        ({"layer_norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "weights quantised by 'bitsandbytes'"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(encoder_config(**change)))
    with pytest.raises(OstinatoError, match=message):
        open_checkpoint(tmp_path, FAMILIES)


@pytest.mark.parametrize(
    ("act", "computed"),
    [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), (..., "gelu")],
)
def test_both_forms_of_gelu(tmp_path: Path, act: Any, computed: str) -> None:
    write_encoder(tmp_path, hidden_act=act)
    model = ost.load(tmp_path)
    assert model.config.activation == computed
    forms = {node.attrs["approximate"] for node in trace_embed(model).nodes if node.op == "gelu"}
    assert forms == {"tanh" if computed == "gelu_tanh" else "none"}


def test_a_gguf_file_is_the_same_model(tmp_path: Path, seed: int) -> None:
    tokenizer = wordpiece()
    config = encoder_config(vocab_size=tokenizer.get_vocab_size())
    tensors = random_encoder(config, seed)
    write_hf_checkpoint(tmp_path / "hf", config, tensors)
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    gguf = write_encoder_gguf(tmp_path / "model.gguf", config, tensors, pooling_type=2)
    checkpoint = open_checkpoint(gguf, FAMILIES, cache_directory=tmp_path / "cache")
    assert set(checkpoint.tensors) == set(tensors)
    assert checkpoint.embedding_recipe() == EmbeddingRecipe(pooling="cls")
    write_modules(tmp_path / "hf", {"pooling_mode_cls_token": True})
    texts = ["The capital of France is Paris.", "Größe, naïve"]
    left, right = (ost.Embedder(path, threads=1).encode(texts) for path in (tmp_path / "hf", gguf))
    assert np.array_equal(left, right)


def test_a_quantised_gguf_encoder_stays_quantised(tmp_path: Path, seed: int) -> None:
    config = encoder_config(vocab_size=wordpiece().get_vocab_size())
    tensors = random_encoder(config, seed)
    paths = [
        write_encoder_gguf(tmp_path / f"{kind.value}.gguf", config, tensors, kind) for kind in (DType.F32, DType.Q8_0)
    ]
    exact, quantised = (ost.Embedder(path, threads=1) for path in paths)
    slots = {slot.type.dtype for slot in quantised.executable.program.plan.weights if slot.type.rank == 2}
    assert slots == {DType.Q8_0, DType.F32}  # the embeddings of this file are f32
    texts = ["The capital of France is Paris.", "emoji"]
    similar = exact.similarity(exact.encode(texts), quantised.encode(texts))
    assert np.diag(similar).min() > 0.999
    assert ost.compare(quantised.executable, tokens=9).ok


@pytest.mark.parametrize("kind", [0, 4])
def test_a_gguf_pooling_without_a_vector_is_refused(tmp_path: Path, seed: int, kind: int) -> None:
    config = encoder_config(vocab_size=wordpiece().get_vocab_size())
    write_encoder_gguf(tmp_path / "model.gguf", config, random_encoder(config, seed), pooling_type=kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf", FAMILIES, cache_directory=tmp_path / "cache")
    with pytest.raises(ConfigError, match=f"bert.pooling_type {kind} is not supported"):
        checkpoint.embedding_recipe()


def test_decoders_and_encoders_are_told_apart(tmp_path: Path, seed: int) -> None:
    encoder = ost.load(write_encoder(tmp_path / "encoder"))
    for call in (lambda: ost.compile(encoder), lambda: ost.LLM(encoder), lambda: ost.trace(encoder, "forward")):
        with pytest.raises(ConfigError, match=r"bert is a family of encoders[\s\S]*Embedder"):
            call()
    decoder = ost.load(write_hf_checkpoint(tmp_path / "decoder", small_config(), random_model(small_config(), seed)))
    for refused in (lambda: ost.compile_encoder(decoder), lambda: ost.Embedder(decoder)):
        with pytest.raises(ConfigError, match=r"llama is a family of decoders[\s\S]*LLM"):
            refused()


@pytest.mark.parametrize("functions", [{}, {"function": llama, "encoder": bert}])
def test_a_family_is_one_or_the_other(functions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give decoders a function and encoders an encoder"):
        Family(name="x", huggingface=BERT.huggingface, **functions)


# what sentence-transformers' files say


def test_a_plain_directory_gets_mean_pooling_without_normalisation(tmp_path: Path) -> None:
    assert recipe(write_encoder(tmp_path)) == EmbeddingRecipe("mean", normalize=False, max_length=None)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 40}')
    assert recipe(tmp_path).max_length == 40
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    assert recipe(tmp_path).max_length is None


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({"embedding_dimension": 64, "pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "lasttoken"),
    ],
)
def test_poolings(tmp_path: Path, pooling: dict[str, Any], mode: str) -> None:
    directory = write_modules(write_encoder(tmp_path), pooling, settings={"max_seq_length": 24, "do_lower_case": True})
    assert recipe(directory) == EmbeddingRecipe(mode, max_length=24, lower_case=True)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling 'max' is not supported"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pooling 'mean_sqrt_len_tokens' is not supported"),
        ({"pooling_mode": "weightedmean"}, "pooling 'weightedmean' is not supported"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "poolings .*'cls', 'mean'.* side by side"),
        ({"pooling_mode": ["mean", "max"]}, "side by side"),
        ({"pooling_mode_mean_tokens": "yes"}, "expected true or false"),
        ({"word_embedding_dimension": 384}, "word_embedding_dimension is 384, the model is 64 wide"),
    ],
)
def test_other_poolings_are_refused_by_name(tmp_path: Path, pooling: dict[str, Any], message: str) -> None:
    directory = write_modules(write_encoder(tmp_path), pooling)
    with pytest.raises(ConfigError, match=message):
        recipe(directory)
    with pytest.raises(ConfigError, match=message):
        ost.Embedder(directory)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            [TRANSFORMER, POOLING, "sentence_transformers.models.Dense"],
            r"module 2 is sentence_transformers.models.Dense",
        ),
        ([TRANSFORMER, POOLING, "sentence_transformers.models.LayerNorm"], "LayerNorm, which is not supported"),
        (["custom_st.Transformer", POOLING], r"module 0 is custom_st\.Transformer"),
        (["sentence_transformers.models.WordEmbeddings", POOLING], "WordEmbeddings, which is not supported"),
        ([POOLING], "the first module is Pooling"),
        ([TRANSFORMER], "the modules are Transformer\n"),
        ([TRANSFORMER, NORMALIZE, POOLING], "the modules are Transformer, Normalize, Pooling"),
        ([TRANSFORMER, POOLING, POOLING], "the modules are Transformer, Pooling, Pooling"),
    ],
)
def test_other_modules_are_refused_by_name(tmp_path: Path, kinds: list[str], message: str) -> None:
    directory = write_modules(write_encoder(tmp_path), kinds=kinds)
    with pytest.raises(ConfigError, match=message):
        recipe(directory)


@pytest.mark.parametrize(
    "kinds",
    [
        (TRANSFORMER, POOLING, NORMALIZE),
        (
            "sentence_transformers.base.modules.transformer.Transformer",
            "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
            "sentence_transformers.base.modules.normalize.Normalize",
        ),
    ],
)
def test_normalisation_is_a_module(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    assert recipe(write_modules(write_encoder(tmp_path), kinds=kinds)) == EmbeddingRecipe("mean", normalize=True)


def test_a_normalisation_of_tokens_is_refused(tmp_path: Path) -> None:
    write_modules(write_encoder(tmp_path), kinds=(TRANSFORMER, POOLING, NORMALIZE))
    (tmp_path / "2_Normalize" / "config.json").write_text('{"module_input_name": "token_embeddings"}')
    with pytest.raises(ConfigError, match="module_input_name 'token_embeddings' is not supported"):
        recipe(tmp_path)


def test_the_transformer_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    write_encoder(tmp_path / "0_Transformer")
    write_modules(tmp_path, settings={"max_seq_length": 12}, transformer="0_Transformer")
    assert recipe(tmp_path) == EmbeddingRecipe("mean", max_length=12)
    checkpoint = open_checkpoint(tmp_path, FAMILIES)
    assert checkpoint.path == tmp_path
    assert checkpoint.has_tokenizer
    assert ost.Embedder(tmp_path, threads=1).encode("Paris").shape == (64,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no list of modules"),
        ("[]", "no list of modules"),
        ("[1]", "module 0 has no type and path"),
        (json.dumps([{"type": TRANSFORMER}]), "module 0 has no type and path"),
        (
            json.dumps([{"type": TRANSFORMER, "path": ""}, {"type": POOLING, "path": "../other"}]),
            "leaves the directory",
        ),
        (json.dumps([{"type": TRANSFORMER, "path": "/etc"}]), "leaves the directory"),
        ("[", "not valid JSON"),
    ],
)
def test_a_malformed_module_list(tmp_path: Path, text: str, message: str) -> None:
    write_encoder(tmp_path)
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 0}, "max_seq_length is 0"),
        ({"max_seq_length": "long"}, "expected an integer"),
        ({"transformer_task": "text-generation"}, "transformer_task 'text-generation' is not supported"),
        ({"module_output_name": "scores"}, "module_output_name 'scores' is not supported"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "output 'pooler_output' is not supported",
        ),
    ],
)
def test_transformer_settings_that_are_not_computed(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    directory = write_modules(write_encoder(tmp_path), settings=settings)
    with pytest.raises(ConfigError, match=message):
        recipe(directory)


def test_prompts(tmp_path: Path) -> None:
    directory = write_modules(write_encoder(tmp_path))
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "query: ", "document": None}, "default_prompt_name": "query"}))
    found = recipe(directory)
    assert dict(found.prompts) == {"query": "query: ", "document": ""}
    assert found.default_prompt == "query"
    for wrong, message in (
        ({"prompts": {"query": 1}}, r"prompts \['query'\] are no texts"),
        ({"default_prompt_name": "passage"}, "'passage' is none of the prompts"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=message):
            recipe(directory)
