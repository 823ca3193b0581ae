"""Dropout with a mask that is computed, never stored: whether an element stays is a function of the seed, the step, the `place` of the node in the program
and the element's own. The backward pass computes the same mask from the same numbers, a replayed program another one for every step, and a mask
does not depend on threads, on a schedule or on how often it is computed: the operator is as pure as any other.

Philox4x32-10 with the seed as the key, and the counter (low and high word of index / 4, step, place); element `index` in logical order takes word index % 4.
A word w stays when (w + 1/2) / 2^32 is at least the rate, which kernels compare as integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.elementwise import HALVES, SHAPES, infer_same
from ostinato.ir.ops.rules import FLOATS, I32, I64, Arrays, Site, cost_per_element, define, fail, require_shape
from ostinato.ir.ops.samplers import given, indices, invalid, normal, reals, valid
from ostinato.ir.random import HALF, LOW, philox4x32
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["DROPOUT", "DROPOUT_OPS", "kept_factor", "threshold"]

_WORDS = 2**32


def threshold(rate: float) -> int:
    """The smallest word that stays."""
    return max(0, math.ceil(rate * _WORDS - 0.5))


def kept_factor(rate: float) -> np.float32:
    """What an element that stays is multiplied by: 1 / (1 - rate), rounded once."""
    return np.float32(1.0 / (1.0 - rate))


def _infer(site: Site) -> tuple[TensorType, ...]:
    rate, place = site.real("rate"), site.integer("place")
    if not 0 <= rate < 1 or threshold(rate) >= _WORDS:
        fail(ConfigError, site.op, "a rate of 0 or more and below 1", str(rate), "the part of the elements that is 0")
    if not 0 <= place < _WORDS:
        fail(ConfigError, site.op, "a place of 32 bits", str(place), "number the nodes of a program from 0")
    require_shape(site.op, "seed", site.operand(1), (1,))
    require_shape(site.op, "step", site.operand(2), (1,))
    return infer_same(site)


def _words(count: int, seed: Array, step: Array, place: int) -> Array:
    """One word for each of `count` elements."""
    number = np.arange(-(-count // 4), dtype=np.uint64)
    counter = np.empty((number.size, 4), dtype=np.uint32)
    counter[:, 0], counter[:, 1] = number & LOW, number >> HALF
    counter[:, 2], counter[:, 3] = step.astype(np.int32).view(np.uint32)[0], place
    key = np.ascontiguousarray(seed, dtype=np.int64).view(np.uint32)
    return philox4x32(counter, key).reshape(-1)[:count]


def _reference(call: Arrays) -> tuple[Array, ...]:
    x, rate = call.operand(0), call.real("rate")
    words = _words(x.size, call.operand(1), call.operand(2), call.integer("place"))
    stays = (words.astype(np.uint64) >= threshold(rate)).reshape(x.shape)
    with np.errstate(over="ignore"):
        return (np.where(stays, x.astype(np.float32) * kept_factor(rate), np.float32(0)),)


def _derivative(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply(at.op, (only_gradient(at), at.operand(1), at.operand(2)), at.attrs)}


def _numbers(seed: int, step: int) -> tuple[SampleOperand, SampleOperand]:
    return given(np.array([seed], dtype=np.int64)), indices([step])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    rates = (0.1, 0.5, 0.9, 0.25, 0.0)
    for place, shape in enumerate(SHAPES):
        key = _numbers(int(rng.integers(-(2**63), 2**63)), int(rng.integers(0, 2**31)))
        yield valid(normal(shape), *key, rate=rates[place], place=place)
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype), *_numbers(7, 3), rate=0.3, place=5)
    yield valid(normal((2, 3, 4, 32), axes="BTHD"), *_numbers(-1, 2**31 - 1), rate=0.1, place=2**32 - 1)
    yield valid(reals([[np.inf, -np.inf, np.nan, 3e38, -0.0]] * 3), *_numbers(2**62, 0), rate=0.5, place=0)
    yield valid(normal((17,)), *_numbers(0, 1), rate=0.1, place=0)
    yield valid(normal(()), *_numbers(0, 1), rate=0.1, place=0)
    yield valid(normal((0, 8)), *_numbers(0, 1), rate=0.1, place=0)
    good = normal((3, 4)), *_numbers(1, 1)
    for rate in (1.0, -0.1, float("nan"), 1.0 - 2.0**-34):
        yield invalid(ConfigError, *good, attrs={"rate": rate, "place": 0})
    for place in (-1, 2**32):
        yield invalid(ConfigError, *good, attrs={"rate": 0.1, "place": place})
    yield invalid(ConfigError, *good)
    attrs = {"rate": 0.1, "place": 0}
    yield invalid(ShapeError, good[0], given(np.zeros(2, dtype=np.int64)), good[2], attrs=attrs)
    yield invalid(ShapeError, good[0], good[1], indices(0), attrs=attrs)
    yield invalid(ShapeError, *good[:2], attrs=attrs)
    yield invalid(DTypeError, good[0], indices([1]), good[2], attrs=attrs)
    yield invalid(DTypeError, normal((3, 4), DType.F64), *good[1:], attrs=attrs)


DROPOUT = define(
    "dropout",
    "x / (1 - rate) where the Philox4x32-10 word of an element is at least the rate, else 0; key `seed`, counter of the element's number, `step` and `place`.",
    (OperandSpec("x", FLOATS), OperandSpec("seed", I64), OperandSpec("step", I32)),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "integers decide, and one correctly rounded product"),
    attrs=(AttrSpec("rate", float), AttrSpec("place", int)),
    cost=cost_per_element(12),
    derivative=_derivative,
)

DROPOUT_OPS = (DROPOUT,)
