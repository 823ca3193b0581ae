"""WordPiece vocabularies of BERT: from `vocab.txt` of a directory without `tokenizer.json`, and from GGUF files (`bert`).

A word is cut into the longest pieces from its start. A vocabulary marks the pieces that continue a word with `##`; GGUF files mark those that start one
instead, with U+2581. Both leave out whether texts are brought to lower case: a directory says it beside the vocabulary, a GGUF file nowhere.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ostinato.frontend.tokenizer.backend_errors import library_errors
from ostinato.frontend.tokenizer.gguf_vocabulary import CONTROL, UNKNOWN, GgufVocabulary
from ostinato.frontend.tokenizer.tokenizer import Tokenizer, surround
from ostinato.ir.errors import ConfigError, WeightsError

__all__ = ["tokenizer_from_vocab_txt", "wordpiece_backend"]

_START, _CONTINUED = "\u2581", "##"
_ROLES = ("unk", "sep", "pad", "cls", "mask")


def wordpiece_backend(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """The `bert` kind of vocabulary. Raises `ConfigError` for a cased one, of which the file does not say how texts are to be treated."""
    ids = {_plain(piece, vocabulary.types[token]): token for piece, token in vocabulary.ids.items()}
    if any(letter in ids for letter in string.ascii_uppercase):
        raise ConfigError(
            f"{vocabulary.where}: the WordPiece vocabulary is cased, and the file does not say how its texts are prepared",
            hint="use the model's Hugging Face directory",
        )
    unknown = vocabulary.token("unknown")
    name = "[UNK]" if unknown is None else vocabulary.pieces[unknown]
    return _backend(ids, name, True, None, True, vocabulary.where)


def tokenizer_from_vocab_txt(
    path: Path,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
    special_tokens: Mapping[str, str],
) -> Tokenizer:
    """The tokenizer of a BERT directory that has one token a line in `vocab.txt`. `strip_accents` None: with the lower case.

    `special_tokens` are the texts by role (unk_token, cls_token, sep_token, pad_token, mask_token), BERT's own where a role is not in it.
    Raises `WeightsError` for a file that is no vocabulary or lacks one of them.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is not a readable vocabulary: {error}", hint="download it again") from error
    if lines[-1] == "":
        lines.pop()
    ids = {line.removesuffix("\r"): token for token, line in enumerate(lines)}
    names = {role: special_tokens.get(f"{role}_token", f"[{role.upper()}]") for role in _ROLES}
    absent = [name for name in names.values() if name not in ids]
    if absent:
        raise WeightsError(
            f"{path} has no {', '.join(absent)} among its {len(ids)} tokens",
            hint="is it the vocabulary of a BERT model?",
        )
    with library_errors(f"{path} is not a usable vocabulary"):
        backend = _backend(ids, names["unk"], lowercase, strip_accents, chinese_characters, str(path))
        backend.add_special_tokens(list(names.values()))
    backend.post_processor = surround(ids[names["cls"]], ids[names["sep"]], between=ids[names["sep"]])
    return Tokenizer(backend, pad_token_id=ids[names["pad"]])


def _plain(piece: str, kind: int) -> str:
    """A piece of a GGUF file in the spelling of `vocab.txt`. Older converters left bracketed tokens as they are, without a type of their own."""
    if kind in (CONTROL, UNKNOWN) or (piece.startswith("[") and piece.endswith("]") and len(piece) > 2):
        return piece
    return piece[len(_START) :] if piece.startswith(_START) else _CONTINUED + piece


def _backend(
    ids: dict[str, int],
    unknown: str,
    lowercase: bool,
    strip_accents: bool | None,
    chinese_characters: bool,
    where: str,
) -> tokenizers.Tokenizer:
    if unknown not in ids:
        raise WeightsError(f"{where}: the unknown token {unknown!r} is not in the vocabulary")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_characters, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUED)
    return backend
