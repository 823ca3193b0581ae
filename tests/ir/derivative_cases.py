"""One case an operator of the families of norms, elements, reductions and losses: operands of a size, attributes, and the tolerance of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.opdef import Attr
from ostinato.ir.types import Array
from tests.ir.derivative_calls import Operands

__all__ = ["CASES", "SHAPES", "Case"]

Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = ((3, 33), (1, 64), (2, 5, 7), (1, 1), (17,), (0, 8))


@dataclass(frozen=True)
class Case:
    """`operands` makes them for a shape; `tolerance` is absolute and relative, from the contract of the backward operator."""

    op: str
    operands: Callable[[np.random.Generator, Shape], Operands]
    tolerance: float
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    shapes: tuple[Shape, ...] = SHAPES


def normal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _one(rng: np.random.Generator, shape: Shape) -> Operands:
    return (normal(rng, shape),)


def _two(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape), normal(rng, shape)


def _vector(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape), normal(rng, shape[-1:])


def _add_norm(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape), normal(rng, shape), normal(rng, shape[-1:])


def _layer_norm(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape) + 1, normal(rng, shape[-1:]), normal(rng, shape[-1:])


def _targets(rng: np.random.Generator, shape: Shape, vocabulary: int) -> Array:
    """Every third one does not count, the first one does."""
    target = rng.integers(0, vocabulary, shape).astype(np.int32)
    target.reshape(-1)[1::3] = -100
    return target


def _logits(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape) * 3, _targets(rng, shape[:-1], shape[-1])


def _losses(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape), _targets(rng, shape, 9)


def _sequences(rng: np.random.Generator, shape: Shape) -> Operands:
    """Rows that touch, overlap, are empty, and leave tokens out."""
    del rng
    tokens = shape[0]
    start = np.array([0, tokens // 2, 77, 0], np.int32)
    length = np.array([tokens // 2, tokens - tokens // 2, 0, tokens // 3], np.int32)
    return normal(np.random.default_rng(tokens), shape), start, length


def _dropout(rng: np.random.Generator, shape: Shape) -> Operands:
    return normal(rng, shape), np.array([1234567890123], np.int64), np.array([7], np.int32)


_SCORES: tuple[Shape, ...] = ((2, 3, 9, 9), (33, 33), (1, 1), (0, 4, 4))
_COUNTED = ((5, 33), (1, 1), (2, 5, 7), (17,))
_EPS: Mapping[str, Attr] = {"eps": 1e-5}

CASES = (
    Case("rms_norm", _vector, 3e-4, _EPS),
    Case("add_rms_norm", _add_norm, 3e-4, _EPS),
    Case("layer_norm", _layer_norm, 3e-4, _EPS),
    Case("layer_norm", _vector, 3e-4, _EPS),
    Case("l2_normalize", _one, 2e-5),
    Case("l2_normalize", _one, 2e-5, {"eps": 50.0}),
    Case("silu", _one, 2e-5),
    Case("swiglu", _two, 2e-5),
    Case("gelu", _one, 2e-5),
    Case("gelu", _one, 2e-5, {"approximate": "tanh"}),
    Case("tanh", _one, 2e-5),
    Case("softmax", _one, 2e-5),
    Case("causal_softmax", _one, 2e-5, shapes=_SCORES),
    Case("add", _two, 0.0),
    Case("add_bias", _vector, 3e-5),
    Case("mul", _two, 1e-6),
    Case("scale", _one, 1e-6, {"factor": -0.75}),
    Case("fill", _one, 0.0, {"value": 3.0}),
    Case("cast", _one, 0.0, {"dtype": "f64"}),
    Case("contiguous", _one, 0.0),
    Case("accumulate", _two, 0.0),
    Case("dropout", _dropout, 1e-6, {"rate": 0.25, "place": 3}),
    Case("reduce_sum", _one, 1e-6),
    Case("broadcast_scalar", lambda rng, shape: (normal(rng, (1, 1)),), 2e-5, {"shape": (3, 5)}, ((1, 1),)),
    Case("broadcast_scalar", lambda rng, shape: (normal(rng, ()),), 2e-5, {"shape": (0, 5)}, ((),)),
    Case("masked_mean", _sequences, 2e-5, shapes=((7, 33), (1, 5), (0, 8))),
    Case("cross_entropy", _logits, 3e-5, shapes=_COUNTED),
    Case("token_cross_entropy", _logits, 3e-5, shapes=(*_COUNTED, (0, 8))),
    Case("target_mean", _losses, 2e-5, shapes=((5, 33), (1,), (17,), ())),
)
