"""Text to token ids and back, over the `tokenizers` library, from `tokenizer.json`, `vocab.txt` or the metadata of a GGUF file."""

from __future__ import annotations

from ostinato.frontend.tokenizer.byte_level import PRE_TOKENIZERS
from ostinato.frontend.tokenizer.gguf import tokenizer_from_gguf, turn_end_ids
from ostinato.frontend.tokenizer.stream import StreamDecoder
from ostinato.frontend.tokenizer.tokenizer import EncodedPair, Tokenizer
from ostinato.frontend.tokenizer.wordpiece import tokenizer_from_vocab_txt

__all__ = [
    "PRE_TOKENIZERS",
    "EncodedPair",
    "StreamDecoder",
    "Tokenizer",
    "tokenizer_from_gguf",
    "tokenizer_from_vocab_txt",
    "turn_end_ids",
]
