"""Gradients of vectors along the last axis, gains and biases: sums over all rows, in an order that depends on nothing but their number.

The statistics of the rows come from the backward operator of the norm, so that x is normalised in the same way twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, upstream
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
    Arrays,
    Site,
    cost_per_element,
    define,
    join_axes,
    make_type,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["BIAS_GRADIENT", "COLUMN_SUM_OPS", "LAYER_NORM_GAIN_GRADIENT", "RMS_NORM_GAIN_GRADIENT"]

SHAPES = ((1, 64), (3, 33), (7, 100), (33, 31), (2, 1), (2, 896), (1030, 33))
_GAIN = Tolerance(3e-4, 3e-4, "contract of rms_norm_backward: fp32 sums of short runs of rows, in ascending order")


def _columns(site: Site, common: TensorType) -> tuple[TensorType, ...]:
    require_rank(site.op, "gradient", common, at_least=1)
    return (make_type(site.op, common.shape[-1:], DType.F32, common.axes[-1:]),)


def _infer_bias(site: Site) -> tuple[TensorType, ...]:
    return _columns(site, site.operand(0))


def _infer_gain(*statistics: str) -> Callable[[Site], tuple[TensorType, ...]]:
    def infer(site: Site) -> tuple[TensorType, ...]:
        common = upstream(site, 0, 1)
        require_rank(site.op, "gradient", common, at_least=1)
        rows = common.axes[:-1]
        for place, name in enumerate(statistics, start=2):
            require_shape(site.op, name, site.operand(place), common.shape[:-1])
            rows = join_axes(site.op, name, rows, site.operand(place).axes)
        return _columns(site, common)

    return infer


def _sums(terms: Array) -> tuple[Array, ...]:
    return (np.sum(terms.reshape(-1, terms.shape[-1]) if terms.size else _none(terms), axis=0).astype(np.float32),)


def _none(terms: Array) -> Array:
    return np.zeros((0, terms.shape[-1]), dtype=terms.dtype)


def _reference_bias(call: Arrays) -> tuple[Array, ...]:
    return _sums(call.wide(0))


def _reference_rms(call: Arrays) -> tuple[Array, ...]:
    return _sums(call.wide(0) * call.wide(1) * call.wide(2)[..., None])


def _reference_layer(call: Arrays) -> tuple[Array, ...]:
    return _sums(call.wide(0) * (call.wide(1) - call.wide(2)[..., None]) * call.wide(3)[..., None])


def _samples_bias(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield valid(normal(shape))
    yield valid(reals(rng.standard_normal((300, 65)) + 0.5, "NC"))
    yield valid(normal((2, 3, 4, 32), axes="BTHD"))
    yield valid(normal((33,)))
    yield valid(normal((0, 64)))
    yield valid(normal((4, 0)))
    yield invalid(ShapeError, normal(()))
    yield invalid(ShapeError)
    yield invalid(DTypeError, normal((4, 64), DType.BF16))
    yield invalid(DTypeError, indices([[1, 2]]))


def _statistics(count: int, rows: Sequence[int], rng: np.random.Generator, axes: str = "") -> list[SampleOperand]:
    """The last of them around 1, as of x that is normal; a mean before it."""
    drawn = [reals(rng.standard_normal(rows) * 0.1, axes), reals(rng.uniform(0.7, 1.4, rows), axes)]
    return drawn[-count:]


def _samples_gain(count: int) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in SHAPES:
            yield valid(normal(shape), normal(shape), *_statistics(count, shape[:-1], rng))
        for dtype in (DType.F16, DType.BF16):
            yield valid(normal((5, 100)), normal((5, 100), dtype), *_statistics(count, (5,), rng))
        named = normal((2, 5, 48), axes="BTC"), normal((2, 5, 48), axes="B__")
        yield valid(*named, *_statistics(count, (2, 5), rng, "BT"))
        yield valid(normal((33,)), normal((33,)), *_statistics(count, (), rng))
        yield valid(normal((0, 64)), normal((0, 64)), *_statistics(count, (0,), rng))
        yield valid(normal((4, 0)), normal((4, 0)), *_statistics(count, (4,), rng))
        row = _statistics(count, (4,), rng)
        yield invalid(ShapeError, normal((4, 64)), normal((4, 63)), *row)
        yield invalid(ShapeError, normal((4, 64)), normal((4, 64)), *_statistics(count, (3,), rng))
        yield invalid(ShapeError, normal((4, 64)), normal((4, 64)), *_statistics(count, (4, 1), rng))
        yield invalid(ShapeError, normal((4, 64)), normal((4, 64)), *row[1:])
        yield invalid(ShapeError, normal(()), normal(()), *_statistics(count, (), rng))
        yield invalid(DTypeError, normal((4, 64), DType.BF16), normal((4, 64)), *row)
        yield invalid(DTypeError, normal((4, 64)), indices(np.zeros((4, 64))), *row)
        named = normal((4, 64), axes="NC"), normal((4, 64), axes="NC")
        yield invalid(LayoutError, *named, *_statistics(count, (4,), rng, "R"))

    return samples


X = OperandSpec("x", FLOATS)

BIAS_GRADIENT = define(
    "bias_gradient",
    "Sums of the columns of gradient [..., D] over all other axes: [D], the gradient of a bias.",
    (GRADIENT,),
    ("y",),
    _infer_bias,
    _reference_bias,
    _samples_bias,
    Tolerance(3e-5, 1e-5, "contract of bias_gradient: fp32 sums of short runs of rows, in ascending order"),
    extent="gradient",
    cost=cost_per_element(1, operand=0),
    derivative=SECOND,
)

RMS_NORM_GAIN_GRADIENT = define(
    "rms_norm_gain_gradient",
    "Gradient of rms_norm by its gain: column sums of gradient * x * inverse_rms.",
    (GRADIENT, X, OperandSpec("inverse_rms", F32)),
    ("y",),
    _infer_gain("inverse_rms"),
    _reference_rms,
    _samples_gain(1),
    _GAIN,
    extent="gradient",
    cost=cost_per_element(3, operand=0),
    derivative=SECOND,
)

LAYER_NORM_GAIN_GRADIENT = define(
    "layer_norm_gain_gradient",
    "Gradient of layer_norm by its gain: column sums of gradient * (x - mean) * inverse_deviation.",
    (GRADIENT, X, OperandSpec("mean", F32), OperandSpec("inverse_deviation", F32)),
    ("y",),
    _infer_gain("mean", "inverse_deviation"),
    _reference_layer,
    _samples_gain(2),
    _GAIN,
    extent="gradient",
    cost=cost_per_element(4, operand=0),
    derivative=SECOND,
)

COLUMN_SUM_OPS = (
    BIAS_GRADIENT,
    RMS_NORM_GAIN_GRADIENT,
    LAYER_NORM_GAIN_GRADIENT,
)
