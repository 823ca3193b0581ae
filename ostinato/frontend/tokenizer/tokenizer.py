"""The tokenizer that the rest of the package sees.

The library does the work; this class fixes what the library leaves to the caller: special tokens written in a text are plain text unless asked for (a user
cannot end a turn by typing its end marker), truncation and padding settings in the file have no effect, and ids are checked. Which tokens surround a text
is decided once, by the file's post-processor or a template in its place. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import tokenizers.decoders
from tokenizers.processors import TemplateProcessing

from ostinato.frontend.tokenizer.backend_errors import library_errors
from ostinato.ir.checks import integer
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError
from ostinato.ir.forks import renew_after_fork

__all__ = ["EncodedPair", "Tokenizer", "checked_ids", "surround"]

_ID_LIMIT = 2**32
"""The library's ids have 32 bits."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two texts as one sequence: token ids, and for each token 0 or 1, the text that it belongs to (BERT's token types)."""

    ids: list[int]
    type_ids: list[int]


class Tokenizer:
    """Encodes and decodes with one vocabulary; the backend's post-processor says which special tokens surround a text."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.after_fork()
        renew_after_fork(self)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)

    def after_fork(self) -> None:
        """A new lock: the library keeps "parse special tokens" as state of the tokenizer."""
        self._lock = threading.Lock()

    @staticmethod
    def from_file(
        path: Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        added_tokens: Mapping[int, tokenizers.AddedToken] | None = None,
    ) -> Tokenizer:
        """The tokenizer in a `tokenizer.json`. Where `add_bos` or `add_eos` is given, it decides instead of the file's post-processor.

        `added_tokens` by id add to the file's own, and win over them in how a token is matched. Raises `WeightsError` for a file that the library cannot
        read, `ConfigError` for special tokens that are not in the vocabulary and for added ones that get another id than the one given.
        """
        ids: dict[str, int | None] = {}
        with library_errors(f"{path} is not a usable tokenizer"):
            backend = tokenizers.Tokenizer.from_file(str(path))
            _add_tokens(backend, added_tokens or {}, path)
            for role, text in (("bos_token", bos_token), ("eos_token", eos_token), ("pad_token", pad_token)):
                ids[role] = None if text is None else backend.token_to_id(text)
            if add_bos is not None or add_eos is not None:
                before = _required(ids["bos_token"], "bos_token", bos_token, path) if add_bos else None
                after = _required(ids["eos_token"], "eos_token", eos_token, path) if add_eos else None
                backend.post_processor = surround(before, after)
        return Tokenizer(
            backend,
            bos_token_id=ids["bos_token"],
            eos_token_id=ids["eos_token"],
            pad_token_id=ids["pad_token"],
        )

    def to_json(self) -> str:
        """The library's own form of the vocabulary with all that is done to a text: what `from_json` takes."""
        return str(self._backend.to_str())

    @staticmethod
    def from_json(
        text: str,
        where: str,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
    ) -> Tokenizer:
        """The tokenizer that `to_json` wrote; `where` names its file. Raises `WeightsError` for a text that the library cannot read."""
        with library_errors(f"{where} has no usable tokenizer"):
            backend = tokenizers.Tokenizer.from_str(text)
        return Tokenizer(backend, bos_token_id=bos_token_id, eos_token_id=eos_token_id, pad_token_id=pad_token_id)

    @property
    def is_byte_level(self) -> bool:
        """True when every token is a run of bytes written in the byte-level alphabet, so that tokens decode independently."""
        return isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel)

    @library_errors("the tokenizer cannot encode this text")
    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        parse_special: bool = False,
        max_length: int | None = None,
    ) -> list[int]:
        """Token ids of `text`. `add_special_tokens` puts the model's begin and end tokens around it, where the files ask for them.

        `parse_special` turns special tokens written in the text into their ids, as a rendered chat template needs; without it they are plain text.
        A text of more than `max_length` tokens, special ones counted, loses its end (the special tokens stay).
        Raises `DTypeError` for anything but text that UTF-8 can express, `ConfigError` for a length that leaves no room, and `WeightsError` where the
        tokenizer's files turn out to be damaged.
        """
        encoding = self._encoding(text, parse_special)
        if not add_special_tokens:
            if max_length is not None:
                encoding.truncate(integer(max_length, "max_length", low=0))
            return list(encoding.ids)
        if max_length is not None:
            encoding.truncate(self._room(max_length, pair=False))
        return list(self._backend.post_process(encoding, None, True).ids)

    @library_errors("the tokenizer cannot encode these texts")
    def encode_pair(self, first: str, second: str, *, max_length: int | None = None) -> EncodedPair:
        """Two texts as one sequence with the special tokens that the files put around and between them.

        Of a pair of more than `max_length` tokens, the longer text loses its end until both are equally long, then both lose theirs.
        Raises what `encode` raises.
        """
        encodings = [self._encoding(text, False) for text in (first, second)]
        if max_length is not None:
            room = self._room(max_length, pair=True)
            shorter, longer = sorted(encodings, key=len)
            shorter.truncate(min(len(shorter), room // 2))
            longer.truncate(min(len(longer), room - len(shorter)))
        joined = self._backend.post_process(encodings[0], encodings[1], True)
        return EncodedPair(list(joined.ids), list(joined.type_ids))

    def _encoding(self, text: str, parse_special: bool) -> tokenizers.Encoding:
        _check_text(text)
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return self._backend.encode(text, add_special_tokens=False)

    def _room(self, max_length: int, pair: bool) -> int:
        """Tokens of text that fit beside the special ones."""
        special = self._backend.num_special_tokens_to_add(pair)
        return integer(max_length, "max_length", low=special) - special

    @library_errors("the tokenizer cannot decode these ids")
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids beyond the vocabulary (a model may pad it) add nothing.

        Raises `BoundsError` for negative ids and `DTypeError` for anything but integers.
        """
        known = checked_ids(ids)
        return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def piece(self, token: int) -> str:
        """The token as the vocabulary writes it (bytes in the byte-level alphabet). Raises `BoundsError` when there is none."""
        (number,) = checked_ids((token,))
        found = self.find_piece(number)
        if found is None:
            raise BoundsError(f"token id {token} is not in the vocabulary of {self.vocab_size}")
        return found

    def find_piece(self, token: int) -> str | None:
        """Like `piece`, None where the vocabulary has no such id."""
        found: str | None = self._backend.id_to_token(token) if 0 <= token < _ID_LIMIT else None
        return found

    def token_id(self, piece: str) -> int | None:
        """The id of a token written as the vocabulary writes it, None when there is none. Raises `DTypeError` for anything but text."""
        _check_text(piece)
        found: int | None = self._backend.token_to_id(piece)
        return found


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Plain integers of `ids` (numpy integers too). Raises `BoundsError` below 0 or beyond 32 bits, `DTypeError` for other types."""
    given: Any = ids  # callers are not type-checked
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise DTypeError(f"token ids are a list of integers, found {type(given).__name__}")
    checked = []
    for token in given:
        number = integer(token, "a token id", error=DTypeError)
        if not 0 <= number < _ID_LIMIT:
            raise BoundsError(f"token id {number} is outside [0, {_ID_LIMIT})")
        checked.append(number)
    return checked


def _check_text(text: object) -> None:
    """Raises `DTypeError` for anything but text that UTF-8 can express."""
    if not isinstance(text, str):
        raise DTypeError(f"expected text to encode, found {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DTypeError(
            f"the text cannot be encoded: {error}", hint="it holds half of a surrogate pair; decode its source again"
        ) from error


def surround(before: int | None, after: int | None, *, between: int | None = None) -> TemplateProcessing:
    """A post-processor that puts the ids `before` and `after` around every text, None standing for nothing.

    Of a pair, both texts are surrounded; with `between`, it alone parts them, and the second one is of type 1 from there on.
    """
    ids = {"before": before, "after": after, "between": between}
    known = [(name, token) for name, token in ids.items() if token is not None]
    present = {name for name, _ in known}

    def sequence(*names: str) -> list[str]:
        return [name for name in names if name[0] == "$" or name.partition(":")[0] in present]

    joint = ["between:0"] if between is not None else ["after:0", "before:1"]
    return TemplateProcessing(
        single=sequence("before:0", "$A:0", "after:0"),
        pair=sequence("before:0", "$A:0", *joint, "$B:1", "after:1"),
        special_tokens=known,
    )


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Mapping[int, tokenizers.AddedToken], path: Path) -> None:
    known = backend.get_added_tokens_decoder()
    new = {token: entry for token, entry in sorted(tokens.items()) if known.get(token) != entry}
    backend.add_tokens(list(new.values()))
    for token, entry in new.items():
        found = backend.token_to_id(entry.content)
        if found != token:
            raise ConfigError(
                f"{path}: the added token {entry.content!r} has id {found}, and {token} beside it",
                hint="tokenizer.json and tokenizer_config.json are from different models: get both again",
            )


def _required(token: int | None, role: str, text: str | None, path: Path) -> int:
    if token is None:
        named = f"{role} {text!r} is not in the vocabulary" if text is not None else f"no {role} is named"
        raise ConfigError(
            f"{path} should surround texts with a {role}, but {named}", hint="correct tokenizer_config.json"
        )
    return token
