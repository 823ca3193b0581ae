"""Text from a growing sequence of token ids, a piece at a time.

A token may end in the middle of a character. What is not yet a whole character is held back and never shown as U+FFFD. Byte-level vocabularies are
decoded byte by byte, and the pieces joined equal the decoding of all ids at once, whatever the ids. Other decoders join tokens by rules of their own, so
there the text of a short window of tokens is compared with the text of the same window one token earlier; the pieces join to the whole wherever the ids
spell valid text (byte fallback replaces a whole run of bytes when one of them is wrong, also those that were shown before).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ostinato.frontend.tokenizer.tokenizer import Tokenizer, checked_ids

__all__ = ["StreamDecoder"]

_CONTEXT = 5
"""Ids before a sequence that its first characters may depend on."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character of the byte-level alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 upwards in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class StreamDecoder:
    """Decodes one sequence. Not for several threads, and not for a second sequence after `flush`: make a new one.

    `after` are the ids that stand before it: a decoder that drops the space in front of a text keeps the one that continues them.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace") if tokenizer.is_byte_level else None
        self._window: list[int] = [] if self._utf8 is not None else checked_ids(after[-_CONTEXT:])
        # a window that begins inside a character loses its whole run of bytes; one that ends inside a character is of no use
        while self._window and self._text(len(self._window)).endswith(_REPLACEMENT):
            del self._window[0]
        self._shown = len(self._window)  # tokens of the window whose text has been given out

    def push(self, token: int) -> str:
        """The characters that `token` completes, often none. Ids beyond the vocabulary add nothing; negative ones raise `BoundsError`."""
        (number,) = checked_ids((token,))
        if self._skip and number in self._tokenizer.special_ids:
            return ""
        if self._utf8 is not None:
            return self._utf8.decode(self._piece_bytes(number))
        return self._push_window(number)

    def flush(self) -> str:
        """What was held back: an incomplete character at the end of the sequence becomes U+FFFD."""
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        rest = self._text(len(self._window))[len(self._text(self._shown)) :]
        self._window, self._shown = [], 0
        return rest

    def _piece_bytes(self, token: int) -> bytes:
        piece = self._tokenizer.find_piece(token)
        if piece is None:
            return b""
        found = [_BYTE_OF.get(character) for character in piece]
        plain = [byte for byte in found if byte is not None]
        # an added token may hold characters outside the alphabet: then it is text
        return bytes(plain) if len(plain) == len(found) else piece.encode("utf-8")

    def _push_window(self, token: int) -> str:
        self._window.append(token)
        before, now = self._text(self._shown), self._text(len(self._window))
        if len(now) <= len(before) or now.endswith(_REPLACEMENT):
            return ""
        # the tokens shown last stay as context: a decoder may treat the first token of a text differently
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return now[len(before) :]

    def _text(self, count: int) -> str:
        return self._tokenizer.decode(self._window[:count], skip_special_tokens=self._skip)
