"""What the steps of a model's benchmarks are, for every contender alike: sizes, tokens, what the caches hold, the physical limit. Imports numpy alone.

d8    one decode step of 8 rows: a cache of 2048 positions a row that holds 512 tokens, the greedy token written where the next step reads it
p512  a prefill of 512 tokens into an empty cache, logits of the last one
c32   a chain of 32 elementwise operators on 1024 numbers, which is nothing but launches
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "BYTES_PER_SECOND",
    "CACHE",
    "CHAIN_NUMBERS",
    "FILLED",
    "FLOPS_PER_SECOND",
    "Shape",
    "Workload",
    "cache_values",
    "chain_values",
    "tokens_of",
]

CACHE, FILLED = 2048, 512
CHAIN_NUMBERS = 1024
BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.256e12, 787.5e12
"""What an H200 was measured to copy, and to multiply and add in bf16: the limit is the larger of a step's bytes and operations over these."""
_ELEMENT = 2
"""Bytes of bf16."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`kind`: "d", "p" or "c"; `size`: rows, tokens or operators."""

    kind: str
    size: int

    @classmethod
    def parse(cls, text: str) -> Workload:
        """Raises `ValueError` for what is none."""
        kind, size = text[:1], text[1:]
        if kind not in ("d", "p", "c") or not size.isdigit() or not int(size):
            raise ValueError(f"{text!r} is no workload: write one like d1, p512 or c32")
        return cls(kind, int(size))

    def __str__(self) -> str:
        return f"{self.kind}{self.size}"

    @property
    def rows(self) -> int:
        """Sequences."""
        return self.size if self.kind == "d" else 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder of the Llama and Qwen2 kind."""

    hidden: int
    layers: int
    heads: int
    kv: int
    width: int
    inner: int
    vocabulary: int
    tied: bool
    bias: bool
    theta: float
    epsilon: float

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        """From the configuration of a checkpoint."""
        heads = config["num_attention_heads"]
        return cls(
            config["hidden_size"],
            config["num_hidden_layers"],
            heads,
            config["num_key_value_heads"],
            config["hidden_size"] // heads,
            config["intermediate_size"],
            config["vocab_size"],
            config["tie_word_embeddings"],
            config["model_type"] == "qwen2",
            config["rope_theta"],
            config["rms_norm_eps"],
        )

    @classmethod
    def read(cls, folder: str | Path) -> Shape:
        """Of the checkpoint in a folder."""
        return cls.of(json.loads(Path(folder, "config.json").read_text()))

    @property
    def matrix_elements(self) -> int:
        """Elements of the matrices that every token meets, the head apart."""
        attention = 2 * self.hidden * self.width * (self.heads + self.kv)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    def limit_ms(self, workload: Workload, bytes_per_second: float, flops_per_second: float) -> float:
        """The least that a step in bf16 can take: its bytes at that rate, or its multiplications and additions.

        Bytes: the matrices once, and the keys and values that are there. Operations: those of the matrices, and half of the square of a causal attention.
        """
        head = self.hidden * self.vocabulary
        if workload.kind == "d":
            cached = 2 * workload.size * FILLED * self.kv * self.width * self.layers
            read = (self.matrix_elements + head + cached) * _ELEMENT
            done = 2 * workload.size * (self.matrix_elements + head)
        elif workload.kind == "p":
            read = (self.matrix_elements + head) * _ELEMENT
            done = 2 * (workload.size * self.matrix_elements + head)
            done += 2 * workload.size**2 * self.heads * self.width * self.layers
        else:
            return 0.0
        return max(read / bytes_per_second, done / flops_per_second) * 1e3


def tokens_of(workload: Workload, vocabulary: int) -> npt.NDArray[np.int32]:
    """The prompt of a prefill, or the token of each row that a decode step starts from."""
    return np.random.default_rng(5).integers(3, vocabulary, workload.size, dtype=np.int32)


def cache_values(shape: Shape, rows: int, layer: int) -> npt.NDArray[np.float32]:
    """Keys and values of a layer that a decode step finds: [2, rows, FILLED, kv heads, width], for every contender to round to its dtype."""
    size = (2, rows, FILLED, shape.kv, shape.width)
    return np.random.default_rng([77, layer]).standard_normal(size, dtype=np.float32)


def chain_values() -> npt.NDArray[np.float32]:
    """What a chain starts from."""
    return np.random.default_rng(9).standard_normal(CHAIN_NUMBERS, dtype=np.float32)
