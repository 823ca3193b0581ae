"""Small random encoders and MiniLM against another implementation: the cases, and one check of each that the stored and the live tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import write_hf_checkpoint
from tests.frontend.make_encoders import encoder_config, random_encoder, write_modules

__all__ = ["ENCODERS", "POOLINGS", "SENTENCES", "Encoder", "check_encoder", "check_minilm"]

TOLERANCE = 2e-4
"""Of the vectors' standard deviation, as for logits."""
MINILM_TOLERANCE = 1e-5
POOLINGS = ("mean", "cls", "lasttoken")


@dataclass(frozen=True, slots=True)
class Encoder:
    """A configuration in `config.json` terms and the lengths of the rows of a batch; `seed` fixes weights, ids and token types."""

    name: str
    config: dict[str, Any]
    lengths: tuple[int, ...]
    seed: int

    @property
    def rows(self) -> list[Array]:
        """int32 [length] each."""
        rng = np.random.default_rng(self.seed + 1000)
        return [rng.integers(0, self.config["vocab_size"], length, dtype=np.int32) for length in self.lengths]

    @property
    def types(self) -> list[Array]:
        """int32 [length] each."""
        rng = np.random.default_rng(self.seed + 2000)
        return [rng.integers(0, self.config["type_vocab_size"], length, dtype=np.int32) for length in self.lengths]


ENCODERS = (
    Encoder("erf", encoder_config(), (1, 2, 17, 64), 1),
    Encoder("tanh", encoder_config(hidden_act="gelu_new", layer_norm_eps=1e-5), (33, 5, 5, 64, 1), 2),
    Encoder("wide-heads", encoder_config(hidden_size=96, num_attention_heads=2, intermediate_size=100), (40, 9), 3),
    Encoder("narrow-heads", encoder_config(hidden_size=60, num_attention_heads=6), (64, 64, 3), 4),
    Encoder("one-head", encoder_config(hidden_size=40, num_attention_heads=1, type_vocab_size=1), (31, 16), 5),
    Encoder("deep", encoder_config(num_hidden_layers=5, type_vocab_size=3, intermediate_size=33), (20, 1, 50), 6),
)


def check_encoder(case: Encoder, reference: dict[str, Array], directory: Path, mode: str = "planned") -> None:
    """Every pooling, all rows of a batch at once, one at a time, and with other steps in between, against float32 [rows, hidden] of another implementation."""
    write_hf_checkpoint(directory, case.config, random_encoder(case.config, case.seed))
    for pooling in POOLINGS:
        write_modules(directory, {"pooling_mode": pooling})
        executable = ost.compile_encoder(directory, buckets={"B": [1, 4], "T": [64]}, mode=mode, threads=1)
        found = executable(case.rows, token_type_ids=case.types)["embedding"]
        expected = reference[pooling]
        limit = TOLERANCE * float(expected.std())
        error = np.abs(found.astype(np.float64) - expected)
        assert error.max() <= limit, f"{pooling}: off by {error.max():.3g}, allowed {limit:.3g}"
        single = [
            executable([row], token_type_ids=[types])["embedding"][0]
            for row, types in zip(case.rows, case.types, strict=True)
        ]
        assert np.array_equal(found, np.stack(single)), f"{pooling}: a row depends on its batch"


SENTENCES = (
    "The capital of France is Paris.",
    "Paris is the capital of France.",
    "",
    "a",
    "A cat sits outside.",
    "A kitten is sitting in the garden, looking at birds.",
    "The bill is due on Monday; pay it at once!",
    "How do I reset my password?",
    "I can't log in to my account any more, and the reset mail never arrives.",
    "E = mc^2",
    "3.14159 26535 89793 23846 26433",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "SELECT name, count(*) FROM users GROUP BY name HAVING count(*) > 1;",
    "naïve café, Größe, Łódź, Ελλάδα, Россия",
    "日本語の文章と中文字符以及 한국어",
    "emoji 🙂 👩‍👩‍👧‍👦 and symbols ½ ² €",
    "UPPER CASE AND lower case are the same to this model",
    "upper case and LOWER CASE are the same to this model",
    "   white   space\tand\nnew lines\r\n   ",
    "don't stop-believing (really?!) ... well; yes: 100%",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 150,
    "ha " * 40,
    "[CLS] special tokens [SEP] written in the text [MASK] are read as such [PAD]",
    "https://example.com/a/very/long/path?with=parameters&and=more#fragment",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "The quick brown fox jumps over the lazy dog. " * 60,
    "one two three four five six seven eight nine ten " * 25,
    "Compilers plan memory once, prove the plan, and replay it for as long as the music needs it.",
    "The contract shall be governed by the laws of the state in which the premises are located.",
    "Photosynthesis converts light energy into chemical energy that is stored in glucose.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
)
"""Thirty-two texts: short and long, of many scripts, one of nothing, one past the limit of 256 tokens."""


def check_minilm(reference: Array, ids: Sequence[Array], mode: str = "planned") -> None:
    """Mean-pooled, normalised vectors within 1e-5 of another implementation's; the same bits in every batch."""
    embedder = ost.Embedder("minilm", mode=mode)
    assert [embedder.token_ids(text) for text in SENTENCES] == [row.tolist() for row in ids]
    found = embedder.encode(SENTENCES)
    assert found.dtype == np.float32
    assert found.shape == reference.shape == (32, 384)
    error = np.abs(found.astype(np.float64) - reference).max()
    assert error <= MINILM_TOLERANCE, f"off by {error:.3g}"
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    compositions = {
        "one at a time": np.stack([embedder.encode(text) for text in SENTENCES]),
        "batch_size 1": embedder.encode(SENTENCES, batch_size=1),
        "batch_size 5": embedder.encode(SENTENCES, batch_size=5),
        "another order": embedder.encode([SENTENCES[index] for index in order])[np.argsort(order)],
        "twice over": embedder.encode([*SENTENCES, *SENTENCES], batch_size=64)[32:],
    }
    for name, vectors in compositions.items():
        assert np.array_equal(vectors, found), f"{name}: other bits"
