"""The rotation of q and k as columns of the joint product that q, k and v come from, and its gradient: one step each between the product and attention.

Columns are heads of q, then of k, then of v, of one width. What turns are the heads of q and k; those of v pass, rounded where the result is narrower. The
gradient goes back to one matrix of columns, as products read it; with `copy` it is written in a second dtype too, for those who read it rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.attend import check_heads
from ostinato.ir.ops.derivatives import COPY_ATTR, SECOND, copies, gradient_or_zeros, reshaped
from ostinato.ir.ops.rope import refuse_trained_tables, require_tables, turned
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_axes,
    require_rank,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ROPE_JOINT_OPS", "ROPE_SPLIT_HALF_JOINT", "ROPE_SPLIT_HALF_JOINT_BACKWARD"]

_TOLERANCE = Tolerance(3e-5, 3e-5, "contract of rope_backward: two fp32 products and a sum, fused or not")


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, heads, groups = site.operand(0), site.integer("heads"), site.integer("groups")
    require_rank(site.op, "x [..., (H + 2 G) D]", x, at_least=1)
    if heads < 1 or groups < 1:
        fail(ConfigError, site.op, "1 head of q and of k or more", f"{heads} and {groups}", "as the model has them")
    check_heads(site.op, heads, groups)
    columns = x.shape[-1]
    width, rest = divmod(columns, heads + 2 * groups) if isinstance(columns, int) else (0, 1)
    if rest:
        fail(ShapeError, site.op, f"columns of {heads} + 2 * {groups} heads", str(x), "join q, k and v in this order")
    dtype = result_float(site, x)
    of_q = make_type(site.op, (*x.shape[:-1], heads, width), dtype, (*x.axes[:-1], "H", "D"))
    of_k = make_type(site.op, (*x.shape[:-1], groups, width), dtype, (*x.axes[:-1], "G", "D"))
    require_tables(site, of_q, site.operand(1), site.operand(2))
    return (of_q, of_k, of_k)


def _infer_backward(site: Site) -> tuple[TensorType, ...]:
    q, k, v = (site.operand(index) for index in range(3))
    require_rank(site.op, "q_gradient [..., H, D]", q, at_least=2)
    require_rank(site.op, "k_gradient [..., G, D]", k, exactly=q.rank)
    require_axes(site.op, "heads of q", TensorType(q.shape[-2:], q.dtype, q.axes[-2:]), "HD")
    require_axes(site.op, "heads of k", TensorType(k.shape[-2:], k.dtype, k.axes[-2:]), "GD")
    require_shape(site.op, "k_gradient", k, (*q.shape[:-2], k.shape[-2], q.shape[-1]))
    require_shape(site.op, "v_gradient", v, k.shape)
    check_heads(site.op, q.shape[-2], k.shape[-2])
    axes = join_axes(site.op, "k_gradient", q.axes[:-2], k.axes[:-2])
    axes = join_axes(site.op, "v_gradient", axes, v.axes[:-2])
    require_tables(site, q, site.operand(3), site.operand(4))
    heads, groups, width = q.shape[-2], k.shape[-2], q.shape[-1]
    assert isinstance(heads, int)
    assert isinstance(groups, int)
    assert isinstance(width, int)
    shape = (*q.shape[:-2], (heads + 2 * groups) * width)
    y = make_type(site.op, shape, result_float(site, q), (*axes, ""))
    return (y, *copies(site, y))


def _turned(call: Arrays, x: Array, first: int, sign: float) -> Array:
    """x [..., heads, D] by the tables from operand `first` on."""
    cos, sin = call.wide(first), call.wide(first + 1)
    half = cos.shape[-1]
    return turned(x, cos, sign * sin, slice(0, half), slice(half, 2 * half))


def _reference(call: Arrays) -> tuple[Array, ...]:
    heads, groups, x = call.integer("heads"), call.integer("groups"), call.wide(0)
    width = x.shape[-1] // (heads + 2 * groups)
    x = x.reshape(*x.shape[:-1], heads + 2 * groups, width)
    q, k, v = x[..., :heads, :], x[..., heads : heads + groups, :], x[..., heads + groups :, :]
    return tuple(array.astype(np.float32) for array in (_turned(call, q, 1, 1.0), _turned(call, k, 1, 1.0), v))


def _reference_backward(call: Arrays) -> tuple[Array, ...]:
    q, k, v = (call.wide(index) for index in range(3))
    joined = np.concatenate((_turned(call, q, 3, -1.0), _turned(call, k, 3, -1.0), v), axis=-2)
    y = joined.reshape(call.results[0].static_shape).astype(np.float32)
    return (y,) * len(call.results)


_SIZES = ((1, 1, 2), (3, 1, 32), (14, 2, 64), (2, 2, 80), (4, 2, 128), (3, 3, 6))
"""Heads of q and of k, and their width."""


def _tables(rng: np.random.Generator, lead: tuple[int, ...], half: int, axes: str) -> list[SampleOperand]:
    angle = rng.uniform(-3.0, 3.0, (*lead, half))
    return [reals(array, f"{axes}_" if axes else "") for array in (np.cos(angle), np.sin(angle))]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        lead: tuple[int, ...],
        sizes: tuple[int, int, int],
        x: DType = DType.F32,
        axes: str = "",
        half: int | None = None,
        dtype: str = "",
    ) -> Sample:
        heads, groups, width = sizes
        tables = _tables(rng, lead, width // 2 if half is None else half, axes)
        joint = normal((*lead, (heads + 2 * groups) * width), x, f"{axes}_" if axes else "")
        return valid(joint, *tables, heads=heads, groups=groups, dtype=dtype)

    for sizes in _SIZES:
        yield call((1,), sizes)
        yield call((5,), sizes, dtype="bf16")
    for dtype in (DType.F16, DType.BF16):
        yield call((33,), (3, 1, 64), dtype)
        yield call((2, 3), (4, 2, 80), axes="BT", half=20, dtype=dtype.value)
    yield call((2, 31), (6, 2, 64), axes="BT", dtype="bf16")
    for width, half in ((64, 8), (8, 1), (10, 3), (32, 0)):  # part of the head
        yield call((5,), (2, 1, width), half=half)
    yield call((), (2, 1, 32))
    yield call((0,), (2, 1, 32))
    table, attrs = normal((5, 16)), {"heads": 2, "groups": 1}
    yield invalid(ShapeError, normal((5, 130)), table, table, attrs=attrs)
    yield invalid(ShapeError, normal((5, 4 * 33)), table, table, attrs=attrs)
    yield invalid(ShapeError, normal((5, 128)), table, normal((4, 16)), attrs=attrs)
    yield invalid(ShapeError, normal((5, 128)), table, attrs=attrs)
    yield invalid(ShapeError, normal((5, 7 * 32)), table, table, attrs={"heads": 3, "groups": 2})
    yield invalid(ShapeError, normal(()), table, table, attrs=attrs)
    yield invalid(DTypeError, normal((5, 128)), normal((5, 16), DType.BF16), table, attrs=attrs)
    yield invalid(DTypeError, normal((5, 128)), table, table, attrs={**attrs, "dtype": "i32"})
    yield invalid(ConfigError, normal((5, 128)), table, table, attrs={"heads": 0, "groups": 1})
    yield invalid(ConfigError, normal((5, 128)), table, table)
    yield invalid(LayoutError, normal((5, 128), axes="H_"), table, table, attrs=attrs)


def _samples_backward(rng: np.random.Generator) -> Iterator[Sample]:
    def call(
        lead: tuple[int, ...], sizes: tuple[int, int, int], axes: str = "", half: int | None = None, **attrs: str
    ) -> Sample:
        heads, groups, width = sizes
        tables = _tables(rng, lead, width // 2 if half is None else half, axes)
        of_q = normal((*lead, heads, width), axes=f"{axes}HD" if axes else "")
        of_k, of_v = (normal((*lead, groups, width), axes=f"{axes}GD" if axes else "") for _ in range(2))
        return valid(of_q, of_k, of_v, *tables, **attrs)

    for sizes in _SIZES:
        yield call((1,), sizes)
        yield call((5,), sizes, dtype="bf16")
        yield call((5,), sizes, copy="bf16")
    for dtype in ("f16", "bf16"):
        yield call((2, 3), (4, 2, 80), "BT", half=20, dtype=dtype)
        yield call((2, 3), (4, 2, 80), "BT", half=20, copy=dtype)
    yield call((2, 31), (6, 2, 64), "BT")
    for width, half in ((64, 8), (8, 1), (10, 3), (32, 0)):
        yield call((5,), (2, 1, width), half=half)
    yield call((), (2, 1, 32))
    yield call((0,), (2, 1, 32), copy="bf16")
    q, k, table = normal((5, 2, 32)), normal((5, 1, 32)), normal((5, 16))
    yield invalid(ShapeError, normal((5, 3, 32)), normal((5, 2, 32)), normal((5, 2, 32)), table, table)
    yield invalid(ShapeError, q, k, normal((5, 2, 32)), table, table)
    yield invalid(ShapeError, q, normal((4, 1, 32)), normal((4, 1, 32)), table, table)
    yield invalid(ShapeError, q, k, k, table, normal((5, 15)))
    yield invalid(ShapeError, q, k, k, table)
    yield invalid(ShapeError, q, normal((1, 32)), normal((1, 32)), table, table)
    yield invalid(DTypeError, q, normal((5, 1, 32), DType.BF16), k, table, table)
    yield invalid(DTypeError, q, k, k, table, table, attrs={"copy": "i32"})
    yield invalid(DTypeError, q, k, k, table, table, attrs={"dtype": "bf16", "copy": "bf16"})
    yield invalid(LayoutError, normal((5, 2, 32), axes="NDH"), k, k, table, table)
    yield invalid(LayoutError, normal((5, 2, 32), axes="NHD"), normal((5, 1, 32), axes="TGD"), k, table, table)


def _gradients(at: Gradients) -> Mapping[int, str]:
    refuse_trained_tables(at, 1, 2)
    given = [gradient_or_zeros(at, index) for index in range(3)]
    joined = at.apply_many("rope_split_half_joint_backward", [*given, at.operand(1), at.operand(2)])[0]
    like = at.type(at.operand(0))
    return {0: reshaped(at, joined, like.shape, like.axes)}


_COS, _SIN = OperandSpec("cos", F32), OperandSpec("sin", F32)

ROPE_SPLIT_HALF_JOINT = define(
    "rope_split_half_joint",
    "Heads of q [..., H, D], k and v [..., G, D] from their joint columns x [..., (H + 2 G) D]; pairs (i, i + half) of q and k turned by cos, sin [..., half].",
    (OperandSpec("x", FLOATS), _COS, _SIN),
    ("q", "k", "v"),
    _infer,
    _reference,
    _samples,
    _TOLERANCE,
    attrs=(AttrSpec("heads", int), AttrSpec("groups", int), DTYPE_ATTR),
    cost=cost_per_element(3),
    derivative=_gradients,
)

ROPE_SPLIT_HALF_JOINT_BACKWARD = define(
    "rope_split_half_joint_backward",
    "Gradient of rope_split_half_joint by x from those of q [..., H, D], k and v [..., G, D], and with `copy` the same rounded to that dtype.",
    (OperandSpec("q_gradient", F32), OperandSpec("k_gradient", F32), OperandSpec("v_gradient", F32), _COS, _SIN),
    ("x_gradient", "rounded*"),
    _infer_backward,
    _reference_backward,
    _samples_backward,
    _TOLERANCE,
    attrs=(DTYPE_ATTR, COPY_ATTR),
    cost=cost_per_element(3),
    derivative=SECOND,
)

ROPE_JOINT_OPS = (
    ROPE_SPLIT_HALF_JOINT,
    ROPE_SPLIT_HALF_JOINT_BACKWARD,
)
