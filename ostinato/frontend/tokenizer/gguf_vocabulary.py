"""The vocabulary that a GGUF file carries (`tokenizer.ggml.*`), read and checked once for all kinds of tokenizer.

Ids are places in the list of tokens. Tokens of type "unused" and empty ones only pad the list: they are no part of the vocabulary, so that no text becomes
one and their ids decode to nothing, as ids beyond the list do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.ir.errors import ConfigError, OstinatoError, WeightsError

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "GgufVocabulary"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types of the format."""

_KEY = "tokenizer.ggml."


class GgufVocabulary:
    """The tokenizer keys of one file; `where` names it in errors.

    Raises `WeightsError` for a vocabulary that is absent or inconsistent.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.architecture = metadata.get("general.architecture")
        self._metadata = metadata
        self.pieces = self.strings("tokens")
        self.types = self._types()
        used = [
            (piece, token) for token, piece in enumerate(self.pieces) if piece != "" and self.types[token] != UNUSED
        ]
        self.ids = dict(used)
        if len(self.ids) != len(used):
            twice = next(piece for piece, token in used if self.ids[piece] != token)
            raise self._refuse(f"tokens: {twice!r} appears twice")

    def _refuse(self, text: str, kind: type[OstinatoError] = WeightsError) -> OstinatoError:
        """The error that says `text`, which begins with a key, of this file."""
        return kind(f"{self.where}: {_KEY}{text}", hint="convert the model again, with its tokenizer")

    def text(self, key: str) -> str | None:
        """A text, None where the file has none."""
        value = self._metadata.get(_KEY + key)
        if value is not None and not isinstance(value, str):
            raise self._refuse(f"{key} is {value!r}, expected a text", ConfigError)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; absent: the default."""
        value = self._metadata.get(_KEY + key, default)
        if not isinstance(value, bool):
            raise self._refuse(f"{key} is {value!r}, expected true or false", ConfigError)
        return value

    def strings(self, key: str) -> Sequence[str]:
        """A list of texts; raises `WeightsError` where it is missing or empty."""
        values = self._metadata.get(_KEY + key)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self._refuse(f"{key} is missing or empty")
        if not all(isinstance(value, str) for value in values):
            raise self._refuse(f"{key} is not an array of strings")
        return values

    def scores(self) -> Sequence[float]:
        """The score of each token; raises `WeightsError` where they are missing or do not fit the tokens."""
        values = self._metadata.get(_KEY + "scores")
        if not isinstance(values, Sequence) or not all(isinstance(value, float) for value in values):
            raise self._refuse("scores is missing or not an array of numbers")
        if len(values) != len(self.pieces) or not all(map(math.isfinite, values)):
            raise self._refuse(
                f"scores has {len(values)} entries, expected a finite number for each of {len(self.pieces)} tokens"
            )
        return values

    def token(self, role: str) -> int | None:
        """The id of a special token (bos, eos, padding, unknown, ...), None where the file names none. Raises `WeightsError` for one outside the list."""
        token = self._metadata.get(f"{_KEY}{role}_token_id")
        if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
            raise self._refuse(f"{role}_token_id is {token!r}, expected an integer", ConfigError)
        if token is not None and not 0 <= token < len(self.pieces):
            raise self._refuse(f"{role}_token_id {token} is outside the vocabulary of {len(self.pieces)}")
        return token

    def added(self, flag: str, default: bool, role: str) -> int | None:
        """The token that the file (or else the default of the kind) puts beside every text, None for none.

        Raises `WeightsError` where a text should have one and the file does not say which.
        """
        if not self.flag(flag, default):
            return None
        token = self.token(role)
        if token is None:
            raise self._refuse(f"{role}_token_id is absent, and {_KEY}{flag} puts that token beside every text")
        return token

    def _types(self) -> Sequence[int]:
        types = self._metadata.get(_KEY + "token_type")
        if types is None:
            return [NORMAL] * len(self.pieces)
        if not isinstance(types, Sequence) or not all(type(kind) is int for kind in types):
            raise self._refuse("token_type is not an array of integers")
        if len(types) != len(self.pieces):
            raise self._refuse(f"token_type has {len(types)} entries for {len(self.pieces)} tokens")
        return types
