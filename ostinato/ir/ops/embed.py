"""Token embedding: rows of a table, dequantised exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, Sizes, Tolerance
from ostinato.ir.ops.derivatives import only_gradient, reshaped
from ostinato.ir.ops.rules import (
    I32,
    WEIGHTS,
    Arrays,
    Site,
    check_index,
    define,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid, whole
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["EMBEDDING", "EMBED_OPS"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    ids, weight = site.operand(0), site.operand(1)
    require_rank(site.op, "weight", weight, exactly=2)
    axis = site.text("axis")
    join_axes(site.op, "result axis", (axis,), (weight.axes[1],))
    return (make_type(site.op, (*ids.shape, weight.shape[1]), result_float(site, weight), (*ids.axes, axis)),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    ids, weight = call.operand(0), call.operand(1)
    check_index(call.op, "token id", ids, 0, weight.shape[0])
    return (weight[ids],)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """Only the rows asked for are read, at the width of the table."""
    del attrs
    weight = operands[1]
    assert weight is not None
    return Cost(0, nbytes(operands[0], *results) + weight.dtype.nbytes(results[0].elements))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DType:
        if dtype not in WEIGHTS:
            continue
        many, few = normal((100, whole(dtype, 96)), dtype), normal((33, whole(dtype, 64)), dtype, "VC")
        yield valid(indices(rng.integers(0, 100, 7), "N"), many, dtype="f32", axis="C")
        yield valid(indices(rng.integers(0, 33, (2, 5)), "BT"), few, dtype="f32", axis="C")
    for result in ("f16", "bf16"):
        yield valid(indices([[5, 0, 30]]), normal((31, 33)), dtype=result)
        yield valid(indices([1, 1]), normal((3, 32), DType.Q4_0), dtype=result)
    yield valid(indices([12]), normal((13, 1)))
    yield valid(indices(4), normal((5, 7)))
    yield valid(indices(np.zeros((0,))), normal((4, 8)))
    yield valid(indices(np.zeros((2, 0))), normal((4, 8)))
    yield valid(indices(np.zeros((3,))), normal((1, 0)))
    yield invalid(BoundsError, indices([0, 4]), normal((4, 8)))
    yield invalid(BoundsError, indices([-1]), normal((4, 8)))
    yield invalid(ShapeError, indices([0]), normal((4, 8, 1)))
    yield invalid(DTypeError, normal((3,)), normal((4, 8)))
    yield invalid(DTypeError, indices([0]), normal((4, 33), DType.Q8_0))
    yield invalid(DTypeError, indices([0]), normal((4, 128), DType.Q6_K))
    yield invalid(DTypeError, indices([0]), normal((4, 8)), attrs={"dtype": "i32"})
    yield invalid(LayoutError, indices([0]), normal((4, 8), axes="VC"), attrs={"axis": "F"})
    yield invalid(LayoutError, indices([0], "C"), normal((4, 8)), attrs={"axis": "C"})


def _sizes(operands: OperandTypes) -> Sizes:
    """A row for each id."""
    ids = operands[0]
    return Sizes(1 if ids is None else ids.elements)


def _gradients(at: Gradients) -> Mapping[int, str]:
    """The table's: the gradients of the rows that were read, each in its row."""
    weight, dy = at.type(at.operand(1)), only_gradient(at)
    dy = reshaped(at, dy, at.type(dy).shape, (*at.type(dy).axes[:-1], weight.axes[1]))
    return {1: at.apply("embedding_backward", [dy, at.operand(0)], {"rows": weight.static_shape[0]})}


EMBEDDING = define(
    "embedding",
    "Rows of a table at integer ids: ids S, weight [V,C] -> S + [C].",
    (OperandSpec("ids", I32), OperandSpec("weight", WEIGHTS)),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "a row is copied or dequantised exactly, then rounded once"),
    attrs=(AttrSpec("dtype", str, "f32"), AttrSpec("axis", str, "")),
    sizes=_sizes,
    cost=_cost,
    packed={"weight": "panel32"},
    derivative=_gradients,
)

EMBED_OPS = (EMBEDDING,)
