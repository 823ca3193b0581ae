"""A tokenizer from the vocabulary that a GGUF file carries.

The file stores tokens, merges, token types and the name of a pre-tokenizer (`pre`), not its rules; the rules come from the public tokenizers of the models
that the names stand for. A wrong pre-tokenizer still produces text, only worse text, so an unknown name is refused and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ostinato.frontend.tokenizer.tokenizer import Tokenizer
from ostinato.ir.errors import ConfigError, NotYetAvailable, WeightsError

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "tokenizer_from_gguf"]

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before the merges: each pattern splits the pieces of the one before it.

    `whole_words`: a piece that is a token itself is taken without applying merges. `adds_bos` holds where the file does not say.
    """

    splits: tuple[str, ...]
    normal_form: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_LLAMA3_KIND = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN_KIND = PreTokenizer((_QWEN,), normal_form=True)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "deepseek-r1-qwen": _QWEN_KIND,
    "gpt-2": PreTokenizer((_WORDS,)),
    "llama-bpe": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "qwen2": _QWEN_KIND,
    "smollm": PreTokenizer((r"\p{N}", _WORDS)),
}

_LATER_MODELS = {"llama": "SentencePiece", "bert": "WordPiece", "t5": "unigram", "rwkv": "RWKV", "plamo2": "PLaMo"}
_KEY = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_from_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer in GGUF `metadata` (keys `tokenizer.ggml.*`; arrays as sequences). `where` names the file in errors.

    Raises `WeightsError` when the vocabulary is absent or inconsistent, `ConfigError` for unknown tokenizer and pre-tokenizer names, and
    `NotYetAvailable` for tokenizer models of a later version.
    """
    kind = _kind(metadata, where)
    pieces = _strings(metadata, "tokens", where)
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        twice = next(piece for token, piece in enumerate(pieces) if vocabulary[piece] != token)
        raise WeightsError(f"{where}: the token {twice!r} appears twice in the vocabulary")
    backend = tokenizers.Tokenizer(_merge_model(metadata, vocabulary, kind, where))
    if kind.normal_form:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in kind.splits]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, metadata, pieces, where)
    return _with_special_tokens(backend, metadata, kind, len(pieces), where)


def _kind(metadata: Mapping[str, Any], where: str) -> PreTokenizer:
    model = metadata.get(_KEY + "model")
    if model is None:
        raise WeightsError(f"{where} carries no tokenizer", hint="convert the model again, with its tokenizer")
    if model != "gpt2":
        if model in _LATER_MODELS:
            raise NotYetAvailable(
                f"{where}: {_LATER_MODELS[model]} tokenizers (tokenizer.ggml.model {model!r}) are not yet available"
            )
        raise ConfigError(f"{where}: unknown tokenizer.ggml.model {model!r}", hint="known: gpt2 (byte-level BPE)")
    name = metadata.get(_KEY + "pre")
    if name is None:
        raise ConfigError(
            f"{where} does not say which pre-tokenizer its vocabulary needs (tokenizer.ggml.pre is absent)",
            hint="convert the model again with a current converter: guessing would silently change the tokens",
        )
    if name not in PRE_TOKENIZERS:
        raise ConfigError(f"{where}: unknown tokenizer.ggml.pre {name!r}", hint=f"known: {', '.join(PRE_TOKENIZERS)}")
    if metadata.get(_KEY + "add_space_prefix"):
        raise ConfigError(f"{where}: tokenizer.ggml.add_space_prefix is not supported for byte-level BPE")
    return PRE_TOKENIZERS[name]


def _strings(metadata: Mapping[str, Any], key: str, where: str) -> Sequence[str]:
    values = metadata.get(_KEY + key)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise WeightsError(f"{where}: {_KEY}{key} is missing or empty")
    if not all(isinstance(value, str) for value in values):
        raise WeightsError(f"{where}: {_KEY}{key} is not an array of strings")
    return values


def _merge_model(metadata: Mapping[str, Any], vocabulary: dict[str, int], kind: PreTokenizer, where: str) -> models.BPE:
    pairs = []
    for merge in _strings(metadata, "merges", where):
        left, separator, right = merge.partition(" ")
        if not (left and separator and right) or " " in right:
            raise WeightsError(f"{where}: merge {merge!r} is not two tokens separated by a space")
        pairs.append((left, right))
    try:
        return models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=kind.whole_words)
    except Exception as error:  # the library raises plain Exception
        raise WeightsError(f"{where}: vocabulary and merges do not fit: {error}") from error


def _add_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], pieces: Sequence[str], where: str) -> None:
    """Control and user-defined tokens are found in the text before it is split; their ids are already in the vocabulary."""
    types = metadata.get(_KEY + "token_type")
    if types is None:
        return
    if len(types) != len(pieces):
        raise WeightsError(f"{where}: {len(types)} token types for {len(pieces)} tokens")
    added = [
        tokenizers.AddedToken(piece, special=kind == _CONTROL, normalized=False)
        for piece, kind in zip(pieces, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and piece
    ]
    backend.add_tokens(added)


def _with_special_tokens(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], kind: PreTokenizer, count: int, where: str
) -> Tokenizer:
    ids: dict[str, int | None] = {}
    for role in ("bos", "eos", "padding"):
        token = metadata.get(f"{_KEY}{role}_token_id")
        if token is not None and not 0 <= token < count:
            raise WeightsError(f"{where}: {_KEY}{role}_token_id {token} is outside the vocabulary of {count}")
        ids[role] = token
    surround: list[tuple[int, ...]] = []
    for role, default in (("bos", kind.adds_bos), ("eos", False)):
        token = ids[role]
        if not metadata.get(f"{_KEY}add_{role}_token", default):
            surround.append(())
        elif token is not None:
            surround.append((token,))
        else:
            raise WeightsError(
                f"{where}: texts should be surrounded with a {role} token, but {_KEY}{role}_token_id is absent"
            )
    return Tokenizer(
        backend,
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["padding"],
        surround=(surround[0], surround[1]),
    )
