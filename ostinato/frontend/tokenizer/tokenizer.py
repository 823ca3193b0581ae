"""The tokenizer that the rest of the package sees.

The library does the work; this class fixes what the library leaves to the caller: special tokens written in a text are plain text unless asked for (a user
cannot end a turn by typing its end marker), truncation and padding settings in the file have no effect, and ids are checked. Which tokens surround a text
is decided once, from the file's metadata. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import tokenizers
import tokenizers.decoders

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, WeightsError

__all__ = ["Tokenizer", "checked_ids"]


class Tokenizer:
    """Encodes and decodes with one vocabulary.

    `surround` is (ids before, ids after) every text encoded with special tokens; None leaves that to the file's own post-processor.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        surround: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._lock = threading.Lock()  # the library keeps "parse special tokens" as state of the tokenizer
        self._surround = surround
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)

    @staticmethod
    def from_file(
        path: Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
    ) -> Tokenizer:
        """The tokenizer in a `tokenizer.json`. Where `add_bos` or `add_eos` is given, it decides instead of the file's post-processor.

        Raises `WeightsError` for a file that the library cannot read and `ConfigError` for special tokens that are not in the vocabulary.
        """
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise WeightsError(f"{path} is not a usable tokenizer: {error}", hint="download it again") from error
        ids: dict[str, int | None] = {}
        for role, text in (("bos_token", bos_token), ("eos_token", eos_token), ("pad_token", pad_token)):
            ids[role] = None if text is None else backend.token_to_id(text)
        surround = None
        if add_bos is not None or add_eos is not None:
            before = _required(ids["bos_token"], "bos_token", bos_token, path) if add_bos else ()
            after = _required(ids["eos_token"], "eos_token", eos_token, path) if add_eos else ()
            surround = (before, after)
        return Tokenizer(
            backend,
            bos_token_id=ids["bos_token"],
            eos_token_id=ids["eos_token"],
            pad_token_id=ids["pad_token"],
            surround=surround,
        )

    @property
    def is_byte_level(self) -> bool:
        """True when every token is a run of bytes written in the byte-level alphabet, so that tokens decode independently."""
        return isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel)

    def encode(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = False) -> list[int]:
        """Token ids of `text`. `add_special_tokens` puts the model's begin and end tokens around it, where the files ask for them.

        `parse_special` turns special tokens written in the text into their ids, as a rendered chat template needs; without it they are plain text.
        Raises `DTypeError` for anything but text that UTF-8 can express.
        """
        if not isinstance(text, str):
            raise DTypeError(f"expected text to encode, found {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DTypeError(
                f"the text cannot be encoded: {error}",
                hint="it holds half of a surrogate pair; decode its source again",
            ) from error
        own = add_special_tokens and self._surround is None
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            ids: list[int] = self._backend.encode(text, add_special_tokens=own).ids
        if add_special_tokens and self._surround is not None:
            before, after = self._surround
            ids = [*before, *ids, *after]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids beyond the vocabulary (a model may pad it) add nothing.

        Raises `BoundsError` for negative ids and `DTypeError` for anything but integers.
        """
        known = checked_ids(ids)
        return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def piece(self, token: int) -> str:
        """The token as the vocabulary writes it (bytes in the byte-level alphabet). Raises `BoundsError` when there is none."""
        (number,) = checked_ids((token,))
        found: str | None = self._backend.id_to_token(number)
        if found is None:
            raise BoundsError(f"token id {token} is not in the vocabulary of {self.vocab_size}")
        return found

    def find_piece(self, token: int) -> str | None:
        """Like `piece`, None where the vocabulary has no such id."""
        found: str | None = self._backend.id_to_token(token)
        return found

    def token_id(self, piece: str) -> int | None:
        """The id of a token written as the vocabulary writes it, None when there is none."""
        found: int | None = self._backend.token_to_id(piece)
        return found


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Plain integers of `ids` (numpy integers too). Raises `BoundsError` below 0 or beyond 32 bits, `DTypeError` for other types."""
    checked = []
    for token in ids:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise DTypeError(f"token ids are integers, found {token!r}")
        number = token.__index__()
        if not 0 <= number < 2**32:
            raise BoundsError(f"token id {number} is outside [0, 4294967296)")
        checked.append(number)
    return checked


def _required(token: int | None, role: str, text: str | None, path: Path) -> tuple[int, ...]:
    if token is None:
        named = f"{role} {text!r} is not in the vocabulary" if text is not None else f"no {role} is named"
        raise ConfigError(
            f"{path} should surround texts with a {role}, but {named}", hint="correct tokenizer_config.json"
        )
    return (token,)
