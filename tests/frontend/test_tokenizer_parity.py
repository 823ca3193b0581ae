"""Tokenizers of directories are read as transformers reads them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.checkpoints.huggingface_tokenizer import HuggingFaceTokenizerFiles
from tests.frontend.make_tokenizers import TEXTS, pieces_of, train, wordpiece

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_lower_case": False, "strip_accents": True},
    ],
)
def test_a_bert_vocabulary_alone_encodes_and_cuts_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    transformers = importlib.import_module("transformers")
    pieces = pieces_of(wordpiece(config.get("do_lower_case", True)))
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "BertTokenizer"}))
    theirs, ours = transformers.BertTokenizer.from_pretrained(tmp_path), HuggingFaceTokenizerFiles(tmp_path).build()
    for first in TEXTS:
        assert ours.encode(first) == theirs(first)["input_ids"], first
        for second in filter(None, TEXTS):  # transformers takes an empty second text for none
            for length in (None, 8, 17):
                cut = {} if length is None else {"truncation": True, "max_length": length}
                expected = theirs(first, second, **cut)
                found = ours.encode_pair(first, second, max_length=length)
                assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_tokens_that_only_the_configuration_lists_are_matched_the_same(tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")
    backend = train("qwen2")
    backend.save(str(tmp_path / "tokenizer.json"))
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
    decoder = {
        str(backend.get_vocab_size()): {**plain, "content": "<think>", "rstrip": True},
        str(backend.get_vocab_size() + 1): {**plain, "content": "<|user|>", "special": True, "lstrip": True},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), HuggingFaceTokenizerFiles(tmp_path).build()
    for text in [*TEXTS, "a <|user|> b<think>  c", "<think><|user|>\n<think>\n", "<|im_end|> <tool_call>"]:
        ids = ours.encode(text, parse_special=True)
        assert ids == theirs(text)["input_ids"], text
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
