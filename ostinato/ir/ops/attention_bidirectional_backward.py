"""Gradients of an encoder's attention over packed sequences. Nothing is kept for them but the operands: rows are short, and attention is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, OperandSpec, OperandTypes, Sample, SampleOperand
from ostinato.ir.ops.attend import SCALE, attend
from ostinato.ir.ops.attention_backward import ATTENTION_BACKWARD_TOLERANCE, attend_backward, log_sums
from ostinato.ir.ops.attention_bidirectional import check_packed, packed_operands, packed_rows, sizes_of_rows
from ostinato.ir.ops.derivatives import GRADIENT, SECOND, upstream
from ostinato.ir.ops.rules import DTYPE_ATTR, FLOATS, I32, Arrays, Site, define, make_type, nbytes, result_float
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.rounding import working
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ATTENTION_BIDIRECTIONAL_BACKWARD", "ATTENTION_BIDIRECTIONAL_BACKWARD_OPS"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    check_packed(site, first=1)
    dtype = result_float(site, upstream(site, 0, 1))
    return tuple(make_type(site.op, like.shape, dtype, like.axes) for like in (site.operand(i) for i in range(1, 4)))


def _reference(call: Arrays) -> tuple[Array, ...]:
    gradient, q, k, v = (call.wide(i) for i in range(4))
    found = tuple(np.zeros(like.shape, dtype=working()) for like in (q, k, v))
    scale = call.real("scale")
    if not (q.size and k.size):
        return tuple(array.astype(np.float32) for array in found)
    for tokens, seen in packed_rows(call.op, call.operand(4), call.operand(5), call.operand(6)):
        everything = np.ones((len(tokens), seen.stop - seen.start), dtype=np.bool_)
        y = attend(q[tokens], k[seen], v[seen], everything, scale)
        log_sum = log_sums(q[tokens], k[seen], everything, scale)
        operands = q[tokens], k[seen], v[seen], y
        dq, dk, dv = attend_backward(gradient[tokens], operands, log_sum, everything, scale)
        found[0][tokens] = dq
        found[1][seen] += dk
        found[2][seen] += dv
    return tuple(array.astype(np.float32) for array in found)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """At full extents, with rows of equal length: scores and the result again, the gradient of the probabilities, and a product for each result."""
    del attrs
    start = operands[5]
    assert start is not None
    tokens, rows = results[0].static_shape[0], start.static_shape[0]
    keys = -(-tokens // rows) if rows else 0
    return Cost(12 * results[0].elements * keys, nbytes(*operands, *results))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng

    def call(*operands: SampleOperand, scale: float = 0.2, **attrs: str) -> Sample:
        gradient = normal(operands[0].type.static_shape, axes="NHD")
        return valid(gradient, *operands, scale=scale, **attrs)

    packed = packed_operands
    for heads in ((12, 12, 32), (1, 1, 64), (6, 2, 80), (7, 1, 128), (2, 2, 33), (3, 1, 7)):
        yield call(*packed([1], heads), scale=heads[2] ** -0.5)
        yield call(*packed([5, 1, 31, 16], heads), scale=heads[2] ** -0.5)
    yield call(*packed([64, 65, 63, 1, 128], (4, 4, 32)), scale=0.17)
    yield call(*packed([100], (2, 1, 16)), scale=1.0)
    for dtype in (DType.F16, DType.BF16):
        yield call(*packed([33, 7], (3, 3, 32), dtype), scale=0.17)
        yield call(*packed([9, 20], (4, 2, 64), dtype), scale=0.125, dtype=dtype.value)
        yield call(*packed([40, 9], (4, 2, 64), dtype, tokens=52), scale=0.125)
    yield call(*packed([3, 5], (2, 2, 32)), dtype="bf16")
    # padding tokens at the end and between rows, rows without tokens, tokens of a row apart from each other, rows that share tokens
    small = (2, 2, 32)
    yield call(*packed([9, 4], small, tokens=20))
    yield call(*packed([2, 3], (2, 1, 32), rows=[0, 0, -1, -1, 1, 1, 1], starts=[0, 4]))
    yield call(*packed([3, 0, 2], small))
    yield call(*packed([2, 3], small, rows=[1, 0, 1, 0, 1], starts=[0, 2]))
    yield call(*packed([4, 5], small, rows=[0, 1, 0, 1, 1], starts=[0, 0]))
    # a row that no token names may lie anywhere
    yield call(*packed([3, 100, -5], small, rows=[0, 0, 0], starts=[0, -7, 99]))
    # nothing to do: no tokens, no rows, no heads
    yield call(*packed([], small))
    yield call(*packed([0, 0], small))
    yield call(*packed([], small, tokens=3))
    yield call(*packed([3], (0, 1, 32)))
    attrs: dict[str, Attr] = {"scale": 0.125}
    yield invalid(
        BoundsError, normal((4, 2, 32)), *packed([2, 2], small, rows=[0, 0, 1, 2], starts=[0, 2]), attrs=attrs
    )
    yield invalid(
        BoundsError, normal((4, 2, 32)), *packed([2, 3], small, rows=[0, 0, 1, 1], starts=[0, 2]), attrs=attrs
    )
    yield invalid(
        BoundsError, normal((4, 2, 32)), *packed([2, 2], small, rows=[0, 0, 1, 1], starts=[-1, 2]), attrs=attrs
    )
    gradient, good = normal((9, 6, 32)), packed([5, 4], (6, 2, 32))
    yield invalid(ShapeError, normal((9, 2, 32)), *good, attrs=attrs)
    yield invalid(ShapeError, gradient, normal((8, 6, 32)), *good[1:], attrs=attrs)
    yield invalid(ShapeError, gradient, *good[:2], normal((9, 3, 32)), *good[3:], attrs=attrs)
    yield invalid(ShapeError, gradient, *good[:5], attrs=attrs)
    yield invalid(DTypeError, normal((9, 6, 32), DType.BF16), *good, attrs=attrs)
    yield invalid(DTypeError, gradient, *good[:2], normal((9, 2, 32), DType.BF16), *good[3:], attrs=attrs)
    yield invalid(DTypeError, gradient, *good, attrs={**attrs, "dtype": "i32"})
    yield invalid(LayoutError, normal((9, 6, 32), axes="HND"), *good, attrs=attrs)
    yield invalid(LayoutError, gradient, *good[:4], indices([0, 5], "N"), good[5], attrs=attrs)
    yield invalid(ConfigError, gradient, *good, attrs={"scale": -1.0})
    yield invalid(ConfigError, gradient, *good)


ATTENTION_BIDIRECTIONAL_BACKWARD = define(
    "attention_bidirectional_backward",
    "Gradients of q [N,H,D], k and v [N,G,D] of attention_bidirectional from the gradient [N,H,D] of its result.",
    (
        GRADIENT,
        OperandSpec("q", FLOATS),
        OperandSpec("k", FLOATS),
        OperandSpec("v", FLOATS),
        OperandSpec("row_of_token", I32),
        OperandSpec("start", I32),
        OperandSpec("length", I32),
    ),
    ("q_gradient", "k_gradient", "v_gradient"),
    _infer,
    _reference,
    _samples,
    ATTENTION_BACKWARD_TOLERANCE,
    attrs=(SCALE, DTYPE_ATTR),
    cost=_cost,
    sizes=sizes_of_rows,
    derivative=SECOND,
)

ATTENTION_BIDIRECTIONAL_BACKWARD_OPS = (ATTENTION_BIDIRECTIONAL_BACKWARD,)
