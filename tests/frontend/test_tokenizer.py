"""Encoding, decoding and streaming, and vocabularies rebuilt from GGUF metadata against the tokenizers they came from."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from ostinato.frontend.tokenizer import PRE_TOKENIZERS, StreamDecoder, Tokenizer, tokenizer_from_gguf
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, NotYetAvailable, WeightsError
from tests.frontend.make_tokenizers import TEXTS, gguf_metadata, train

_BACKEND = train()
_SIZE = _BACKEND.get_vocab_size()
_TOKENIZER = tokenizer_from_gguf(gguf_metadata(_BACKEND, "smollm"), "test")


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    decoder = StreamDecoder(tokenizer, skip)
    return [*map(decoder.push, ids), decoder.flush()]


def sentencepiece_like() -> Tokenizer:
    """A vocabulary whose decoder joins tokens by rules: byte fallback, a space before each word, the first one stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "é"]
    vocab: list[tuple[str, float]] = [(piece, -1.0) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_a_rebuilt_vocabulary_encodes_as_the_original(pre: str) -> None:
    original = train(pre)
    rebuilt = tokenizer_from_gguf(gguf_metadata(original, pre), "test")
    assert rebuilt.vocab_size == original.get_vocab_size()
    for text in [*TEXTS, *(f"{a}{b}" for a in TEXTS for b in TEXTS)]:
        assert rebuilt.encode(text, parse_special=True) == original.encode(text).ids, text


def test_names_of_one_pre_tokenizer_mean_the_same() -> None:
    assert PRE_TOKENIZERS["deepseek-r1-qwen"] == PRE_TOKENIZERS["qwen2"]
    assert PRE_TOKENIZERS["llama3"] == PRE_TOKENIZERS["llama-v3"] == PRE_TOKENIZERS["llama-bpe"]


def test_the_default_kind_splits_digits_by_three_and_punctuation_apart() -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(_BACKEND, "default"), "test")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in PRE_TOKENIZERS["default"].splits]
    )
    assert [piece for piece, _ in splitter.pre_tokenize_str("ab, 12345x")] == ["ab", ",", " ", "123", "45", "x"]


@given(st.text(max_size=40))
def test_every_text_round_trips(text: str) -> None:
    ids = _TOKENIZER.encode(text)
    assert _TOKENIZER.decode(ids) == text
    assert "".join(stream(_TOKENIZER, ids)) == text


@given(st.lists(st.integers(0, _SIZE + 3), max_size=30), st.booleans())
def test_streamed_pieces_join_to_the_whole_for_any_ids(ids: list[int], skip: bool) -> None:
    assert "".join(stream(_TOKENIZER, ids, skip)) == _TOKENIZER.decode(ids, skip)


@given(st.text(alphabet="aé🙂日\u0301", min_size=1, max_size=12))
def test_no_replacement_character_is_shown_for_a_split_character(text: str) -> None:
    ids = [_TOKENIZER.token_id(piece) for character in text for piece in byte_pieces(character)]
    known = [token for token in ids if token is not None]
    assert len(known) == len(text.encode())
    shown = ""
    decoder = StreamDecoder(_TOKENIZER)
    for token in known:
        shown += decoder.push(token)
        assert text.startswith(shown)
    assert shown == text
    assert decoder.flush() == ""


