"""Nodes of the operators that the operator contract lists beyond those of decoders: activations, products, joins, reductions, penalties.

Like the others they keep numbers near one: sums are scaled by how much they add up.
"""

from __future__ import annotations

import numpy as np

from ostinato.frontend.trace import Tensor
from ostinato.ir.opdef import Attr
from ostinato.ir.types import DType
from tests.fuzz.growth import ROWS, Growth

__all__ = ["ContractOperators"]


class ContractOperators(Growth):
    """See the module."""

    def op_activation(self) -> None:
        if (x := self.any()) is None:
            return
        op = ("gelu", "gelu", "tanh", "fill")[self.rng.integers(4)]
        attrs: dict[str, dict[str, Attr]] = {
            "gelu": {"approximate": ("none", "tanh")[self.rng.integers(2)]},
            "fill": {"value": (0.0, -0.75, 0.3)[self.rng.integers(3)]},
        }
        self.keep(self.builder.apply(op, (x,), attrs.get(op)))

    def op_row(self) -> None:
        """What works along the last axis."""
        if (x := self.any(lambda value: bool(value.shape))) is None:
            return
        width = x.type.static_shape[-1]
        kind = int(self.rng.integers(3))
        if kind == 0:
            bias = self.vector(width) if self.rng.random() < 0.7 else None
            self.keep(self.builder.apply("layer_norm", (x, self.vector(width), bias), {"eps": 1e-2}))
        elif kind == 1:
            self.keep(self.builder.apply("l2_normalize", (x,), {"eps": 0.25}))
        else:
            total = self.builder.apply("add_bias", (x, self.vector(width)))
            self.keep(self.builder.apply("scale", (total,), {"factor": 0.5}))

    def op_joined(self) -> None:
        """Tensors one after another, and elements repeated, along an axis that all of whose rows are valid."""
        first = 0 if self.valid is None else 1
        x = self.any(lambda value: len(value.shape) > first and value.type.elements < 4096)
        if x is None:
            return
        axis = int(self.rng.integers(first, len(x.shape)))
        if self.rng.random() < 0.5:
            parts = [x, *(self.like(x) for _ in range(int(self.rng.integers(1, 4))))]
            self.keep(self.builder.apply("concat", parts, {"axis": axis}))
        else:
            self.keep(self.builder.apply("repeat_interleave", (x,), {"axis": axis, "repeats": self.pick((1, 2, 3))}))

    def op_scores(self) -> None:
        """Attention spelled out: scores of rows with each other, a causal softmax over them, and the mean that they weigh."""
        rank = 2 if self.valid is None else 3
        x = self.any(lambda value: len(value.shape) >= rank and value.type.elements > 0)
        if x is None:
            return
        scale = float(x.type.static_shape[-1]) ** -0.5
        scores = self.builder.apply("matmul", (x, self.like(x)), {"transpose_b": True, "scale": scale})
        weights = self.builder.apply("causal_softmax", (scores,))
        flags: dict[str, Attr] = {"transpose_a": self.rng.random() < 0.3}
        self.keep(weights, self.builder.apply("matmul", (weights, x), flags))

    def op_reduction(self) -> None:
        x = self.any(lambda value: value.dtype is DType.F32 and value.type.elements > 0)
        if x is None:
            return
        total = self.builder.apply(("reduce_sum", "square_sum")[self.rng.integers(2)], (x,))
        mean = self.builder.apply("scale", (total,), {"factor": 1.0 / x.type.elements})
        self.keep(mean, self.builder.apply("broadcast_scalar", (mean,), {"shape": (self.pick(ROWS), self.pick(ROWS))}))

    def op_pooling(self) -> None:
        x = self.any(lambda value: len(value.shape) == 2)
        if x is not None:
            tokens, rows = x.type.static_shape[0], self.pick(ROWS)
            half = tokens // 2
            start, length = self.indices((rows,), half + 1), self.indices((rows,), tokens - half + 1)
            self.keep(self.builder.apply("masked_mean", (x, start, length)))

    def op_penalties(self) -> None:
        x = self.any(lambda value: len(value.shape) == 2 and value.dtype is DType.F32 and value.type.elements > 0)
        if x is None:
            return
        rows, vocabulary = x.type.static_shape
        tokens = self.indices((rows, 6), vocabulary)
        prompt, length = self.indices((rows,), 4), self.indices((rows,), 7, 3)
        settings = [self._setting(rows, *bounds) for bounds in ((0.6, 1.5), (-0.5, 0.5), (-0.2, 0.2))]
        self.keep(self.builder.apply("penalize", (x, tokens, prompt, length, *settings)))

    def op_logit_bias(self) -> None:
        x = self.any(lambda value: len(value.shape) == 2 and value.dtype is DType.F32 and value.type.elements > 0)
        if x is None:
            return
        rows, vocabulary = x.type.static_shape
        tokens, pairs = self.indices((rows, 3), vocabulary), self.indices((rows,), 4)
        bias = self._constant(self.rng.uniform(-0.5, 0.5, (rows, 3)))
        self.keep(self.builder.apply("add_at_tokens", (x, tokens, bias, pairs)))

    def op_rotated_bias(self) -> None:
        batch, time, heads, width = self.pick((1, 2)), self.pick((1, 3)), self.pick((1, 2)), self.pick((2, 8))
        shape = (batch, time, heads, width)
        x = self.float32_of(shape)
        angle = self.rng.uniform(-3, 3, (batch, time, width // 2))
        cos, sin = (self._constant(function(angle)) for function in (np.cos, np.sin))
        y = self.builder.apply("rope_split_half_bias_bthd", (x, self.vector(heads * width), cos, sin))
        self.keep(self.builder.apply("scale", (y,), {"factor": 0.5}))

    def _setting(self, rows: int, low: float, high: float) -> Tensor:
        return self._constant(self.rng.uniform(low, high, rows))

    def _constant(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
        return self.builder.constant(self.name("constant"), values.astype(np.float32))
