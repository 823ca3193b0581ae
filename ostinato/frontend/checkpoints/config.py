"""The model configuration: one frozen record for all families, whatever file it came from.

Everything that could make a model silently wrong (a bad head ratio, an odd head width, a rotary kind that the model code does not compute) is refused
when the configuration is read and not when a kernel runs. The readers for `config.json` and for GGUF metadata sit in their own files and meet here.
Which architectures there are is not known here: that is the table of families.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.ir.errors import ConfigError, NotYetAvailable
from ostinato.ir.types import MAX_ELEMENTS, DType

__all__ = ["ModelConfig", "refuse_rope_kind"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder; `architecture` is the name of its family.

    Widths are in elements. `head_dim` is its own field: query width is num_heads * head_dim, not hidden_size. `eos_token_ids` may be empty.
    `dtype` is the one the checkpoint declares, None where it declares none; the tensors carry their own.
    Raises `ConfigError` listing every broken rule.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    dtype: DType | None = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError(
                f"unusable {self.architecture} configuration: " + "; ".join(problems),
                hint="correct the configuration file",
            )

    def _problems(self) -> list[str]:
        found = []
        dims = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        )
        for name in dims:
            value = getattr(self, name)
            if value <= 0:
                found.append(f"{name} is {value}, expected a positive number")
        if found:
            return found  # the rules below divide by these
        if self.num_heads % self.num_kv_heads:
            found.append(
                f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads, expected a divisor of {self.num_heads}"
            )
        if self.head_dim % 2:
            found.append(f"head_dim is {self.head_dim}, rotary embeddings need an even width")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps > 0):
            found.append(f"rms_norm_eps is {self.rms_norm_eps}, expected a finite positive number")
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            found.append(f"rope_theta is {self.rope_theta}, expected a finite positive number")
        if self.parameters > MAX_ELEMENTS:
            found.append(f"{self.parameters} parameters are more than {MAX_ELEMENTS}")
        named = [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
        for name, token in named + [("eos_token_id", token) for token in self.eos_token_ids]:
            if token is not None and not 0 <= token < self.vocab_size:
                found.append(f"{name} {token} is outside the vocabulary of {self.vocab_size}")
        return found

    @property
    def query_width(self) -> int:
        """Rows of q_proj and columns of o_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of trainable values, a tied head counted once."""
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = hidden * (2 * self.query_width + 2 * self.kv_width)
        biases = 0
        if self.attention_bias:
            biases += self.query_width + 2 * self.kv_width
        if self.attention_output_bias:
            biases += hidden
        if self.mlp_bias:
            biases += 2 * inner + hidden
        layer = attention + 3 * hidden * inner + 2 * hidden + biases
        heads = 1 if self.tie_word_embeddings else 2
        return heads * self.vocab_size * hidden + self.num_layers * layer + hidden


def refuse_rope_kind(kind: str, where: str) -> ConfigError | NotYetAvailable:
    """The error for a rotary kind other than the plain one; computing the plain one instead would be silently wrong."""
    if kind in ("linear", "dynamic", "yarn", "llama3", "longrope"):
        return NotYetAvailable(
            f"{where}rotary scaling of kind {kind!r} is not yet available", hint="use a checkpoint with kind 'default'"
        )
    return ConfigError(
        f"{where}unknown rotary kind {kind!r}", hint="known: default; later: linear, dynamic, yarn, llama3, longrope"
    )