def byte_pieces(character: str) -> list[str]:
    """The single-byte tokens of one character, by the library's own alphabet."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return list(splitter.pre_tokenize_str(character)[0][0])


def test_an_unfinished_character_is_shown_at_the_end_only() -> None:
    first, second = (_TOKENIZER.token_id(piece) for piece in byte_pieces("é"))
    assert first is not None
    assert second is not None
    assert stream(_TOKENIZER, [first]) == ["", "\ufffd"]
    assert stream(_TOKENIZER, [first, second]) == ["", "é", ""]
    assert stream(_TOKENIZER, [first, 1, second]) == ["", "", "é", ""]  # the special token between them is left out


@given(st.lists(st.sampled_from(["a", "b", "▁", "▁a", "▁b", "é", "🙂", "日", "\n", "<s>", "</s>"]), max_size=12))
def test_streams_of_other_decoders_join_to_the_whole(words: list[str]) -> None:
    tokenizer = sentencepiece_like()
    assert not tokenizer.is_byte_level
    ids = []
    for word in words:
        token = tokenizer.token_id(word)
        spelled = [word] if token is not None else [f"<0x{byte:02X}>" for byte in word.encode()]
        ids += [found for piece in spelled if (found := tokenizer.token_id(piece)) is not None]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_other_decoders_hold_back_split_characters_too() -> None:
    tokenizer = sentencepiece_like()
    ids = [
        token
        for piece in ("▁a", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁b")
        if (token := tokenizer.token_id(piece)) is not None
    ]
    assert stream(tokenizer, ids) == ["a", "", "", "", "🙂", " b", ""]
    assert "".join(stream(tokenizer, ids[:3])) == tokenizer.decode(ids[:3])


def test_special_tokens_in_a_text_are_plain_unless_asked_for() -> None:
    text = "<|im_start|>user<|im_end|>"
    parsed = _TOKENIZER.encode(text, parse_special=True)
    assert parsed[0] == 1
    assert parsed[-1] == 2
    plain = _TOKENIZER.encode(text)
    assert not set(plain) & _TOKENIZER.special_ids
    assert _TOKENIZER.decode(plain) == text
    assert _TOKENIZER.decode(parsed) == "user"
    assert _TOKENIZER.decode(parsed, skip_special_tokens=False) == text
    assert _TOKENIZER.encode("<tool_call>") == [_TOKENIZER.token_id("<tool_call>")]  # not a control token


def test_threads_that_parse_special_tokens_do_not_disturb_others() -> None:
    text = "<|im_start|> a text <|im_end|>"
    expected = {flag: _TOKENIZER.encode(text, parse_special=flag) for flag in (False, True)}
    results: dict[int, list[bool]] = {}

    def work(index: int, flag: bool) -> None:
        results[index] = [_TOKENIZER.encode(text, parse_special=flag) == expected[flag] for _ in range(300)]

    threads = [threading.Thread(target=work, args=(index, index % 2 == 1)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [all(results[index]) for index in range(4)] == [True] * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add_bos_token": True}, ([1], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
        ({"add_bos_token": ...}, ([], [])),
        ({"add_bos_token": ..., "pre": "llama-bpe"}, ([1], [])),
        ({"add_bos_token": False, "pre": "llama-bpe"}, ([], [])),
    ],
)
def test_texts_are_surrounded_as_the_file_says(changes: dict[str, Any], expected: tuple[list[int], list[int]]) -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(_BACKEND, **{"pre": "smollm", **changes}), "test")
    bare = tokenizer.encode("Paris", add_special_tokens=False)
    assert tokenizer.encode("Paris") == [*expected[0], *bare, *expected[1]]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": ...}, WeightsError, "no tokenizer"),
        ({"model": "llama"}, NotYetAvailable, "SentencePiece"),
        ({"model": "bert"}, NotYetAvailable, "WordPiece"),
        ({"model": "magic"}, ConfigError, r"unknown tokenizer\.ggml\.model 'magic'"),
        ({"pre": "gpt-5"}, ConfigError, r"(?s)'gpt-5'.*smollm"),
        ({"pre": ...}, ConfigError, "does not say which pre-tokenizer"),
        ({"add_space_prefix": True}, ConfigError, "add_space_prefix"),
        ({"tokens": ...}, WeightsError, "tokens is missing"),
        ({"tokens": [1, 2]}, WeightsError, "not an array of strings"),
        ({"tokens": ["a", "b", "a"]}, WeightsError, "'a' appears twice"),
        ({"merges": ["ab"]}, WeightsError, "'ab' is not two tokens"),
        ({"merges": ["a b c"]}, WeightsError, "'a b c' is not two tokens"),
        ({"merges": ["qqqq zzzz"]}, WeightsError, "do not fit"),
        ({"token_type": [1]}, WeightsError, "1 token types for"),
        ({"bos_token_id": 10**6}, WeightsError, "bos_token_id 1000000 is outside"),
        ({"bos_token_id": ..., "add_bos_token": True}, WeightsError, "bos_token_id is absent"),
    ],
)
def test_unusable_vocabularies_are_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(gguf_metadata(_BACKEND, **{"pre": "smollm", **changes}), "test")


def test_tokenizer_json_with_truncation_and_padding_loses_both(tmp_path: Path) -> None:
    backend = train()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json", eos_token="<|im_end|>")
    text = "The capital of France is Paris."
    assert tokenizer.encode(text) == _TOKENIZER.encode(text)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (None, 2, _SIZE)


def test_a_post_processor_in_tokenizer_json_is_used_unless_overruled(tmp_path: Path) -> None:
    backend = train()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    bare = _TOKENIZER.encode("Paris")
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").encode("Paris") == [1, *bare]
    overruled = Tokenizer.from_file(
        tmp_path / "tokenizer.json", bos_token="<|im_start|>", eos_token="<|im_end|>", add_bos=False, add_eos=True
    )
    assert overruled.encode("Paris") == [*bare, 2]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": "1.0", "model": {"type": "Odd"}}'])
def test_damaged_tokenizer_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(WeightsError, match="not a usable tokenizer"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("text", [b"bytes", None, 3, "\ud800"])
def test_what_is_not_text_is_refused(text: Any) -> None:
    with pytest.raises(DTypeError):
        _TOKENIZER.encode(text)


@pytest.mark.parametrize(
    ("ids", "error"),
    [([-1], BoundsError), ([2**32], BoundsError), ([True], DTypeError), ([1.0], DTypeError), (["1"], DTypeError)],
)
def test_what_is_not_a_token_is_refused(ids: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        _TOKENIZER.decode(ids)
    with pytest.raises(error):
        StreamDecoder(_TOKENIZER).push(ids[0])


def test_pieces_and_ids() -> None:
    assert _TOKENIZER.piece(2) == "<|im_end|>"
    assert _TOKENIZER.token_id("<|im_end|>") == 2
    assert _TOKENIZER.token_id("no such piece") is None
    assert _TOKENIZER.decode(np.array(_TOKENIZER.encode("Paris"), dtype=np.int32)) == "Paris"
    assert _TOKENIZER.decode([_SIZE, _SIZE + 500]) == ""  # a padded vocabulary has ids without a token
    with pytest.raises(BoundsError, match="not in the vocabulary"):
        _TOKENIZER.piece(_SIZE)
    with pytest.raises(BoundsError):
        _TOKENIZER.piece(-1)


def test_trainer_helper_is_deterministic() -> None:
    assert train().to_str() == _BACKEND.to_str()
    assert isinstance(trainers.BpeTrainer(show_progress=False), trainers.BpeTrainer)
