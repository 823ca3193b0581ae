"""SentencePiece vocabularies, as GGUF files carry them (`llama`): pieces with scores, spaces written as U+2581, bytes for what has no piece.

The format has no merges: of all neighbours that make a piece together, those whose piece has the highest score are joined first. Written as merges of a
BPE model, that is every way to cut every piece into two pieces, in the order of scores.
"""

from __future__ import annotations

from bisect import bisect_left

import tokenizers
from tokenizers import decoders, models, normalizers

from ostinato.frontend.tokenizer.gguf_vocabulary import NORMAL, USER_DEFINED, GgufVocabulary
from ostinato.ir.errors import WeightsError

__all__ = ["sentencepiece_backend"]

_SPACE = "\u2581"


def sentencepiece_backend(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """The `llama` kind of vocabulary. Raises `WeightsError` without scores, without bytes or without an unknown token to stand for them."""
    absent = [name for name in _byte_pieces() if name not in vocabulary.ids]
    unknown = vocabulary.token("unknown")
    if absent and unknown is None:
        raise WeightsError(
            f"{vocabulary.where}: the vocabulary has no token for {len(absent)} bytes ({', '.join(absent[:3])}, ...) and names no unknown token",
            hint="convert the model again",
        )
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges(vocabulary),
            unk_token=None if unknown is None else vocabulary.pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.flag("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def _byte_pieces() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Pairs of pieces in the order in which they are joined; of the cuts of one piece, the one with the shorter left part comes first."""
    ids = vocabulary.ids
    lengths = sorted(
        {len(piece) for piece in ids}
    )  # a piece as long as a book is cut where another ends, not everywhere
    merges = []
    for piece, kind, score in zip(vocabulary.pieces, vocabulary.types, vocabulary.scores(), strict=True):
        if kind not in (NORMAL, USER_DEFINED):
            continue
        for cut in lengths[: bisect_left(lengths, len(piece))]:
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, cut, left, right))
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]
