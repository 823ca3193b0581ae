"""A stream of tokens as training data: windows of it, each with the same window one token later as its target.

Tokens come as arrays, as files of 16- or 32-bit integers that are mapped and never read as a whole, or as texts and a tokenizer. Window w holds the tokens from
w * sequence on, and its target the ones from w * sequence + 1 on: every token of the stream but the last few is an input once an epoch. All tokens are
looked at once when the data are opened, so that one outside the vocabulary is found before the first step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from ostinato.ir.checks import integer, several
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, InputError
from ostinato.ir.types import Array
from ostinato.runtime.training.batches import Batches

__all__ = ["TOKEN_DTYPES", "TokenDataset", "TokenEncoder", "open_tokens"]

TOKEN_DTYPES: Mapping[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}
"""What the tokens of a file of bare little-endian integers may be; a suffix of that name says it."""
_MOST_VOCABULARY = 2**31 - 1
_BLOCK = 1 << 22
"""Tokens that are looked at together."""
_KINDS = (np.uint16, np.int32, np.int64, np.uint8, np.int16, np.uint32)


class TokenEncoder(Protocol):
    """The part of a tokenizer that makes training data."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class TokenDataset(Batches):
    """Batches of windows of one stream of tokens: `tokens` is an array of one dimension, or several that follow each other.

    `vocab_size` is that of the model; a token outside [0, vocab_size) is a `BoundsError` that names its place. `shuffle` deals the windows out in an order
    of its own in each epoch. Raises `DTypeError` for anything but integers, `InputError` for data that do not fill a batch, `ConfigError` for unusable sizes.
    """

    def __init__(
        self,
        tokens: Array | Sequence[int] | Sequence[Array],
        *,
        batch: int,
        sequence: int,
        vocab_size: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        super().__init__(batch=batch, sequence=sequence, seed=seed, shuffle=shuffle)
        self.vocab_size = integer(vocab_size, "vocab_size", low=1, high=_MOST_VOCABULARY)
        self._pieces = _pieces_of(tokens)
        self._ends = np.cumsum([piece.size for piece in self._pieces], dtype=np.int64)
        self._hash = self._scan()
        self._need_rows(f"{self.tokens} tokens give {self.rows} windows of {self.sequence} tokens and their targets")

    @staticmethod
    def from_files(
        paths: Iterable[str | os.PathLike[str]], *, dtype: str | None = None, **settings: Any
    ) -> TokenDataset:
        """The tokens of files, one after the other, mapped; see `open_tokens` for the files and `TokenDataset` for `settings` and what is raised."""
        files = several(paths, str | os.PathLike, "paths of files of tokens")
        return TokenDataset([open_tokens(path, dtype) for path in files], **settings)

    @staticmethod
    def from_texts(texts: Iterable[str], tokenizer: TokenEncoder, **settings: Any) -> TokenDataset:
        """The tokens of texts, one after the other, each followed by the tokenizer's end token where it has one.

        No special tokens are put around a text, and none are read from it. `vocab_size` is the tokenizer's unless `settings` name the model's.
        """
        pieces = []
        for text in several(texts, str, "texts"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            pieces.append(np.array(ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id], np.int32))
        if not pieces:
            raise InputError("there are no texts", hint="give at least one")
        return TokenDataset([np.concatenate(pieces)], **{"vocab_size": tokenizer.vocab_size, **settings})

    @property
    def tokens(self) -> int:
        """Tokens of the stream."""
        return int(self._ends[-1])

    @property
    def rows(self) -> int:
        return max(0, (self.tokens - 1) // self.sequence)

    @property
    def content_hash(self) -> str:
        return self._hash

    def _row(self, number: int) -> tuple[Array, Array]:
        window = self._read(number * self.sequence, self.sequence + 1)
        return window[:-1], window[1:]

    def _read(self, start: int, length: int) -> Array:
        """Tokens [start, start + length) of the stream, int32."""
        found = np.empty(length, dtype=np.int32)
        done, piece = 0, int(np.searchsorted(self._ends, start, side="right"))
        while done < length:
            offset = start + done - (int(self._ends[piece]) - self._pieces[piece].size)
            part = self._pieces[piece][offset : offset + length - done]
            found[done : done + part.size] = part
            done, piece = done + part.size, piece + 1
        return found

    def _scan(self) -> str:
        """The hash of all tokens as int32, each of them checked."""
        digest, seen = xxhash.xxh3_128(), 0
        for piece in self._pieces:
            for block in _blocks(piece):
                low, high = int(block.min()), int(block.max())
                if low < 0 or high >= self.vocab_size:
                    first = int(np.argmax((block < 0) | (block >= self.vocab_size)))
                    raise BoundsError(
                        f"token {seen + first} is {int(block[first])}, outside the vocabulary of {self.vocab_size}",
                        hint="the tokens were made with another tokenizer than the model's",
                    )
                digest.update(np.ascontiguousarray(block, dtype="<i4").data)
                seen += block.size
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"<{self.tokens} tokens: {self.batches_per_epoch} batches of {self.batch} x {self.sequence} an epoch>"


def open_tokens(path: str | os.PathLike[str], dtype: str | None = None) -> Array:
    """The tokens of a file, mapped: a `.npy` array of one dimension, or bare little-endian integers whose type the suffix (.uint16, .int32) or `dtype` names.

    Raises `ConfigError` for a file that cannot be read or whose type nothing names, and `InputError` for one that does not hold whole integers.
    """
    file = Path(path)
    kind = TOKEN_DTYPES.get(file.suffix.removeprefix(".") if dtype is None else dtype)
    if dtype is not None and kind is None:
        raise ConfigError(f"dtype of {file} is {dtype!r}", hint=f"use {' or '.join(TOKEN_DTYPES)}")
    try:
        if file.suffix == ".npy":
            loaded: Array = np.load(file, mmap_mode="r", allow_pickle=False)
            return loaded
        if kind is None:
            raise ConfigError(
                f"{file} does not say what its integers are",
                hint=f'name it .{", .".join(TOKEN_DTYPES)} or .npy, or give dtype="uint16"',
            )
        size = file.stat().st_size
        if size == 0 or size % kind.itemsize:
            raise InputError(
                f"{file} has {size} bytes, expected whole integers of {kind.itemsize} bytes", hint="is it complete?"
            )
        mapped: Array = np.memmap(file, dtype=kind, mode="r")
        return mapped
    except (OSError, EOFError) as error:
        raise ConfigError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", hint="check the path"
        ) from None
    except ValueError as error:
        if isinstance(error, ConfigError | InputError):
            raise
        raise InputError(f"{file} is no array of integers: {error}", hint="write it with numpy.save") from None


def _pieces_of(tokens: Any) -> list[Array]:
    """One piece or several, each an array of one dimension of integers that is not empty."""
    parts = isinstance(tokens, list | tuple) and any(getattr(item, "ndim", 0) == 1 for item in tokens)
    try:
        pieces = [np.asarray(item) for item in (tokens if parts else [tokens])]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(f"tokens are no array: {error}", hint="give arrays of one dimension") from None
    for piece in pieces:
        if piece.ndim != 1:
            raise DTypeError(f"tokens have shape {list(piece.shape)}", hint="give arrays of one dimension")
        if piece.size and piece.dtype.newbyteorder("=") not in _KINDS:
            kinds = ", ".join(np.dtype(kind).name for kind in _KINDS)
            raise DTypeError(f"tokens are {piece.dtype}, expected integers", hint=f"these are taken: {kinds}")
    filled = [piece for piece in pieces if piece.size]
    if not filled:
        raise InputError("there are no tokens", hint="give at least batch * sequence + 1 of them")
    return filled


def _blocks(piece: Array) -> Iterator[Array]:
    for start in range(0, piece.size, _BLOCK):
        yield piece[start : start + _BLOCK]
