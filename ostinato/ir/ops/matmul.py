"""Products of two activations: batches of matrices, where `linear` multiplies by a weight that is stored as the checkpoint has it.

`matmul_add` adds a product to what is there, in its bytes: how the gradients of several uses of one value come together without passes over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import dtype_of_f32, in_dtype, only_gradient, reshaped
from ostinato.ir.ops.elementwise import require_finite_factor
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    Arrays,
    Shape,
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

__all__ = ["MATMUL", "MATMUL_ADD", "MATMUL_OPS"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    a = site.operand(0)
    shape, axes = _product(site, 0)
    return (make_type(site.op, shape, result_float(site, a), axes),)


def _infer_add(site: Site) -> tuple[TensorType, ...]:
    c = site.operand(0)
    shape, axes = _product(site, 1)
    require_shape(site.op, "c", c, shape)
    join_axes(site.op, "c", axes, c.axes)
    return (make_type(site.op, c.shape, c.dtype, c.axes),)


def _product(site: Site, first: int) -> tuple[Shape, tuple[str, ...]]:
    """Shape and axis names of the product of operands `first` and the one behind it."""
    a, b = site.operand(first), site.operand(first + 1)
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
    return (*a.shape[:lead], a.shape[m], b.shape[n]), (*axes, a.axes[m], b.axes[n])


def _last_two(site: Site, flag: str, lead: int) -> tuple[int, int]:
    """Indices of a matrix's rows and columns, swapped where it is transposed."""
    return (lead + 1, lead) if site.boolean(flag) else (lead, lead + 1)


def _scaled(call: Arrays, first: int) -> Array:
    a, b = call.wide(first), call.wide(first + 1)
    a = a.swapaxes(-1, -2) if call.boolean("transpose_a") else a
    b = b.swapaxes(-1, -2) if call.boolean("transpose_b") else b
    return multiply(a, b) * np.float32(call.real("scale"))


def _reference(call: Arrays) -> tuple[Array, ...]:
    return (_scaled(call, 0).astype(np.float32),)


def _reference_add(call: Arrays) -> tuple[Array, ...]:
    return ((call.wide(0) + _scaled(call, 1)).astype(np.float32),)


def _cost(first: int) -> Callable[[OperandTypes, Sequence[TensorType], Mapping[str, Attr]], Cost]:
    """A product and a sum for each element of the result and each of K; operand `first` is a."""

    def cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
        a = operands[first]
        assert a is not None
        k = a.static_shape[-2 if attrs["transpose_a"] else -1]
        return Cost(2 * k * results[0].elements, nbytes(*operands, *results))

    return cost


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


