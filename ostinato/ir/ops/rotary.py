"""Tables of rotary angles, made once a step for all layers: cosine and sine of each token's position times each inverse frequency.

The angle is a float32 product, as the common implementations compute it, so that long positions lose the same bits; its cosine and sine are evaluated in
float64 and rounded once. Two kinds choose the inverse frequencies by the length of the token's row at that time, which is an input and never the bucket:
keys keep the rotation they were stored with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ostinato.ir.derivative import NotDifferentiable
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, OperandSpec, Sample, Tolerance
from ostinato.ir.ops.rules import (
    F32,
    I32,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_positive,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, Extent, TensorType

__all__ = ["ROTARY_TABLE", "ROTARY_TABLE_DYNAMIC", "ROTARY_TABLE_LONGROPE"]

_SCALE = AttrSpec("scale", float, 1.0)
_TOLERANCE = Tolerance(
    1.2e-7,
    0,
    "float64 cosine and sine rounded once: libraries differ by at most one unit in the last place of float32",
)
_FIXED = NotDifferentiable("frequencies belong to the configuration of a model, none is trained")


def _require_positive(site: Site, *names: str) -> None:
    for name in names:
        hint = "read it from the rope scaling of the configuration; a scale is 1.0 unless that says otherwise"
        require_positive(site, name, hint)


def _require_original_positions(site: Site) -> None:
    found = site.integer("original_positions")
    if found < 1:
        hint = "the number of positions that the model was first trained with"
        fail(ConfigError, site.op, "original_positions of 1 or more", str(found), hint)


def _tables(site: Site, half: Extent) -> tuple[TensorType, ...]:
    """Cosine and sine [..., half] for the position operand; `length`, where the operator has it, lies beside it."""
    position = site.operand(0)
    table = make_type(site.op, (*position.shape, half), DType.F32, (*position.axes, ""))
    return (table, table)


def _require_length(site: Site) -> None:
    position, length = site.operand(0), site.operand(1)
    require_shape(site.op, "length", length, position.shape)
    join_axes(site.op, "length", position.axes, length.axes)


def _turned(position: Array, frequency: Array, scale: float) -> tuple[Array, ...]:
    """Cosine and sine of position times float32 frequency [half] or [..., half], each rounded once and then scaled in float32."""
    angle = (position.astype(np.float32)[..., None] * frequency).astype(np.float64)
    return tuple(turn(angle).astype(np.float32) * np.float32(scale) for turn in (np.cos, np.sin))


def _infer_table(site: Site) -> tuple[TensorType, ...]:
    frequency = site.operand(1)
    require_rank(site.op, "inverse_frequency", frequency, exactly=1)
    _require_positive(site, "scale")
    return _tables(site, frequency.shape[0])


def _reference_table(call: Arrays) -> tuple[Array, ...]:
    return _turned(call.operand(0), call.operand(1).astype(np.float32), call.real("scale"))


def _infer_dynamic(site: Site) -> tuple[TensorType, ...]:
    _require_length(site)
    _require_positive(site, "theta", "factor", "scale")
    _require_original_positions(site)
    width = site.integer("width")
    if width < 4 or width % 2:
        hint = "the number of elements of a head that are rotated; width / (width - 2) is the exponent of the base"
        fail(ConfigError, site.op, "an even width of 4 or more", str(width), hint)
    return _tables(site, width // 2)


def _reference_dynamic(call: Arrays) -> tuple[Array, ...]:
    width, factor, original = call.integer("width"), call.real("factor"), call.integer("original_positions")
    length = np.maximum(call.operand(1), original).astype(np.float64)
    theta = call.real("theta") * (factor * length / original - (factor - 1)) ** (width / (width - 2))
    frequency = (theta[..., None] ** (-np.arange(0, width, 2) / width)).astype(np.float32)
    return _turned(call.operand(0), frequency, call.real("scale"))


def _infer_longrope(site: Site) -> tuple[TensorType, ...]:
    _require_length(site)
    short, long = site.operand(2), site.operand(3)
    require_rank(site.op, "short", short, exactly=1)
    require_shape(site.op, "long", long, short.shape)
    _require_positive(site, "scale")
    _require_original_positions(site)
    return _tables(site, short.shape[0])


def _reference_longrope(call: Arrays) -> tuple[Array, ...]:
    is_long = call.operand(1)[..., None] > call.integer("original_positions")
    frequency = np.where(is_long, call.operand(3).astype(np.float32), call.operand(2).astype(np.float32))
    return _turned(call.operand(0), frequency, call.real("scale"))


def _frequencies(width: int, base: float = 10000.0) -> Array:
    """base ** (-2i / width) for i in [0, width / 2)."""
    return (base ** (-np.arange(0, width, 2) / width)).astype(np.float32)


def _samples_table(rng: np.random.Generator) -> Iterator[Sample]:
    for width in (2, 32, 64, 80, 128):
        yield valid(indices(rng.integers(0, 131072, 7)), reals(_frequencies(width)))
    yield valid(indices(rng.integers(0, 32768, (2, 33)), "BT"), reals(_frequencies(64, 1e6)), scale=1.0)
    yield valid(indices([0]), reals(_frequencies(64)))
    yield valid(indices([[3], [2047]]), reals(_frequencies(64)), scale=1.25)
    yield valid(indices(5), reals(_frequencies(8)))
    yield valid(indices(np.zeros((0,))), reals(_frequencies(64)))
    yield invalid(DTypeError, normal((3,)), reals(_frequencies(64)))
    yield invalid(DTypeError, indices([1]), normal((32,), DType.BF16))
    yield invalid(ShapeError, indices([1]), normal((2, 32)))
    yield invalid(ConfigError, indices([1]), normal((32,)), attrs={"scale": 0.0})


def _samples_dynamic(rng: np.random.Generator) -> Iterator[Sample]:
    attrs: dict[str, Attr] = {"theta": 10000.0, "width": 64, "factor": 2.0, "original_positions": 32}
    position = rng.integers(0, 4096, 33)
    # lengths below, at and above the original positions, and none at all
    yield valid(indices(position, "N"), indices(np.concatenate([[0, 1, 31, 32, 33], position[5:] + 1]), "N"), **attrs)
    for width in (4, 32, 80, 128):
        other: dict[str, Attr] = {**attrs, "width": width, "factor": 8.0, "original_positions": 2048, "scale": 1.25}
        yield valid(indices([0, 5, 16383, 16383]), indices([1, 2049, 16384, 32768]), **other)
    yield valid(indices(rng.integers(0, 99, (2, 7)), "BT"), indices(np.full((2, 7), 100), "BT"), **attrs)
    yield valid(indices(7), indices(77), **{**attrs, "factor": 1.0})
    yield valid(indices(np.zeros((0,))), indices(np.zeros((0,))), **attrs)
    good = (indices([1, 2]), indices([3, 3]))
    yield invalid(ShapeError, indices([1, 2]), indices([3]), attrs=attrs)
    yield invalid(LayoutError, indices([1, 2], "N"), indices([3, 3], "R"), attrs=attrs)
    yield invalid(DTypeError, indices([1, 2]), normal((2,)), attrs=attrs)
    wrong: tuple[dict[str, Attr], ...] = (
        {"theta": 0.0},
        {"width": 2},
        {"width": 7},
        {"factor": -1.0},
        {"factor": float("nan")},
        {"original_positions": 0},
        {"scale": 0.0},
    )
    for values in wrong:
        yield invalid(ConfigError, *good, attrs={**attrs, **values})
    yield invalid(ConfigError, *good)


def _samples_longrope(rng: np.random.Generator) -> Iterator[Sample]:
    attrs: dict[str, Attr] = {"original_positions": 32}
    short, long = reals(_frequencies(32)), reals(_frequencies(32) / rng.uniform(1, 8, 16))
    position = rng.integers(0, 4096, 33)
    lengths = np.concatenate([[0, 31, 32, 33], position[4:] + 1])
    yield valid(indices(position, "N"), indices(lengths, "N"), short, long, **attrs, scale=1.19)
    yield valid(indices(rng.integers(0, 99, (2, 7)), "BT"), indices(np.full((2, 7), 33), "BT"), short, long, **attrs)
    yield valid(indices([31]), indices([32]), reals(_frequencies(96)), reals(_frequencies(96) / 3), **attrs)
    yield valid(indices(7), indices(77), reals([1.0]), reals([0.5]), **attrs)
    yield valid(indices(np.zeros((0,))), indices(np.zeros((0,))), short, long, **attrs)
    good = (indices([1, 2]), indices([3, 3]), short, long)
    yield invalid(ShapeError, indices([1, 2]), indices([3]), short, long, attrs=attrs)
    yield invalid(ShapeError, *good[:3], reals(_frequencies(30)), attrs=attrs)
    yield invalid(ShapeError, *good[:2], normal((2, 8)), normal((2, 8)), attrs=attrs)
    yield invalid(LayoutError, indices([1, 2], "N"), indices([3, 3], "R"), short, long, attrs=attrs)
    yield invalid(DTypeError, *good[:3], normal((16,), DType.F16), attrs=attrs)
    yield invalid(ConfigError, *good, attrs={"original_positions": 0})
    yield invalid(ConfigError, *good, attrs={"original_positions": 32, "scale": float("inf")})
    yield invalid(ConfigError, *good)


ROTARY_TABLE = define(
    "rotary_table",
    "Cosine and sine of position * inverse_frequency, times scale: S and [half] -> twice S + [half].",
    (OperandSpec("position", I32), OperandSpec("inverse_frequency", F32)),
    ("cos", "sin"),
    _infer_table,
    _reference_table,
    _samples_table,
    _TOLERANCE,
    attrs=(_SCALE,),
    cost=cost_per_element(3),
    derivative=_FIXED,
)

ROTARY_TABLE_DYNAMIC = define(
    "rotary_table_dynamic",
    "rotary_table whose base grows with the row's length L: theta * (factor * max(L, original) / original - factor + 1) ^ (width / (width - 2)).",
    (OperandSpec("position", I32), OperandSpec("length", I32)),
    ("cos", "sin"),
    _infer_dynamic,
    _reference_dynamic,
    _samples_dynamic,
    Tolerance(_TOLERANCE.absolute, _TOLERANCE.relative, f"{_TOLERANCE.reason}; frequencies are float64, rounded once"),
    attrs=(
        AttrSpec("theta", float),
        AttrSpec("width", int),
        AttrSpec("factor", float),
        AttrSpec("original_positions", int),
        _SCALE,
    ),
    cost=cost_per_element(4),
)

ROTARY_TABLE_LONGROPE = define(
    "rotary_table_longrope",
    "rotary_table with the inverse frequencies `long` where the row's length is above original_positions, else `short`.",
    (OperandSpec("position", I32), OperandSpec("length", I32), OperandSpec("short", F32), OperandSpec("long", F32)),
    ("cos", "sin"),
    _infer_longrope,
    _reference_longrope,
    _samples_longrope,
    _TOLERANCE,
    attrs=(AttrSpec("original_positions", int), _SCALE),
    cost=cost_per_element(3),
    derivative=_FIXED,
)
