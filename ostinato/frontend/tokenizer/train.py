"""Tokenizers for fresh models: byte-level BPE learned from texts, or the 256 bytes alone. Either writes every text, and every byte, as tokens and back.

The `tokenizers` library learns the merges; the same texts give the same tokenizer. Token 0 ends a text and is the only special one.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ostinato.frontend.tokenizer.backend_errors import library_errors
from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError

__all__ = ["END_OF_TEXT", "byte_tokenizer", "trained_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
"""Token 0 of both kinds."""
_SMALLEST = 257
_LARGEST = 1 << 20


def byte_tokenizer() -> tokenizers.Tokenizer:
    """257 tokens: the end of a text, then the bytes in the order of their byte-level letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: token for token, piece in enumerate([END_OF_TEXT, *alphabet])}
    return _finished(tokenizers.Tokenizer(models.BPE(vocabulary, [])))


def trained_tokenizer(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE of up to `vocab_size` tokens, 257 and more: fewer where the texts have no more pairs to merge.

    Raises `ConfigError` for a size that cannot be, and for no text.
    """
    size = integer(vocab_size, "vocab_size", low=_SMALLEST, high=_LARGEST)
    listed = [text for text in texts if text]
    if not listed:
        raise ConfigError("there is no text to learn a tokenizer from", hint='give texts, or the tokenizer "bytes"')
    backend = _finished(tokenizers.Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    with library_errors("the tokenizer cannot be learned"):
        backend.train_from_iterator(listed, trainer)
    return backend


def _finished(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return backend
