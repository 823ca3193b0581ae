"""What model families share: how weights are asked for, how attention is supplied, rotary tables.

A family file is a function of a `ModelInputs`: it never knows whether its attention is dense over whole sequences or packed over a cache, nor where its
weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.checkpoints.base import TensorSource
from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.errors import DTypeError, LifecycleError, WeightsError
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["Attend", "ModelFunction", "ModelInputs", "Project", "Weights"]


Project = Callable[[Tensor], Tensor]
"""From one tensor to another, a token at a time."""


class Attend(Protocol):
    """Attention of one layer over what it may see: q [...,H,D], k [...,G,D], v [...,G,D] -> [...,H,D]; q and k are already rotated.

    Scores are scaled as the configuration says (`score_scale`). `window` W > 0 hides keys before i - W + 1 from token i, `soft_cap` c > 0 bounds scores by
    c * tanh(score / c).
    """

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, soft_cap: float = 0.0
    ) -> Tensor: ...


class Weights:
    """Asks for checkpoint tensors by their original name as weights of the graph.

    `dtype` is the element type that float matrices get in the weights region (None keeps the checkpoint's); block matrices stay as they are and vectors
    (gains, biases) are float32. Conversion happens while loading.
    """

    def __init__(self, builder: GraphBuilder, tensors: Mapping[str, TensorSource], dtype: DType | None) -> None:
        self._builder = builder
        self._tensors = tensors
        self._dtype = dtype
        self.used: set[str] = set()

    def matrix(
        self,
        name: str,
        shape: tuple[int, int],
        axes: tuple[str, str] = ("", ""),
        *,
        rows: tuple[int, int] | None = None,
    ) -> Tensor:
        """A matrix [out, in], or its `rows` [start, stop) where one tensor of the checkpoint holds several; `shape` is that of the whole tensor.

        Raises `WeightsError` when it is missing, has another shape or does not have these rows.
        """
        source = self._find(name, shape)
        dtype = source.dtype if source.dtype.is_block or self._dtype is None else self._dtype
        if rows is None:
            return self._declare(name, source, TensorType(shape, dtype, axes))
        start, stop = rows
        if not 0 <= start < stop <= shape[0]:
            raise WeightsError(f"rows [{start}, {stop}) are outside its {shape[0]} rows", node=name)
        tensor_type = TensorType((stop - start, shape[1]), dtype, axes)
        return self._declare(f"{name}.rows_{start}_{stop}", source, tensor_type, start)

    def vector(self, name: str, size: int, axis: str = "") -> Tensor:
        """A vector [size] as float32; raises what `matrix` does, and `DTypeError` for a quantised one."""
        source = self._find(name, (size,))
        if source.dtype.is_block:
            raise DTypeError(
                f"vectors are read as floats, the checkpoint has {source.dtype.value}",
                node=name,
                hint="convert the model with gains and biases in f32 or f16",
            )
        return self._declare(name, source, TensorType((size,), DType.F32, (axis,)))

    def _declare(self, name: str, source: TensorSource, tensor_type: TensorType, start: int = 0) -> Tensor:
        self.used.add(source.name)
        part = WeightPart(source.name, start, start + tensor_type.static_shape[0], source.transform)
        return self._builder.weight(name, tensor_type, (part,))

    def _find(self, name: str, shape: tuple[int, ...]) -> TensorSource:
        source = self._tensors.get(name)
        if source is None:
            raise WeightsError(
                "the model needs this tensor and the checkpoint does not have it",
                node=name,
                hint="the checkpoint is not complete, or of another family than its configuration says",
            )
        if tuple(source.shape) != shape:
            raise WeightsError(
                f"expected shape {list(shape)} from the configuration, the checkpoint has {list(source.shape)}",
                node=name,
                hint="config and weights belong to different models, or head_dim / tie_word_embeddings is wrong in the config",
            )
        return source


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What a family function works with.

    `ids` and `position` are int32 of the same leading shape ([B,T] or [N]), and so is `rotary_length` where the configuration's rotary embedding depends on
    one: how many tokens the token's sequence has at that time. `select` reduces the last hidden state [..., C] to the rows whose logits are wanted (the
    identity for all of them). `head` is given those, normalised, and the function that makes logits of them; what it returns is what the family returns.
    `dropout` is applied to what is added to the residual stream; outside of training it is the identity.
    """

    builder: GraphBuilder
    config: ModelConfig
    weights: Weights
    ids: Tensor
    position: Tensor
    attend: Attend
    select: Callable[[Tensor], Tensor]
    rotary_length: Tensor | None = None
    head: Callable[[Tensor, Project], Tensor] = field(default=lambda x, logits: logits(x))
    dropout: Project = field(default=lambda x: x)

    def rotary_tables(self, rotary: Rotary, name: str = "") -> tuple[Tensor, Tensor]:
        """Cosine and sine, float32 position + [width / 2], of the tokens' angles; `name` tells the constants of two embeddings apart.

        Raises `LifecycleError` for a kind that depends on a length where none was declared.
        """
        scale = rotary.attention_factor

        def constant(stem: str, values: Array) -> Tensor:
            return self.builder.constant(f"{name}{stem}", values)

        if not rotary.depends_on_length:
            frequency = constant("inverse_frequency", rotary.frequencies())
            return F.rotary_table(self.position, frequency, scale=scale)
        if self.rotary_length is None:
            raise LifecycleError(
                f"the tables of rotary kind {rotary.kind!r} need the length of each token's sequence",
                hint="declare rotary_length where the configuration says depends_on_length",
            )
        if rotary.kind == "dynamic":
            return F.rotary_table_dynamic(
                self.position,
                self.rotary_length,
                theta=rotary.theta,
                width=rotary.width,
                factor=rotary.factor,
                original_positions=rotary.original_positions,
                scale=scale,
            )
        return F.rotary_table_longrope(
            self.position,
            self.rotary_length,
            constant("short_frequency", rotary.scaled_frequencies(rotary.short_factor)),
            constant("long_frequency", rotary.scaled_frequencies(rotary.long_factor)),
            original_positions=rotary.original_positions,
            scale=scale,
        )


ModelFunction = Callable[[ModelInputs], Tensor]
"""A family: ModelInputs -> logits [..., V], or what `ModelInputs.head` makes of them."""
