"""Text to token ids and back, over the `tokenizers` library, from `tokenizer.json` or from the metadata of a GGUF file."""

from __future__ import annotations

from ostinato.frontend.tokenizer.gguf_vocabulary import PRE_TOKENIZERS, tokenizer_from_gguf
from ostinato.frontend.tokenizer.stream import StreamDecoder
from ostinato.frontend.tokenizer.tokenizer import Tokenizer

__all__ = ["PRE_TOKENIZERS", "StreamDecoder", "Tokenizer", "tokenizer_from_gguf"]
