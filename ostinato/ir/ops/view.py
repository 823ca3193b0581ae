"""Views: reshape, transpose and slice move no bytes. Result 0 shares its operand's storage, at the offset and strides that the view rule gives.

A reshape has as many elements as its operand. It is a view where strides describe it, as of columns of a product as heads; elsewhere the operand goes through
`contiguous` first, which is a counted copy. Block dtypes and packed weights have no views: their load program picks rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance, View
from ostinato.ir.ops.derivatives import only_gradient, reshaped
from ostinato.ir.ops.rules import ELEMENTS, Arrays, Shape, Site, define, describe, fail, make_type
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.types import Array, Dim, DType, Extent, TensorType

__all__ = ["RESHAPE", "SLICE", "TRANSPOSE", "VIEW_OPS"]

Strides = tuple[int, ...]
EXACT = Tolerance(0, 0, "no byte moves")


def _no_cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del operands, results, attrs
    return Cost(0, 0)


def _source(operands: OperandTypes) -> TensorType:
    found = operands[0]
    assert found is not None
    return found


# reshape


def _infer_reshape(site: Site) -> tuple[TensorType, ...]:
    x, wanted = site.operand(0), site.integers("shape")
    names = site.text("axes")
    if names and len(names) != len(wanted):
        fail(
            LayoutError,
            site.op,
            f"axes with {len(wanted)} letters, one a dimension",
            repr(names),
            'use "_" for an anonymous axis',
        )
    shape: list[Extent] = []
    axes: list[str] = []
    for index, extent in enumerate(wanted):
        name = "" if not names or names[index] == "_" else names[index]
        if extent == 0:
            if index >= x.rank:
                fail(
                    ShapeError,
                    site.op,
                    f"0 only at the {x.rank} dimensions of x",
                    str(list(wanted)),
                    "give this extent as a number",
                )
            kept = x.axes[index]
            if name and kept and name != kept:
                fail(
                    LayoutError,
                    site.op,
                    f"dimension {index} to keep its name {kept}",
                    name,
                    "a reshape does not rename what it keeps",
                )
            # a name given as "_" drops nothing: the axis is the same axis
            shape.append(x.shape[index])
            axes.append(name or kept)
        elif extent == -1 or extent > 0:
            shape.append(extent)
            axes.append(name)
        else:
            fail(
                ShapeError,
                site.op,
                "extents above 0, 0 to keep one, or -1 for the rest",
                str(list(wanted)),
                "see the operator table",
            )
    if wanted.count(-1) > 1:
        fail(ShapeError, site.op, "at most one -1", str(list(wanted)), "give the other extents as numbers")
    if -1 in wanted:
        place = wanted.index(-1)
        shape[place] = _rest(site, x, [*shape[:place], *shape[place + 1 :]])
    elif _factors(x.shape) != _factors(shape):
        _uneven(site, x, shape)
    return (make_type(site.op, tuple(shape), x.dtype, tuple(axes)),)


def _factors(shape: Sequence[Extent]) -> tuple[int, list[str]]:
    """The element count as a product: the integer part and the symbolic factors by name."""
    numbers = math.prod(extent for extent in shape if isinstance(extent, int))
    return (0, []) if numbers == 0 else (numbers, sorted(extent.name for extent in shape if isinstance(extent, Dim)))


def _rest(site: Site, x: TensorType, others: list[Extent]) -> Extent:
    """The extent that -1 stands for: what is left of x after the other extents."""
    numbers, _ = _factors(x.shape)
    divisor, _ = _factors(others)
    if divisor == 0:
        fail(
            ShapeError, site.op, "no -1 beside an extent of 0", str(x), "give every extent as a number when x is empty"
        )
    left = [extent for extent in x.shape if isinstance(extent, Dim)]
    for extent in others:
        if isinstance(extent, Dim):
            if extent not in left:
                _uneven(site, x, [*others, -1])
            left.remove(extent)
    if numbers % divisor or len(left) > 1 or (left and numbers != divisor):
        _uneven(site, x, [*others, -1])
    return left[0] if left else numbers // divisor


def _uneven(site: Site, x: TensorType, shape: Sequence[Extent]) -> NoReturn:
    fail(
        ShapeError,
        site.op,
        f"as many elements as {x} has",
        describe(shape),
        "the product of the extents must stay; symbolic extents stay whole",
    )


def _view_reshape(operands: OperandTypes, attrs: Mapping[str, Attr], strides: Strides | None = None, /) -> View:
    x = _source(operands)
    (result,) = RESHAPE.infer(operands, attrs)
    if not x.elements:
        return View(0, result.strides)
    given = x.strides if strides is None else strides
    found = _regrouped(x.static_shape, given, result.static_shape)
    if found is None:
        fail(
            LayoutError,
            "reshape",
            "x whose joined dimensions lie one after another",
            f"strides {list(given)}",
            "make it contiguous first",
        )
    return View(0, found)


def _regrouped(shape: tuple[int, ...], strides: Strides, wanted: tuple[int, ...]) -> Strides | None:
    """Strides of the same elements in another shape of as many; None where there are none.

    Both shapes are cut into the smallest groups of dimensions with equal products: the old ones of a group must lie without gaps, the new ones then do.
    """
    old = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    found: list[int] = []
    place, new = 0, 0
    while new < len(wanted):
        first, product, size = new, wanted[new], 1
        new += 1
        group: list[tuple[int, int]] = []
        while product != size:
            if product < size:
                product *= wanted[new]
                new += 1
            else:
                group.append(old[place])
                size *= old[place][0]
                place += 1
        if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(group)):
            return None
        step = group[-1][1] if group else 0
        made: list[int] = []
        for extent in reversed(wanted[first:new]):
            made.append(step)
            step *= extent
        found += reversed(made)
    return _with_units(wanted, found)


def _with_units(shape: tuple[int, ...], strides: Sequence[int]) -> Strides:
    """The strides with those of extents of 1, which say nothing, as if the dimensions behind them lay without gaps."""
    found: list[int] = []
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        found.append(step if extent == 1 else stride)
        step = extent * found[-1]
    return tuple(reversed(found))


def _reference_reshape(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0).reshape(call.results[0].static_shape),)


# transpose


def _order(site: Site, rank: int) -> tuple[int, ...]:
    order = site.integers("order")
    if sorted(order) != list(range(rank)):
        fail(
            ShapeError,
            site.op,
            f"an order of the {rank} dimensions of x",
            str(list(order)),
            "name every dimension once, counted from 0",
        )
    return order


def _infer_transpose(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    order = _order(site, x.rank)
    return (make_type(site.op, tuple(x.shape[i] for i in order), x.dtype, tuple(x.axes[i] for i in order)),)


def _view_transpose(operands: OperandTypes, attrs: Mapping[str, Attr], strides: Strides | None = None, /) -> View:
    TRANSPOSE.infer(operands, attrs)
    given = _source(operands).strides if strides is None else strides
    order = attrs["order"]
    assert isinstance(order, tuple)
    return View(0, tuple(given[i] for i in order))


def _reference_transpose(call: Arrays) -> tuple[Array, ...]:
    return (call.operand(0).transpose(call.integers("order")),)


# slice


def _infer_slice(site: Site) -> tuple[TensorType, ...]:
    x, axis, start, stop, step = site.operand(0), *(site.integer(name) for name in ("axis", "start", "stop", "step"))
    if not 0 <= axis < x.rank:
        fail(BoundsError, site.op, f"an axis in [0, {x.rank})", str(axis), "axes are counted from 0, from the front")
    if step < 1:
        fail(
            ConfigError,
            site.op,
            "a step of 1 or more",
            str(step),
            "negative strides are never made; reverse the data instead",
        )
    extent = x.shape[axis]
    # a symbolic extent is at least its lower bound in every bucket
    most = extent.low if isinstance(extent, Dim) else extent
    if not 0 <= start <= stop <= most:
        fail(
            BoundsError,
            site.op,
            f"0 <= start <= stop <= {most} on axis {axis} of {x}",
            f"[{start}, {stop})",
            "slices stay inside their operand",
        )
    shape: Shape = (*x.shape[:axis], -(-(stop - start) // step), *x.shape[axis + 1 :])
    return (make_type(site.op, shape, x.dtype, x.axes),)


def _view_slice(operands: OperandTypes, attrs: Mapping[str, Attr], strides: Strides | None = None, /) -> View:
    full = SLICE.attributes(attrs)
    SLICE.infer(operands, full)
    given = _source(operands).strides if strides is None else strides
    axis, start, step = full["axis"], full["start"], full["step"]
    assert type(axis) is int
    assert type(start) is int
    assert type(step) is int
    return View(start * given[axis], (*given[:axis], given[axis] * step, *given[axis + 1 :]))


def _reference_slice(call: Arrays) -> tuple[Array, ...]:
    axis, start, stop, step = (call.integer(name) for name in ("axis", "start", "stop", "step"))
    return (call.operand(0)[(*[slice(None)] * axis, slice(start, stop, step))],)


def _samples_reshape(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((5, 96)), shape=(0, 3, 32))
    yield valid(normal((2, 5, 96), axes="BTC"), shape=(0, 0, 3, 32), axes="BTHD")
    yield valid(normal((2, 5, 3, 32), axes="BTHD"), shape=(0, 0, -1), axes="BT_")
    yield valid(normal((2, 5, 8)), shape=(-1, 8))
    yield valid(normal((6,), DType.I32), shape=(2, 3))
    yield valid(normal((6,), DType.BF16), shape=(6, 1))
    yield valid(normal((1, 1)), shape=())
    yield valid(normal(()), shape=(1,))
    yield valid(normal((0, 4)), shape=(0, 2, 2))
    yield invalid(ShapeError, normal((5, 96)), attrs={"shape": (0, 3, 31)})
    yield invalid(ShapeError, normal((5, 96)), attrs={"shape": (0, -1, 31)})
    yield invalid(ShapeError, normal((5, 96)), attrs={"shape": (-1, -1)})
    yield invalid(ShapeError, normal((5, 96)), attrs={"shape": (0, 0, 0)})
    yield invalid(ShapeError, normal((5, 96)), attrs={"shape": (5, -96)})
    yield invalid(ShapeError, normal((0, 4)), attrs={"shape": (0, -1)})
    yield invalid(LayoutError, normal((5, 96), axes="NC"), attrs={"shape": (0, 3, 32), "axes": "THD"})
    yield invalid(LayoutError, normal((5, 96)), attrs={"shape": (0, 3, 32), "axes": "HD"})
    yield invalid(LayoutError, normal((5, 96)), attrs={"shape": (0, 3, 32), "axes": "NDD"})
    yield invalid(LayoutError, SampleOperand(TensorType((32, 96), DType.F32, layout="panel32")), attrs={"shape": (-1,)})
    yield invalid(DTypeError, normal((5, 96), DType.Q8_0), attrs={"shape": (0, 3, 32)})
    yield invalid(ConfigError, normal((5, 96)))


def _samples_transpose(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((3, 5)), order=(1, 0))
    yield valid(normal((2, 3, 4, 8), axes="BTHD"), order=(0, 2, 1, 3))
    yield valid(normal((2, 3, 4), DType.I64), order=(2, 0, 1))
    yield valid(normal((7,), DType.BF16), order=(0,))
    yield valid(normal(()), order=())
    yield valid(normal((0, 3)), order=(1, 0))
    yield invalid(ShapeError, normal((3, 5)), attrs={"order": (0, 0)})
    yield invalid(ShapeError, normal((3, 5)), attrs={"order": (0,)})
    yield invalid(ShapeError, normal((3, 5)), attrs={"order": (0, -1)})
    yield invalid(DTypeError, normal((3, 32), DType.Q4_0), attrs={"order": (1, 0)})
    yield invalid(LayoutError, SampleOperand(TensorType((3, 32), DType.F32, layout="panel32")), attrs={"order": (1, 0)})


def _samples_slice(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((5, 96)), axis=1, start=32, stop=64)
    yield valid(normal((5, 96), axes="NC"), axis=0, start=1, stop=5, step=2)
    yield valid(normal((3, 4, 5), DType.F16), axis=1, start=0, stop=4, step=3)
    yield valid(normal((5, 96)), axis=0, start=5, stop=5)
    yield valid(normal((9,), DType.I32), axis=0, start=8, stop=9)
    yield invalid(BoundsError, normal((5, 96)), attrs={"axis": 1, "start": 0, "stop": 97})
    yield invalid(BoundsError, normal((5, 96)), attrs={"axis": 1, "start": 3, "stop": 2})
    yield invalid(BoundsError, normal((5, 96)), attrs={"axis": 1, "start": -1, "stop": 2})
    yield invalid(BoundsError, normal((5, 96)), attrs={"axis": 2, "start": 0, "stop": 1})
    yield invalid(BoundsError, normal(()), attrs={"axis": 0, "start": 0, "stop": 1})
    yield invalid(ConfigError, normal((5, 96)), attrs={"axis": 1, "start": 0, "stop": 2, "step": 0})
    yield invalid(ConfigError, normal((5, 96)), attrs={"axis": 1, "start": 2, "stop": 0, "step": -1})
    yield invalid(DTypeError, normal((5, 96), DType.Q4_1), attrs={"axis": 0, "start": 0, "stop": 1})


def _gradients_reshape(at: Gradients) -> Mapping[int, str]:
    x = at.type(at.operand(0))
    return {0: reshaped(at, only_gradient(at), x.shape, x.axes)}


def _gradients_transpose(at: Gradients) -> Mapping[int, str]:
    order = at.attrs["order"]
    assert isinstance(order, tuple)
    back = tuple(order.index(axis) for axis in range(len(order)))
    return {0: at.apply("transpose", [only_gradient(at)], {"order": back})}


def _gradients_slice(at: Gradients) -> Mapping[int, str]:
    axis = at.attrs["axis"]
    assert isinstance(axis, int)
    attrs: dict[str, Attr] = {name: at.attrs[name] for name in ("axis", "start", "step")}
    attrs["extent"] = at.type(at.operand(0)).static_shape[axis]
    return {0: at.apply("slice_backward", [only_gradient(at)], attrs)}


X = (OperandSpec("x", ELEMENTS),)

RESHAPE = define(
    "reshape",
    "The same elements in another shape; 0 keeps the extent at that index, -1 takes the rest.",
    X,
    ("y",),
    _infer_reshape,
    _reference_reshape,
    _samples_reshape,
    EXACT,
    attrs=(AttrSpec("shape", tuple), AttrSpec("axes", str, "")),
    view=_view_reshape,
    cost=_no_cost,
    derivative=_gradients_reshape,
)

TRANSPOSE = define(
    "transpose",
    "The dimensions in another order.",
    X,
    ("y",),
    _infer_transpose,
    _reference_transpose,
    _samples_transpose,
    EXACT,
    attrs=(AttrSpec("order", tuple),),
    view=_view_transpose,
    cost=_no_cost,
    derivative=_gradients_transpose,
)

SLICE = define(
    "slice",
    "Every step-th element of [start, stop) along one axis.",
    X,
    ("y",),
    _infer_slice,
    _reference_slice,
    _samples_slice,
    EXACT,
    attrs=(AttrSpec("axis", int), AttrSpec("start", int), AttrSpec("stop", int), AttrSpec("step", int, 1)),
    view=_view_slice,
    cost=_no_cost,
    derivative=_gradients_slice,
)

VIEW_OPS = (
    RESHAPE,
    TRANSPOSE,
    SLICE,
)
