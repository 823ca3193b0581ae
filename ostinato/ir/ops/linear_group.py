"""Several projections of one x by weights of their own, which other nodes use too: of what is nobody else's, one joint weight serves better (`linear_split`).

The members are two or three; each has a weight [M, K] of one dtype and may have a bias. The values are those of `linear`, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample
from ostinato.ir.ops.linear import KINDS
from ostinato.ir.ops.projection import TOLERANCE, X, check_bias, check_product, product, product_flops
from ostinato.ir.ops.projection_gradients import gradients_of_group
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    WEIGHTS,
    Arrays,
    Site,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, valid, whole
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["LINEAR_GROUP", "LINEAR_GROUP_OPS", "MOST_MEMBERS"]

MOST_MEMBERS = 3
_WEIGHTS = range(1, 1 + MOST_MEMBERS)
"""Places of the weights; the bias of each is as many further on."""


def _infer(site: Site) -> tuple[TensorType, ...]:
    first, results = site.operand(1), []
    dtype = result_float(site, site.operand(0))
    members = [index for index in _WEIGHTS if site.optional(index) is not None]
    axes = site.text("axes") or "_" * len(members)
    if len(axes) != len(members):
        expected = f"axes with {len(members)} letters, one a weight"
        fail(LayoutError, site.op, expected, repr(axes), 'use "_" for an anonymous axis')
    for index, letter in zip(members, axes, strict=True):
        x, weight = check_product(site, index, f"w{index - 1}")
        check_bias(site, index + MOST_MEMBERS, index, f"b{index - 1}")
        if weight.dtype is not first.dtype:
            expected = f"weights of one dtype, {first.dtype.value} like the first"
            fail(DTypeError, site.op, expected, str(weight), "leave linears of other weights apart")
        axis = "" if letter == "_" else letter
        join_axes(site.op, "result axis", (axis,), (weight.axes[0],))
        results.append(make_type(site.op, (*x.shape[:-1], weight.shape[0]), dtype, (*x.axes[:-1], axis)))
    if any(site.optional(index + MOST_MEMBERS) is not None for index in _WEIGHTS if index not in members):
        fail(ConfigError, site.op, "no bias without its weight", "a third bias", "give the third weight too")
    return tuple(results)


def _reference(call: Arrays) -> tuple[Array, ...]:
    there = [index for index in _WEIGHTS if call.optional(index) is not None]
    products = (product(call, weight=index, bias=index + MOST_MEMBERS, gain=None) for index in there)
    return tuple(y.astype(np.float32) for y in products)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    return Cost(product_flops(operands, None, _WEIGHTS), nbytes(*operands, *results))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for weight in KINDS:
        k = whole(weight, 64)
        yield valid(normal((3, k)), normal((40, k), weight), normal((7, k), weight), None, normal((40,)))
    for half in (DType.BF16, DType.F16):
        for m in (1, 5, 33):
            weights = [normal((rows, 96), half) for rows in (48, 17, 33)]
            yield valid(normal((m, 96), half), *weights)
            yield valid(normal((m, 96), half), *weights, None, normal((17,)), normal((33,)), dtype="f32")
    yield valid(normal((2, 5, 33), axes="BTC"), normal((6, 33), axes="HC"), normal((5, 33)), axes="HG")
    yield valid(normal((4, 33)), normal((6, 33), DType.BF16), normal((5, 33), DType.BF16), dtype="bf16")
    yield valid(normal((0, 64)), normal((8, 64)), normal((4, 64)))
    yield valid(normal((3, 64)), normal((0, 64)), normal((4, 64)), normal((16, 64)))
    yield invalid(ShapeError, normal((3, 64)), normal((8, 64)))
    yield invalid(ShapeError, normal((3, 64)), normal((8, 64)), normal((4, 63)))
    yield invalid(ShapeError, normal((3, 64)), normal((8, 64)), normal((4, 64)), None, normal((9,)))
    yield invalid(DTypeError, normal((3, 64)), normal((8, 64)), normal((4, 64), DType.BF16))
    yield invalid(DTypeError, normal((3, 64), DType.F16), normal((8, 64), DType.BF16), normal((4, 64), DType.BF16))
    yield invalid(LayoutError, normal((3, 64)), normal((8, 64)), normal((4, 64)), attrs={"axes": "HGG"})
    third = normal((8, 64)), normal((4, 64)), None, None, None, normal((4,))
    yield invalid(ConfigError, normal((3, 64)), *third)


LINEAR_GROUP = define(
    "linear_group",
    "several linears of one x [..., K]: x times each weight [M, K] transposed, plus its bias [M] where it has one.",
    (
        X,
        OperandSpec("w0", WEIGHTS),
        OperandSpec("w1", WEIGHTS),
        OperandSpec("w2", WEIGHTS, optional=True),
        *(OperandSpec(f"b{index}", F32, optional=True) for index in range(MOST_MEMBERS)),
    ),
    ("y*",),
    _infer,
    _reference,
    _samples,
    TOLERANCE,
    attrs=(DTYPE_ATTR, AttrSpec("axes", str, "")),
    cost=_cost,
    derivative=gradients_of_group,
)

LINEAR_GROUP_OPS = (LINEAR_GROUP,)
