"""Products of two activations: batches of matrices, where `linear` multiplies by a weight that is stored as the checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.elementwise import require_finite_factor
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    FLOATS,
    Arrays,
    Site,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    require_same_extent,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.rounding import multiply
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["MATMUL", "MATMUL_OPS"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    a, b = site.operand(0), site.operand(1)
    require_rank(site.op, "a [..., M, K]", a, at_least=2)
    require_rank(site.op, "b [..., K, N]", b, exactly=a.rank)
    if a.dtype is not b.dtype:
        fail(DTypeError, site.op, f"b of dtype {a.dtype.value} like a", str(b), "cast one of them explicitly")
    require_finite_factor(site, "scale")
    lead = a.rank - 2
    require_shape(site.op, "b", b, (*a.shape[:lead], *b.shape[lead:]))
    (m, k), (inner, n) = _last_two(site, "transpose_a", lead), _last_two(site, "transpose_b", lead)
    require_same_extent(site.op, "the extent K of b, equal to that of a,", a.shape[k], b.shape[inner])
    join_axes(site.op, "K of b", (a.axes[k],), (b.axes[inner],))
    axes = join_axes(site.op, "batch axes of b", a.axes[:lead], b.axes[:lead])
    shape = (*a.shape[:lead], a.shape[m], b.shape[n])
    return (make_type(site.op, shape, result_float(site, a), (*axes, a.axes[m], b.axes[n])),)


def _last_two(site: Site, flag: str, lead: int) -> tuple[int, int]:
    """Indices of a matrix's rows and columns, swapped where it is transposed."""
    return (lead + 1, lead) if site.boolean(flag) else (lead, lead + 1)


def _reference(call: Arrays) -> tuple[Array, ...]:
    a, b = call.wide(0), call.wide(1)
    a = a.swapaxes(-1, -2) if call.boolean("transpose_a") else a
    b = b.swapaxes(-1, -2) if call.boolean("transpose_b") else b
    return ((multiply(a, b) * np.float32(call.real("scale"))).astype(np.float32),)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """A product and a sum for each element of the result and each of K."""
    a = operands[0]
    assert a is not None
    k = a.static_shape[-2 if attrs["transpose_a"] else -1]
    return Cost(2 * k * results[0].elements, nbytes(*operands, *results))


def _pair(
    m: int, k: int, n: int, lead: tuple[int, ...] = (), dtype: DType = DType.F32, a: bool = False, b: bool = False
) -> tuple[SampleOperand, SampleOperand]:
    left, right = ((k, m) if a else (m, k)), ((n, k) if b else (k, n))
    return normal((*lead, *left), dtype), normal((*lead, *right), dtype)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for m, k, n in ((1, 1, 1), (1, 64, 100), (7, 33, 5), (31, 300, 65), (100, 129, 257), (13, 128, 64), (200, 40, 300)):
        for a in (False, True):
            for b in (False, True):
                yield valid(*_pair(m, k, n, a=a, b=b), transpose_a=a, transpose_b=b)
    for dtype in (DType.F16, DType.BF16):
        yield valid(*_pair(17, 65, 33, dtype=dtype))
        yield valid(*_pair(5, 64, 96, (3,), dtype), dtype="f32")
        yield valid(*_pair(9, 50, 70, dtype=dtype, a=True, b=True), transpose_a=True, transpose_b=True, scale=0.125)
    yield valid(*_pair(17, 33, 9), dtype="bf16", scale=-3.0)
    yield valid(*_pair(9, 32, 9, (2, 3)), scale=0.17677669)
    yield valid(normal((2, 3, 17, 32), axes="BHTD"), normal((2, 3, 17, 32), axes="BHSD"), transpose_b=True, scale=0.25)
    yield valid(normal((2, 3, 17, 19), axes="BHTS"), normal((2, 3, 19, 32), axes="B_SD"))
    yield valid(normal((33, 64), axes="NC"), normal((64, 40), axes="CF"))
    yield valid(*_pair(3, 0, 4))
    yield valid(*_pair(0, 5, 4))
    yield valid(*_pair(3, 5, 0, (2,)))
    yield valid(*_pair(3, 5, 4, (0,)))
    yield invalid(ShapeError, normal((4,)), normal((4, 5)))
    yield invalid(ShapeError, normal((4, 5)), normal((4, 5)))
    yield invalid(ShapeError, normal((3, 5)), normal((5, 4)), attrs={"transpose_b": True})
    yield invalid(ShapeError, normal((2, 3, 4, 5)), normal((3, 5, 6)))
    yield invalid(ShapeError, normal((2, 4, 5)), normal((1, 5, 6)))
    yield invalid(ShapeError, normal((4, 5)))
    yield invalid(DTypeError, normal((4, 5)), normal((5, 6), DType.BF16))
    yield invalid(DTypeError, normal((4, 5), DType.F64), normal((5, 6), DType.F64))
    yield invalid(DTypeError, normal((4, 5)), normal((5, 6)), attrs={"dtype": "i32"})
    yield invalid(ConfigError, normal((4, 5)), normal((5, 6)), attrs={"scale": float("inf")})
    yield invalid(ConfigError, normal((4, 5)), normal((5, 6)), attrs={"scale": float("nan")})
    yield invalid(LayoutError, normal((4, 5), axes="TC"), normal((5, 6), axes="DF"))
    yield invalid(LayoutError, normal((2, 4, 5), axes="BTC"), normal((2, 5, 6), axes="HCF"))
    yield invalid(LayoutError, normal((5, 4), axes="TD"), normal((5, 4), axes="TD"), attrs={"transpose_b": True})


MATMUL = define(
    "matmul",
    "scale * a @ b over the last two axes, either transposed by its flag; the batch axes before them are identical. Sums in float32.",
    (OperandSpec("a", FLOATS), OperandSpec("b", FLOATS)),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(2e-4, 2e-4, "contract of matmul: fp32 sums of K products in another order than the float64 reference"),
    attrs=(
        AttrSpec("transpose_a", bool, False),
        AttrSpec("transpose_b", bool, False),
        AttrSpec("scale", float, 1.0),
        DTYPE_ATTR,
    ),
    cost=_cost,
)

MATMUL_OPS = (MATMUL,)
