"""Byte-level BPE, as GGUF files carry it: merges, and the name of a pre-tokenizer whose rules are not in the file.

The rules come from the public tokenizers of the models that the names stand for. A wrong pre-tokenizer still produces text, only worse text, so an unknown
name is refused and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ostinato.frontend.tokenizer.backend_errors import library_errors
from ostinato.frontend.tokenizer.gguf_vocabulary import GgufVocabulary
from ostinato.ir.errors import ConfigError, WeightsError

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "byte_level_backend", "pre_tokenizer_of"]

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_QWEN = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_BREAKS}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BREAKS}"
# words split where the case turns from lower to upper
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_PATHS}|{_BREAKS}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_PATHS}|{_BREAKS}"
_CJK = "[一-龥ࠀ-一가-퟿]+"
# the cased letters of the Unicode version that the model's authors had
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}",
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _BREAKS,
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before the merges: each pattern splits the pieces of the one before it.

    `byte_splits` apply after the text became bytes in the byte-level alphabet, the others before. `normal_form`: the text is brought to NFC first.
    `whole_words`: a piece that is a token itself is taken without applying merges. `adds_bos` holds where the file does not say.
    """

    splits: tuple[str, ...]
    byte_splits: tuple[str, ...] = ()
    normal_form: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_DIGITS_KIND = PreTokenizer((r"\p{N}", _WORDS))
_GPT4O_KIND = PreTokenizer((_GPT4O,))
_LLAMA3_KIND = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_NEOX_KIND = PreTokenizer((_WORDS,), normal_form=True)
_QWEN_KIND = PreTokenizer((_QWEN,), normal_form=True)
_WORDS_KIND = PreTokenizer((_WORDS,))
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "command-r": PreTokenizer((r"\p{N}", _WORDS), normal_form=True),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-r1-qwen": _QWEN_KIND,
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _WORDS), byte_splits=(r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon3": _LLAMA3_KIND,
    "gpt-2": _WORDS_KIND,
    "gpt-4o": _GPT4O_KIND,
    "llama-bpe": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "llama4": _GPT4O_KIND,
    "mpt": _NEOX_KIND,
    "olmo": _NEOX_KIND,
    "phi-2": _WORDS_KIND,
    "qwen2": _QWEN_KIND,
    "refact": _DIGITS_KIND,
    "smollm": _DIGITS_KIND,
    "stablelm2": _QWEN_KIND,
    "starcoder": _DIGITS_KIND,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
}
"""The pre-tokenizer of each `tokenizer.ggml.pre` name."""


def pre_tokenizer_of(vocabulary: GgufVocabulary) -> PreTokenizer:
    """The rules that the file's `pre` name stands for. Raises `ConfigError` where it has none, or one that is not known."""
    name = vocabulary.text("pre")
    if name is None:
        raise ConfigError(
            f"{vocabulary.where} does not say which pre-tokenizer its vocabulary needs (tokenizer.ggml.pre is absent)",
            hint="convert the model again with a current converter: guessing would silently change the tokens",
        )
    if name not in PRE_TOKENIZERS:
        raise ConfigError(
            f"{vocabulary.where}: unknown tokenizer.ggml.pre {name!r}", hint=f"known: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def byte_level_backend(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """The `gpt2` kind of vocabulary. Raises `WeightsError` for merges that do not fit it, `ConfigError` for what is not supported."""
    if vocabulary.flag("add_space_prefix", False):
        raise ConfigError(f"{vocabulary.where}: tokenizer.ggml.add_space_prefix is not supported for byte-level BPE")
    kind = pre_tokenizer_of(vocabulary)
    backend = tokenizers.Tokenizer(_merge_model(vocabulary, kind))
    if kind.normal_form:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *map(_split, kind.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            *map(_split, kind.byte_splits),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def _merge_model(vocabulary: GgufVocabulary, kind: PreTokenizer) -> models.BPE:
    pairs = []
    for merge in vocabulary.strings("merges"):
        left, separator, right = merge.partition(" ")
        if not (left and separator and right) or " " in right:
            raise WeightsError(f"{vocabulary.where}: merge {merge!r} is not two tokens separated by a space")
        pairs.append((left, right))
    with library_errors(f"{vocabulary.where}: vocabulary and merges do not fit"):
        return models.BPE(vocab=vocabulary.ids, merges=pairs, ignore_merges=kind.whole_words)
