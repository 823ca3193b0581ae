"""Tokenizers of Hugging Face directories: `tokenizer.json` with what `tokenizer_config.json` adds to it, and `vocab.txt` alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ostinato.frontend.checkpoints.huggingface_tokenizer import HuggingFaceTokenizerFiles
from ostinato.frontend.tokenizer import Tokenizer, tokenizer_from_gguf
from ostinato.ir.errors import ConfigError, WeightsError
from tests.frontend.make_tokenizers import (
    TEXTS,
    pieces_of,
    sentencepiece_metadata,
    train,
    train_sentencepiece,
    wordpiece,
)


def built(directory: Path, **config: Any) -> Tokenizer:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return HuggingFaceTokenizerFiles(directory).build()


def write_vocabulary(directory: Path, backend: tokenizers.Tokenizer, ending: str = "\n") -> None:
    text = "".join(piece + ending for piece in pieces_of(backend))
    (directory / "vocab.txt").write_text(text, encoding="utf-8", newline="")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_bert_vocabulary_alone_is_the_tokenizer_that_its_json_describes(
    tmp_path: Path, lowercase: bool, ending: str
) -> None:
    original = wordpiece(lowercase)
    write_vocabulary(tmp_path, original, ending)
    found = built(tmp_path, do_lower_case=lowercase, tokenizer_class="BertTokenizer")
    for text in TEXTS:
        assert found.encode(text) == original.encode(text).ids
        pair, expected = found.encode_pair(text, TEXTS[1]), original.encode(text, TEXTS[1])
        assert (pair.ids, pair.type_ids) == (expected.ids, expected.type_ids)
        assert found.decode(found.encode(text)) == original.decode(original.encode(text).ids)
    assert found.special_ids == {0, 1, 2, 3, 4}
    assert (found.pad_token_id, found.vocab_size) == (0, original.get_vocab_size())
    assert HuggingFaceTokenizerFiles(tmp_path).present


def test_the_options_of_a_bert_vocabulary_are_read(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, wordpiece())
    plain = built(tmp_path)
    assert plain.encode("Ä日本") == built(tmp_path, strip_accents=True).encode("a日本")
    assert plain.encode("日本") == plain.encode("日 本")
    assert len(built(tmp_path, tokenize_chinese_chars=False).encode("日本")) == 4
    kept = built(tmp_path, strip_accents=False)
    assert kept.piece(kept.encode("é")[1]) == "[UNK]"
    assert plain.piece(plain.encode("é")[1]) == "e"


def test_special_tokens_of_a_bert_vocabulary_may_have_other_names(tmp_path: Path) -> None:
    original = wordpiece()
    names = {"[CLS]": "<s>", "[SEP]": "</s>"}
    text = "\n".join(names.get(piece, piece) for piece in pieces_of(original))
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    found = built(tmp_path, cls_token={"content": "<s>"}, sep_token="</s>")
    assert found.encode(TEXTS[0]) == original.encode(TEXTS[0]).ids
    with pytest.raises(WeightsError, match=r"vocab\.txt has no \[SEP\], \[CLS\] among its"):
        built(tmp_path)


def test_other_vocabularies_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"(?s)no tokenizer\.json.*copy"):
        built(tmp_path)
    assert not HuggingFaceTokenizerFiles(tmp_path).present
    for name in ("vocab.json", "tokenizer.model"):
        (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(WeightsError, match=rf"(?s)no tokenizer\.json.*write one from {name} with transformers"):
            built(tmp_path)
    write_vocabulary(tmp_path, wordpiece())
    with pytest.raises(ConfigError, match=r"vocab\.txt of a BertJapaneseTokenizer is not supported"):
        built(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(ConfigError, match="do_lower_case is 'yes'"):
        built(tmp_path, do_lower_case="yes")
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    with pytest.raises(WeightsError, match="not a readable vocabulary"):
        built(tmp_path)


def test_special_tokens_are_read_in_every_spelling(tmp_path: Path) -> None:
    train().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"pad_token": {"content": "<|endoftext|>"}, "eos_token": "<|im_start|>"})
    )
    added = {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False, "normalized": True}
    found = built(tmp_path, bos_token=None, eos_token=added, unk_token=None)
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (None, 2, 0)
    files = HuggingFaceTokenizerFiles(tmp_path)
    assert files.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": None}, [1], []),
        ({"add_eos_token": True}, [], [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
    ],
)
def test_flags_for_begin_and_end_tokens_win_over_the_post_processor(
    tmp_path: Path, config: dict[str, Any], before: list[int], after: list[int]
) -> None:
    backend = train()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    found = built(tmp_path, bos_token="<|im_start|>", eos_token="<|im_end|>", **config)
    bare = found.encode("Paris", add_special_tokens=False)
    assert found.encode("Paris") == [*before, *bare, *after]


def test_flags_that_are_no_truth_values_are_refused(tmp_path: Path) -> None:
    train().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="add_bos_token is 1, expected true or false"):
        built(tmp_path, add_bos_token=1)


def test_tokens_that_only_the_configuration_lists_are_added(tmp_path: Path) -> None:
    backend = train()
    backend.save(str(tmp_path / "tokenizer.json"))
    size = backend.get_vocab_size()
    decoder = {
        "2": {"content": "<|im_end|>", "special": True, "normalized": False},
        "3": {"content": "<tool_call>", "special": True},  # an ordinary added token in tokenizer.json
        str(size): {"content": "<think>", "special": False, "rstrip": True},
    }
    found = built(tmp_path, added_tokens_decoder=decoder)
    assert found.vocab_size == size + 1
    assert found.encode("<think>\n is") == [size, *found.encode("is")]
    assert found.special_ids == {0, 1, 2, 3}
    assert 3 not in found.encode("<tool_call>")
    assert found.decode([3, size]) == "<think>"


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"7": {"content": "<|im_end|>"}}, r"'<\|im_end\|>' has id 2, and 7 beside it"),
        ({"9000": {"content": "<new>"}}, "'<new>' has id 420, and 9000 beside it"),
        ({"one": {"content": "<new>"}}, "added_tokens_decoder has 'one'"),
        ({"7": "<new>"}, "added_tokens_decoder has '7'"),
        ({"7": {"content": "<new>", "special": "yes"}}, "added_tokens_decoder 7: special is 'yes'"),
        ([], "added_tokens_decoder is .*, expected an object"),
    ],
)
def test_added_tokens_that_fit_no_vocabulary_are_refused(tmp_path: Path, decoder: Any, message: str) -> None:
    train().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, added_tokens_decoder=decoder)


def test_chat_templates_are_found_in_every_place(tmp_path: Path) -> None:
    def found(**config: Any) -> str | None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return HuggingFaceTokenizerFiles(tmp_path).chat_template

    assert found() is None
    assert found(chat_template="T") == "T"
    assert found(chat_template=[{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]) == "D"
    assert found(chat_template=[{"name": "rag", "template": "R"}]) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert found(chat_template="T") == "J"
    (tmp_path / "chat_template.jinja").write_text("{{ own }}")
    assert found(chat_template="T") == "{{ own }}"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(WeightsError, match="not UTF-8"):
        found()


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_tokenizer_json_is_read_as_its_gguf_file(tmp_path: Path, prefix: bool) -> None:
    """The shapes of llama and mistral (a space before the text) and of gemma (none), as their tokenizer.json spell them."""
    pieces = train_sentencepiece()
    names = list(pieces)
    cuts = [(piece, cut) for piece in pieces if not piece.startswith("<") for cut in range(1, len(piece))]
    cuts.sort(key=lambda item: -pieces[item[0]])
    merges = [[piece[:cut], piece[cut:]] for piece, cut in cuts if {piece[:cut], piece[cut:]} <= set(names)]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "▁"}, spaces] if prefix else [spaces]
    joins: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    special = [
        {
            "id": token,
            "content": names[token],
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for token in range(3)
    ]
    state = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": joins + strip},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {name: token for token, name in enumerate(names)},
            "merges": merges,
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    found = built(tmp_path, bos_token="<s>", eos_token="</s>", add_bos_token=True)
    metadata = sentencepiece_metadata(pieces, add_space_prefix=prefix)
    metadata["tokenizer.ggml.token_type"] = [1 if kind == 4 else kind for kind in metadata["tokenizer.ggml.token_type"]]
    expected = tokenizer_from_gguf(metadata, "test")
    for text in [*TEXTS, *(a + b for a in TEXTS for b in TEXTS)]:
        ids = found.encode(text)
        assert ids == expected.encode(text), text
        assert found.decode(ids) == text
