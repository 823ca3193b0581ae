"""A tokenizer from the metadata of a GGUF file: one row for each kind of vocabulary, and what the kinds have in common.

The file gives tokens, their types and special ids; how texts are split and joined belongs to the kind (byte_level.py, sentencepiece.py, wordpiece.py).
Where a file leaves out whether texts get a begin or end token, the kind's own default holds, as it does in the programs that the format was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from ostinato.frontend.tokenizer.backend_errors import library_errors
from ostinato.frontend.tokenizer.byte_level import byte_level_backend, pre_tokenizer_of
from ostinato.frontend.tokenizer.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, GgufVocabulary
from ostinato.frontend.tokenizer.sentencepiece import sentencepiece_backend
from ostinato.frontend.tokenizer.tokenizer import Tokenizer, surround
from ostinato.frontend.tokenizer.wordpiece import wordpiece_backend
from ostinato.ir.errors import ConfigError, NotYetAvailable, WeightsError

__all__ = ["tokenizer_from_gguf", "turn_end_ids"]

_TURN_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|end_of_text|>",
        "<|endoftext|>",
    )
)
_PHI3_KEEPS_SPACE = frozenset(("<unk>", "<s>", "<|endoftext|>"))
"""The tokens of Phi-3 that do not take the white space after them; the format has no place to say it of the others."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """`template` gives the special tokens around a text, from the vocabulary and the backend built of it."""

    description: str
    backend: Callable[[GgufVocabulary], tokenizers.Tokenizer]
    template: Callable[[GgufVocabulary, tokenizers.Tokenizer], TemplateProcessing]


def tokenizer_from_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer in GGUF `metadata` (keys `tokenizer.ggml.*`; arrays as sequences). `where` names the file in errors.

    Raises `WeightsError` when the vocabulary is absent or inconsistent, `ConfigError` for unknown tokenizer and pre-tokenizer names, and
    `NotYetAvailable` for tokenizer models of a later version.
    """
    kind = _kind(metadata.get("tokenizer.ggml.model"), where)
    vocabulary = GgufVocabulary(metadata, where)
    with library_errors(f"{where}: the vocabulary is not usable"):
        backend = kind.backend(vocabulary)
        _add_tokens(backend, vocabulary)
        backend.post_processor = kind.template(vocabulary, backend)
    return Tokenizer(
        backend,
        bos_token_id=vocabulary.token("bos"),
        eos_token_id=vocabulary.token("eos"),
        pad_token_id=vocabulary.token("padding"),
    )


def turn_end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """The control tokens in GGUF `metadata` whose name says that a turn ends there: most files name only one of their end tokens."""
    pieces, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if not (isinstance(pieces, Sequence) and isinstance(types, Sequence)):
        return ()
    return tuple(
        token
        for token, (piece, kind) in enumerate(zip(pieces, types, strict=False))
        if kind == CONTROL and piece in _TURN_ENDS
    )


def _byte_level_template(vocabulary: GgufVocabulary, backend: tokenizers.Tokenizer) -> TemplateProcessing:
    return _begin_and_end(vocabulary, begins=pre_tokenizer_of(vocabulary).adds_bos)


def _sentencepiece_template(vocabulary: GgufVocabulary, backend: tokenizers.Tokenizer) -> TemplateProcessing:
    return _begin_and_end(vocabulary, begins=True)


def _begin_and_end(vocabulary: GgufVocabulary, *, begins: bool) -> TemplateProcessing:
    """The begin and the end token where the file asks for them; where it says nothing, a text `begins` with one or not and ends without."""
    before = vocabulary.added("add_bos_token", begins, "bos")
    return surround(before, vocabulary.added("add_eos_token", False, "eos"))


def _wordpiece_template(vocabulary: GgufVocabulary, backend: tokenizers.Tokenizer) -> TemplateProcessing:
    """BERT's own: files write its two tokens under several roles, and flags that contradict each other."""
    found = []
    for name, roles in (("[CLS]", ("cls", "bos")), ("[SEP]", ("seperator", "eos"))):
        named = [token for role in roles if (token := vocabulary.token(role)) is not None]
        token = named[0] if named else backend.token_to_id(name)
        if token is None:
            raise WeightsError(
                f"{vocabulary.where}: the WordPiece vocabulary has no {name} and names no {roles[0]} token"
            )
        found.append(token)
    return surround(found[0], found[1], between=found[1])


_KINDS: Mapping[str, _Kind] = {
    "gpt2": _Kind("byte-level BPE", byte_level_backend, _byte_level_template),
    "llama": _Kind("SentencePiece", sentencepiece_backend, _sentencepiece_template),
    "bert": _Kind("WordPiece", wordpiece_backend, _wordpiece_template),
}
_LATER = {"t5": "unigram", "rwkv": "RWKV", "plamo2": "PLaMo"}


def _kind(model: Any, where: str) -> _Kind:
    if model is None:
        raise WeightsError(f"{where} carries no tokenizer", hint="convert the model again, with its tokenizer")
    if not isinstance(model, str):
        raise ConfigError(f"{where}: tokenizer.ggml.model is {model!r}, expected a text")
    if model in _LATER:
        raise NotYetAvailable(
            f"{where}: {_LATER[model]} tokenizers (tokenizer.ggml.model {model!r}) are not yet available"
        )
    if model not in _KINDS:
        known = ", ".join(f"{name} ({kind.description})" for name, kind in _KINDS.items())
        raise ConfigError(f"{where}: unknown tokenizer.ggml.model {model!r}", hint=f"known: {known}")
    return _KINDS[model]


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Control and user-defined tokens are found in the text before it is split; their ids are already in the vocabulary."""
    added = []
    for token, kind in enumerate(vocabulary.types):
        if kind not in (CONTROL, UNKNOWN, USER_DEFINED):
            continue
        text = backend.id_to_token(token)
        if text:
            added.append(
                tokenizers.AddedToken(
                    text,
                    special=kind != USER_DEFINED,
                    normalized=False,
                    rstrip=vocabulary.architecture == "phi3" and text not in _PHI3_KEEPS_SPACE,
                )
            )
    backend.add_tokens(added)