def _samples_add(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for m, k, n in ((1, 1, 1), (1, 64, 100), (7, 33, 5), (31, 300, 65), (100, 129, 257), (13, 128, 64)):
        for a in (False, True):
            for b in (False, True):
                yield valid(normal((m, n)), *_pair(m, k, n, a=a, b=b), transpose_a=a, transpose_b=b)
    for dtype in (DType.F16, DType.BF16):
        yield valid(normal((17, 33)), *_pair(17, 65, 33, dtype=dtype))
        yield valid(normal((96, 70)), *_pair(96, 50, 70, dtype=dtype, a=True), transpose_a=True)
        yield valid(normal((9, 70)), *_pair(9, 50, 70, dtype=dtype, a=True, b=True), transpose_a=True, transpose_b=True)
        yield valid(normal((3, 5, 96)), *_pair(5, 64, 96, (3,), dtype), scale=-0.125)
    yield valid(normal((2, 3, 9, 9)), *_pair(9, 32, 9, (2, 3)), scale=0.17677669)
    yield valid(normal((33, 40), axes="N_"), normal((33, 64), axes="NC"), normal((64, 40), axes="CF"))
    yield valid(normal((33, 40), axes="NF"), normal((33, 64), axes="_C"), normal((64, 40)))
    yield valid(normal((3, 4)), *_pair(3, 0, 4))
    yield valid(normal((0, 4)), *_pair(0, 5, 4))
    yield valid(normal((2, 3, 0)), *_pair(3, 5, 0, (2,)))
    yield valid(normal((0, 3, 4)), *_pair(3, 5, 4, (0,)))
    good = _pair(4, 5, 6)
    yield invalid(ShapeError, normal((4, 5)), *good)
    yield invalid(ShapeError, normal((6,)), *good)
    yield invalid(ShapeError, normal((1, 4, 6)), *good)
    yield invalid(ShapeError, normal((4, 6)), normal((4, 5)), normal((6, 5)))
    yield invalid(ShapeError, *good)
    yield invalid(DTypeError, normal((4, 6), DType.BF16), *good)
    yield invalid(DTypeError, normal((4, 6)), good[0], normal((5, 6), DType.BF16))
    yield invalid(ConfigError, normal((4, 6)), *good, attrs={"scale": float("inf")})
    yield invalid(ConfigError, normal((4, 6)), *good, attrs={"dtype": "f32"})
    yield invalid(LayoutError, normal((4, 6), axes="TC"), normal((4, 5), axes="NC"), normal((5, 6)))
    yield invalid(LayoutError, normal((4, 6)), normal((4, 5), axes="TC"), normal((5, 6), axes="DF"))


def _gradients(at: Gradients) -> Mapping[int, str]:
    return _of_product(at, 0)


def _gradients_add(at: Gradients) -> Mapping[int, str]:
    found = _of_product(at, 1)
    return {**found, 0: only_gradient(at)} if at.wants(0) else found


def _of_product(at: Gradients, first: int) -> dict[int, str]:
    """With y = s op(a) op(b): a gets s dy op(b)^T and b gets s op(a)^T dy, each transposed where the operand was; computed in their dtype, and float32."""
    a, b = at.operand(first), at.operand(first + 1)
    of_a, of_b, lead = at.type(a), at.type(b), at.type(a).rank - 2
    dy = in_dtype(at, only_gradient(at), of_a.dtype)
    turned_a, turned_b = at.attrs["transpose_a"] is True, at.attrs["transpose_b"] is True
    (m, k), (inner, n) = (lead + turned_a, lead + 1 - turned_a), (lead + turned_b, lead + 1 - turned_b)
    found: dict[int, str] = {}
    if at.wants(first):
        left = _called(at, dy, lead, of_a.axes[m], lead + 1)
        right = _called(at, b, inner, of_a.axes[k], n)
        pair = (right, left) if turned_a else (left, right)
        flags = (turned_b, True) if turned_a else (False, not turned_b)
        found[first] = _multiplied(at, pair, flags)
    if at.wants(first + 1):
        left = _called(at, a, k, of_b.axes[inner], m)
        right = _called(at, dy, lead + 1, of_b.axes[n], lead)
        pair = (right, left) if turned_b else (left, right)
        flags = (True, turned_a) if turned_b else (not turned_a, False)
        found[first + 1] = _multiplied(at, pair, flags)
    return found


def _called(at: Gradients, value: str, axis: int, name: str, other: int) -> str:
    """The value with that name on one axis, and on the `other` not the same: a name may stand on both sides of a product, but on one axis of a value alone."""
    found = at.type(value)
    axes = list(found.axes)
    axes[axis], axes[other] = name, "" if axes[other] == name else axes[other]
    return reshaped(at, value, found.shape, tuple(axes))


def _multiplied(at: Gradients, pair: tuple[str, str], flags: tuple[bool, bool]) -> str:
    attrs: dict[str, Attr] = {"transpose_a": flags[0], "transpose_b": flags[1], "scale": at.attrs["scale"]}
    return at.apply("matmul", pair, {**attrs, "dtype": dtype_of_f32(at, pair[0])})


_TOLERANCE = Tolerance(
    2e-4, 2e-4, "contract of matmul: fp32 sums of K products in another order than the float64 reference"
)
_FLAGS = (
    AttrSpec("transpose_a", bool, False),
    AttrSpec("transpose_b", bool, False),
    AttrSpec("scale", float, 1.0),
)

MATMUL = define(
    "matmul",
    "scale * a @ b over the last two axes, either transposed by its flag; the batch axes before them are identical. Sums in float32.",
    (OperandSpec("a", FLOATS), OperandSpec("b", FLOATS)),
    ("y",),
    _infer,
    _reference,
    _samples,
    _TOLERANCE,
    attrs=(*_FLAGS, DTYPE_ATTR),
    cost=_cost(0),
    derivative=_gradients,
)

MATMUL_ADD = define(
    "matmul_add",
    "c + scale * a @ b over the last two axes, in the bytes of c; a and b as in matmul. Sums in float32.",
    (OperandSpec("c", F32), OperandSpec("a", FLOATS), OperandSpec("b", FLOATS)),
    ("y",),
    _infer_add,
    _reference_add,
    _samples_add,
    _TOLERANCE,
    attrs=_FLAGS,
    must_alias=((0, 0),),
    cost=_cost(1),
    derivative=_gradients_add,
)

MATMUL_OPS = (MATMUL, MATMUL_ADD)
