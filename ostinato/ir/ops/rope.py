"""Rotary position embedding in two operators: the table of angles once a step, the rotation for every Q and K of every layer.

The angle is a float32 product, as the common implementations compute it, so that long positions lose the same bits; its cosine and sine are evaluated in
float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
    I32,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ROPE_OPS", "ROPE_SPLIT_HALF", "ROTARY_TABLE"]


def _infer_table(site: Site) -> tuple[TensorType, ...]:
    position, frequency = site.operand(0), site.operand(1)
    require_rank(site.op, "inverse_frequency", frequency, exactly=1)
    scale = site.real("scale")
    if not (np.isfinite(scale) and scale > 0):
        fail(
            ConfigError,
            site.op,
            "a finite positive scale",
            str(scale),
            "1.0 unless the rope scaling of the configuration says otherwise",
        )
    table = make_type(site.op, (*position.shape, frequency.shape[0]), DType.F32, (*position.axes, ""))
    return (table, table)


def _reference_table(call: Arrays) -> tuple[Array, ...]:
    angle = call.operand(0).astype(np.float32)[..., None] * call.operand(1).astype(np.float32)
    scale = np.float32(call.real("scale"))
    wide = angle.astype(np.float64)
    return (np.cos(wide).astype(np.float32) * scale, np.sin(wide).astype(np.float32) * scale)


def _infer_rope(site: Site) -> tuple[TensorType, ...]:
    x, cos, sin = site.operand(0), site.operand(1), site.operand(2)
    require_rank(site.op, "x [..., H, D]", x, at_least=2)
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        fail(ShapeError, site.op, "an even head width", str(x), "split-half rotary turns pairs (i, i + D/2)")
    for name, table in (("cos", cos), ("sin", sin)):
        require_shape(site.op, name, table, (*x.shape[:-2], width // 2))
        join_axes(site.op, name, x.axes[:-2], table.axes[:-1])
    return (make_type(site.op, x.shape, x.dtype, x.axes),)


def _reference_rope(call: Arrays) -> tuple[Array, ...]:
    x, cos, sin = call.wide(0), call.wide(1)[..., None, :], call.wide(2)[..., None, :]
    first, second = np.split(x, 2, axis=-1)
    return (np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(np.float32),)


def frequencies(width: int, base: float = 10000.0) -> Array:
    """base ** (-2i / width) for i in [0, width / 2)."""
    return (base ** (-np.arange(0, width, 2) / width)).astype(np.float32)


def _samples_table(rng: np.random.Generator) -> Iterator[Sample]:
    for width in (2, 32, 64, 80, 128):
        yield valid(indices(rng.integers(0, 131072, 7)), reals(frequencies(width)))
    yield valid(indices(rng.integers(0, 32768, (2, 33)), "BT"), reals(frequencies(64, 1e6)), scale=1.0)
    yield valid(indices([0]), reals(frequencies(64)))
    yield valid(indices([[3], [2047]]), reals(frequencies(64)), scale=1.25)
    yield valid(indices(5), reals(frequencies(8)))
    yield valid(indices(np.zeros((0,))), reals(frequencies(64)))
    yield invalid(DTypeError, normal((3,)), reals(frequencies(64)))
    yield invalid(DTypeError, indices([1]), normal((32,), DType.BF16))
    yield invalid(ShapeError, indices([1]), normal((2, 32)))
    yield invalid(ConfigError, indices([1]), normal((32,)), attrs={"scale": 0.0})


def _samples_rope(rng: np.random.Generator) -> Iterator[Sample]:
    def call(lead: tuple[int, ...], heads: int, width: int, dtype: DType = DType.F32, axes: str = "") -> Sample:
        angle = rng.uniform(-3.0, 3.0, (*lead, width // 2))
        table = axes[:-2] + "_" if axes else ""
        return valid(
            normal((*lead, heads, width), dtype, axes), reals(np.cos(angle), table), reals(np.sin(angle), table)
        )

    for heads, width in ((1, 2), (3, 32), (14, 64), (2, 80), (4, 128), (1, 6)):
        yield call((1,), heads, width)
        yield call((5,), heads, width)
    for dtype in (DType.F16, DType.BF16):
        yield call((33,), 3, 64, dtype)
        yield call((2, 3), 2, 80, dtype, "BTGD")
    yield call((2, 31), 3, 64, axes="BTHD")
    yield call((3, 1), 3, 64, axes="BTHD")
    yield call((7,), 2, 32, axes="NGD")
    yield call((), 2, 32)
    yield call((0,), 2, 32)
    yield call((3,), 0, 32)
    half = normal((5, 16))
    yield invalid(ShapeError, normal((5, 2, 33)), half, half)
    yield invalid(ShapeError, normal((5, 2, 32)), half, normal((4, 16)))
    yield invalid(ShapeError, normal((5, 2, 32)), normal((5, 32)), normal((5, 32)))
    yield invalid(ShapeError, normal((5, 2, 32)), normal((16,)), normal((16,)))
    yield invalid(ShapeError, normal((32,)), normal((16,)), normal((16,)))
    yield invalid(DTypeError, indices(np.zeros((5, 2, 32))), half, half)
    yield invalid(DTypeError, normal((5, 2, 32)), normal((5, 16), DType.BF16), half)
    square = normal((2, 3, 16), axes="BT_")
    yield invalid(LayoutError, normal((2, 3, 3, 32), axes="BHTD"), square, square)


ROTARY_TABLE = define(
    "rotary_table",
    "Cosine and sine of position * inverse_frequency, times scale: S and [half] -> twice S + [half].",
    (OperandSpec("position", I32), OperandSpec("inverse_frequency", F32)),
    ("cos", "sin"),
    _infer_table,
    _reference_table,
    _samples_table,
    Tolerance(
        1.2e-7,
        0,
        "float64 cosine and sine rounded once: libraries differ by at most one unit in the last place of float32",
    ),
    attrs=(AttrSpec("scale", float, 1.0),),
    cost=cost_per_element(3),
)

ROPE_SPLIT_HALF = define(
    "rope_split_half",
    "Turns the pairs (i, i + D/2) of x [..., H, D] by the angles of cos and sin [..., D/2].",
    (OperandSpec("x", FLOATS), OperandSpec("cos", F32), OperandSpec("sin", F32)),
    ("y",),
    _infer_rope,
    _reference_rope,
    _samples_rope,
    Tolerance(2e-5, 2e-5, "contract of rope: two fp32 products and a sum, fused or not"),
    cost=cost_per_element(3),
)

ROPE_OPS = (
    ROTARY_TABLE,
    ROPE_SPLIT_HALF,
)
