"""Encoding, decoding, truncation and streaming, whatever kind of vocabulary a tokenizer has."""

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

from ostinato.frontend.tokenizer import StreamDecoder, Tokenizer, tokenizer_from_gguf
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, WeightsError
from tests.frontend.make_tokenizers import gguf_metadata, train, wordpiece

_BACKEND = train()
_SIZE = _BACKEND.get_vocab_size()
_TOKENIZER = tokenizer_from_gguf(gguf_metadata(_BACKEND, "smollm"), "test")
_WORDPIECE = Tokenizer(wordpiece())


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


@given(st.lists(st.integers(0, _WORDPIECE.vocab_size), max_size=12), st.booleans())
def test_streams_of_wordpieces_join_to_the_whole(ids: list[int], skip: bool) -> None:
    assert "".join(stream(_WORDPIECE, ids, skip)) == _WORDPIECE.decode(ids, skip)


def test_a_continued_wordpiece_follows_its_word_without_a_space() -> None:
    pieces = ("t", "##h", "##e", ".", "b")
    ids = [token for piece in pieces if (token := _WORDPIECE.token_id(piece)) is not None]
    assert stream(_WORDPIECE, ids) == ["t", "h", "e", ".", " b", ""]


@pytest.mark.parametrize("tokenizer", [_TOKENIZER, _WORDPIECE])
def test_a_text_is_cut_at_its_end_and_keeps_its_special_tokens(tokenizer: Tokenizer) -> None:
    text = "The capital of France is Paris."
    whole, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    special = len(whole) - len(bare)
    for length in range(special, len(whole) + 3):
        cut = tokenizer.encode(text, max_length=length)
        assert len(cut) == min(length, len(whole))
        assert cut[special // 2 : len(cut) - special // 2] == bare[: length - special]
        assert (
            cut[: special // 2] + cut[len(cut) - special // 2 :]
            == whole[: special // 2] + whole[len(whole) - special // 2 :]
        )
        assert tokenizer.encode(text, add_special_tokens=False, max_length=length) == bare[:length]
    with pytest.raises(ConfigError, match=f"max_length is {special - 1}, expected an integer of {special} or more"):
        tokenizer.encode(text, max_length=special - 1)
    with pytest.raises(ConfigError, match=r"max_length is 3\.0"):
        tokenizer.encode(text, max_length=3.0)  # type: ignore[arg-type]


@given(st.text(alphabet="the capital.", max_size=20), st.text(alphabet="of France!", max_size=20), st.integers(3, 30))
def test_a_pair_is_cut_as_the_library_cuts_it(first: str, second: str, length: int) -> None:
    theirs = wordpiece()
    theirs.enable_truncation(length)
    expected, found = theirs.encode(first, second), _WORDPIECE.encode_pair(first, second, max_length=length)
    assert (found.ids, found.type_ids) == (expected.ids, expected.type_ids)


def test_a_pair_without_a_template_of_its_own_is_two_surrounded_texts() -> None:
    metadata = gguf_metadata(_BACKEND, "smollm", add_bos_token=True, add_eos_token=True)
    tokenizer = tokenizer_from_gguf(metadata, "test")
    first, second = (tokenizer.encode(text, False) for text in ("Paris", "is"))
    found = tokenizer.encode_pair("Paris", "is")
    assert found.ids == [1, *first, 2, 1, *second, 2]
    assert found.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 2)
    with pytest.raises(ConfigError, match="max_length is 3, expected an integer of 4"):
        tokenizer.encode_pair("Paris", "is", max_length=3)


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
