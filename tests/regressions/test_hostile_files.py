"""Configurations and tokenizers with values that no author meant: each is an error of ours when the file is read, never a crash or a number that is wrong."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import ostinato as ost
from ostinato.frontend.checkpoints.huggingface_tokenizer import HuggingFaceTokenizerFiles
from ostinato.frontend.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import gguf_metadata, sentencepiece_metadata, train, train_sentencepiece, wordpiece

HUGE = 10**400


def load(directory: Path, family: str, **changes: Any) -> ost.Model:
    """A model of that family whose configuration was changed after its weights were made."""
    write_hf_checkpoint(directory, small_config(family), random_model(small_config(family), 1))
    (directory / "config.json").write_text(json.dumps(small_config(family, **changes)))
    return ost.load(directory)


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("llama", {"rope_theta": HUGE}, "rope_theta is 1000.* expected a number that float32 holds"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a number that float32 holds"),
        ("llama", {"rms_norm_eps": 1e-300}, "norm_eps is 1e-300"),
        ("llama", {"head_dim": -HUGE}, "head_dim is -1000.* expected at most 2147483647"),
        ("llama", {"head_dim": 10**9}, "head_dim is 1000000000, expected at most 16384"),
        ("llama", {"max_position_embeddings": 2**31}, "max_position_embeddings is 2147483648"),
        ("mistral", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, expected at most 4096"),
        ("mistral", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 4096"),
        ("mistral", {"sliding_window": 2**31}, "sliding_window is 2147483648"),
        (
            "phi3",
            {"partial_rotary_factor": float("-inf")},
            "partial_rotary_factor is -inf, expected a number that float32 holds",
        ),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0, expected a positive number"),
        ("gemma3_text", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar is -4.0, expected a positive number"),
        ("gemma2", {"attn_logit_softcapping": 1e-300}, "attention_soft_cap is 1e-300"),
    ],
)
def test_numbers_that_the_graph_of_a_model_does_not_hold_are_refused_when_they_are_read(
    tmp_path: Path, family: str, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ost.ConfigError, match=told):
        load(tmp_path, family, **changes)


@pytest.mark.parametrize("activation", [[], {}, ["gelu"], 5])
def test_an_activation_that_is_no_text_is_refused(tmp_path: Path, activation: Any) -> None:
    """Not looked up: a list or an object has no hash."""
    bert = {"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_attention_heads": 1, "hidden_act": activation}
    (tmp_path / "config.json").write_text(json.dumps(bert))
    with pytest.raises(ost.ConfigError, match="hidden_act"):
        ost.load(tmp_path)


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"type": "linear", "factor": 1e-300}, "factor is 1e-300"),
        ({"type": "dynamic", "factor": 1e-3}, "makes 0 positions of 256"),
        ({"type": "dynamic", "factor": 1e30}, r"makes \d{30,} positions of 256"),
        ({"type": "yarn", "factor": 1e30, "original_max_position_embeddings": 64}, r"makes \d{30,} positions of 256"),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": HUGE}, "original_max_position_embeddings"),
        ({"type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": -7.213475204444817}, "mscale_all_dim -7.2"),
        (
            {"type": "longrope", "factor": 2, "short_factor": [1e-30] * 8, "long_factor": [1.0] * 8},
            "frequencies that float32 does not hold",
        ),
    ],
)
def test_rotary_numbers_that_give_no_positions_or_frequencies_of_infinity_are_refused(
    tmp_path: Path, scaling: dict[str, Any], told: str
) -> None:
    theta = 1e-30 if "short_factor" in scaling else 10000.0
    with pytest.raises(ost.ConfigError, match=told):
        load(tmp_path, "llama", rope_scaling=scaling, rope_theta=theta)


def build(directory: Path, state: dict[str, Any], **config: Any) -> Tokenizer:
    (directory / "tokenizer.json").write_text(json.dumps(state))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return HuggingFaceTokenizerFiles(directory).build()


def state_of(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(backend.to_str())
    return state


def test_a_panic_of_the_tokenizer_library_while_it_reads_a_file_is_an_error_of_ours(tmp_path: Path) -> None:
    state = state_of(train())
    state["model"]["continuing_subword_prefix"] = "x" * 100  # longer than any piece: the library slices behind its end
    with pytest.raises(ost.WeightsError, match="is not a usable tokenizer"):
        build(tmp_path, state)


def test_a_vocabulary_without_the_unknown_token_that_it_names_is_told_when_a_text_needs_it(tmp_path: Path) -> None:
    state = state_of(wordpiece())
    state["model"]["unk_token"] = "[NONE]"
    found = build(tmp_path, state)
    with pytest.raises(ost.WeightsError, match=r"the tokenizer cannot encode this text: .*UNK"):
        found.encode("☃")


def test_a_template_with_a_token_that_is_not_there_is_told_when_a_text_meets_it(tmp_path: Path) -> None:
    state = state_of(wordpiece())
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[NONE]", "type_id": 0}}],
        "special_tokens": {},
    }
    with pytest.raises(ost.WeightsError, match="tokenizer"):
        build(tmp_path, state).encode_pair("a", "b")


def test_half_of_a_surrogate_pair_as_a_special_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ost.WeightsError, match="surrogates not allowed"):
        build(tmp_path, state_of(train()), bos_token="\ud800")


def test_an_id_beyond_32_bits_or_below_0_names_no_token() -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(train(), "smollm"), "here")
    assert [tokenizer.find_piece(token) for token in (2**40, 2**32, -1)] == [None] * 3


@pytest.mark.parametrize("ids", [5, None, "a", b"a", [1.5], [[1]], ["a"]])
def test_what_is_no_list_of_token_ids_is_refused_by_decode(ids: Any) -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(train(), "smollm"), "here")
    with pytest.raises(ost.DTypeError, match="token id"):
        tokenizer.decode(ids)


def test_a_name_that_the_system_refuses_is_an_error_of_ours() -> None:
    with pytest.raises(ost.WeightsError, match="cannot be read: File name too long"):
        ost.load("x" * 5000)


def test_a_folder_that_may_not_be_entered_is_an_error_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ost.WeightsError, match=r"config\.json cannot be read: Permission denied"):
        ost.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"])
def test_what_is_no_file_is_refused_and_not_waited_for(folder: Path, name: str, kind: str) -> None:
    place = folder / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(ost.WeightsError, match=rf"{name} is not a regular file"):
        ost.load(folder).checkpoint.tokenizer()


def test_an_added_token_whose_id_has_five_thousand_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ost.ConfigError, match="added_tokens_decoder has"):
        build(tmp_path, state_of(train()), added_tokens_decoder={"1" * 5000: {"content": "x"}})


def test_templates_whose_names_are_no_texts_are_passed_over(folder: Path) -> None:
    templates = [{"name": []}, {"name": {}, "template": "a"}, 5, {"name": "default", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert ost.load(folder).checkpoint.chat_template == "b"


def test_a_piece_as_long_as_a_book_takes_no_longer_than_others() -> None:
    """Cutting it everywhere copies it half a million times, which takes hours."""
    metadata = sentencepiece_metadata(train_sentencepiece())
    plain = tokenizer_from_gguf(metadata, "here").encode("hello world")
    for key, value in (("tokens", "\u2581x" * 500_000), ("scores", -1e9), ("token_type", 1)):
        metadata[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], value]
    assert tokenizer_from_gguf(metadata, "here").encode("hello world") == plain
