"""What model families share: how weights are asked for, how attention is supplied, rotary frequencies.

A family file is a function of a `ModelInputs`: it never knows whether its attention is dense over whole sequences or packed over a cache, nor where its
weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.frontend.checkpoints.base import ModelConfig, TensorSource
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.errors import DTypeError, WeightsError
from ostinato.ir.types import DType, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["Attend", "ModelFunction", "ModelInputs", "Weights", "inverse_frequency"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [...,H,D], k [...,G,D], v [...,G,D]) -> [...,H,D]; q and k are already rotated."""


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

    def matrix(self, name: str, shape: tuple[int, int], axes: tuple[str, str] = ("", "")) -> Tensor:
        """A matrix [out, in]; raises `WeightsError` when it is missing or has another shape."""
        source = self._find(name, shape)
        dtype = source.dtype if source.dtype.is_block or self._dtype is None else self._dtype
        return self._declare(name, source, TensorType(shape, dtype, axes))

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

    def _declare(self, name: str, source: TensorSource, tensor_type: TensorType) -> Tensor:
        transform = "none" if source.row_order is None else "reorder_rows"
        self.used.add(name)
        return self._builder.weight(name, tensor_type, (WeightPart(name, 0, tensor_type.static_shape[0], transform),))

    def _find(self, name: str, shape: tuple[int, ...]) -> TensorSource:
        source = self._tensors.get(name)
        if source is None:
            raise WeightsError("the model needs this tensor and the checkpoint does not have it", node=name)
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

    `ids` and `position` are int32 of the same leading shape ([B,T] or [N]); `select` reduces the last hidden state [..., C] to the rows whose logits are
    wanted (the identity for all of them).
    """

    builder: GraphBuilder
    config: ModelConfig
    weights: Weights
    ids: Tensor
    position: Tensor
    attend: Attend
    select: Callable[[Tensor], Tensor]


ModelFunction = Callable[[ModelInputs], Tensor]
"""A family: ModelInputs -> logits [..., V]."""


def inverse_frequency(builder: GraphBuilder, config: ModelConfig) -> Tensor:
    """rope_theta ** (-2i / head_dim) for i in [0, head_dim / 2), computed in float32 as the common implementations do."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequency = (np.float32(1.0) / np.power(np.float32(config.rope_theta), exponent, dtype=np.float32)).astype(
        np.float32
    )
    return builder.constant("inverse_frequency", frequency)
