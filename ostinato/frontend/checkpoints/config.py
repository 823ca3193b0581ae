"""The model configuration: one frozen record for all families, whatever file it came from.

Everything that could make a model silently wrong (a bad head ratio, an odd head width, a rotary kind that the model code does not compute) is refused
when the configuration is read and not when a kernel runs. The readers for `config.json` and for GGUF metadata sit in their own files and meet here.
Which architectures there are is not known here: that is the table of families.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.frontend.checkpoints.rotary import Rotary, is_positive
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import MAX_ELEMENTS, DType

__all__ = ["ACTIVATIONS", "MAX_LAYERS", "ModelConfig"]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Activations of the feed-forward part; "gelu_tanh" is the approximation by a hyperbolic tangent."""
MAX_LAYERS = 1 << 12
"""Readers make a list of layers before the configuration is checked, so they check this number themselves."""
_MOST = {"num_layers": MAX_LAYERS, "head_dim": 1 << 14}
"""The largest size of a dimension where int32 holds more than makes sense."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a model; `architecture` is the name of its family.

    Widths are in elements. `head_dim` is its own field: query width is num_heads * head_dim, not hidden_size. `eos_token_ids` may be empty.
    `rotary` is None for a model without rotary embeddings; `local_rotary`, where there is one, is that of the layers with a window. `windows` has one number
    a layer, 0 for full attention, W > 0 for keys i-W+1 to i of token i; () means full attention everywhere. `attention_scale` multiplies the scores (None:
    1 / sqrt(head_dim)); the soft caps bound scores and logits by c * tanh(x / c), 0 is off. `embedding_scale` multiplies the embeddings.
    `type_vocab_size` is the number of token types of an encoder, 0 for a model that has none.
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
    norm_eps: float
    rotary: Rotary | None
    max_position_embeddings: int
    local_rotary: Rotary | None = None
    windows: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"
    qk_norm: bool = False
    type_vocab_size: int = 0
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
            elif value > (most := _MOST.get(name, 2**31 - 1)):
                found.append(f"{name} is {value}, expected at most {most}")
        if found:
            return found  # the rules below divide by these
        if self.num_heads % self.num_kv_heads:
            found.append(
                f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads, expected a divisor of {self.num_heads}"
            )
        if not is_positive(self.norm_eps):
            found.append(f"norm_eps is {self.norm_eps}, expected a finite positive number")
        found += self._rotary_problems()
        found += self._attention_problems()
        if self.type_vocab_size < 0:
            found.append(f"type_vocab_size is {self.type_vocab_size}, expected 0 or more")
        if self.activation not in ACTIVATIONS:
            found.append(f"activation {self.activation!r} is unknown, expected one of {', '.join(ACTIVATIONS)}")
        layer = self.intermediate_size + self.query_width + self.kv_width
        least = (self.vocab_size + self.num_layers * layer) * self.hidden_size
        if least > MAX_ELEMENTS:
            found.append(f"{least} parameters are more than {MAX_ELEMENTS}")
        named = [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
        for name, token in named + [("eos_token_id", token) for token in self.eos_token_ids]:
            if token is not None and not 0 <= token < self.vocab_size:
                found.append(f"{name} {token} is outside the vocabulary of {self.vocab_size}")
        return found

    def _rotary_problems(self) -> list[str]:
        found = []
        for rotary in self.rotaries:
            found += rotary.problems()
            if rotary.width > self.head_dim:
                found.append(f"the rotary width {rotary.width} is more than the head width {self.head_dim}")
        if not found and not 0 < self.context_limit < 2**31:
            found.append(f"the rotary scaling makes {self.context_limit} positions of {self.max_position_embeddings}")
        if not found and not all(rotary.has_finite_frequencies() for rotary in self.rotaries):
            found.append("the rotary numbers together give frequencies that float32 does not hold")
        return list(dict.fromkeys(found))

    def _attention_problems(self) -> list[str]:
        found = []
        if self.windows and len(self.windows) != self.num_layers:
            found.append(f"{len(self.windows)} layers have a window or none, {self.num_layers} need one each")
        if bad := [window for window in self.windows if not 0 <= window < 2**31]:
            found.append(f"the windows {bad} are negative or beyond int32")
        if self.local_rotary is not None and not any(self.windows):
            found.append("a rotary embedding of local layers is given and no layer has a window")
        positive = ["embedding_scale"] if self.attention_scale is None else ["embedding_scale", "attention_scale"]
        for name in (*positive, "attention_soft_cap", "logit_soft_cap"):
            value = getattr(self, name)
            if not (is_positive(value) or (value == 0 and name not in positive)):
                found.append(f"{name} is {value}, expected a finite positive number")
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
    def rotaries(self) -> tuple[Rotary, ...]:
        """The rotary embeddings there are: none, one, or one for all layers but those with a window and one for these."""
        return tuple(rotary for rotary in (self.rotary, self.local_rotary) if rotary is not None)

    @property
    def context_limit(self) -> int:
        """The most positions of a sequence: max_position_embeddings, or what its rotary scaling makes of them."""
        limit = self.max_position_embeddings
        return limit if self.rotary is None else self.rotary.reach(limit)

    @property
    def depends_on_length(self) -> bool:
        """True where rotations follow the length of the sequence: a cached key then stands for the length it was made at."""
        return any(rotary.depends_on_length for rotary in self.rotaries)

    @property
    def score_scale(self) -> float:
        """The factor of attention scores."""
        return float(self.head_dim**-0.5) if self.attention_scale is None else self.attention_scale

    def window(self, layer: int) -> int:
        """The window of that layer, 0 for full attention."""
        return self.windows[layer] if self.windows else 0
