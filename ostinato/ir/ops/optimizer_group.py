"""A step of AdamW for several small parameters at once: `adamw` of each, in one launch where a launch of their own takes longer than their bytes do.

Gains and biases are such: three or more a layer, of some thousand elements each. Members share the factors of the step and whether they decay; each has its
parameter, gradient and moments, which are updated in place. None has a mirror: a vector is read in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Cost, Effect, OperandSpec, OperandTypes, Sample, SampleOperand
from ostinato.ir.ops.derivatives import UPDATE
from ostinato.ir.ops.optimizer import ADAMW, FACTORS_OPERAND, sample_factors
from ostinato.ir.ops.rules import Arrays, Site, define, fail, nbytes
from ostinato.ir.ops.samplers import floats, indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ADAMW_GROUP", "MOST_UPDATES", "OPTIMIZER_GROUP_OPS", "PARTS"]

MOST_UPDATES = 8
"""Parameters of one group."""

PARTS = 4
"""Operands of a member: parameter, gradient, first, second."""
_UPDATED = (0, 2, 3)
"""Those of its operands that are results too."""


def _starts(operands: Sequence[object]) -> list[int]:
    """Where the members begin that are there."""
    return [
        start for start in range(1, len(operands), PARTS) if any(x is not None for x in operands[start : start + PARTS])
    ]


def _infer(site: Site) -> tuple[TensorType, ...]:
    results: list[TensorType] = []
    starts = _starts(site.operands)
    if starts != list(range(1, 1 + PARTS * len(starts), PARTS)):
        fail(ShapeError, site.op, "members one after another", f"members at {starts}", "leave out the last ones alone")
    moments = {tuple(site.operand(start + part).dtype for part in (2, 3)) for start in starts if _whole(site, start)}
    for start in starts:
        found = site.operands[start : start + PARTS]
        results += ADAMW.infer((*found, site.operand(0)), {"decay": site.boolean("decay")})
    if len(moments) > 1:
        fail(DTypeError, site.op, "moments of one dtype", f"{len(moments)} kinds", "update the others on their own")
    return tuple(results)


def _whole(site: Site, start: int) -> bool:
    return None not in site.operands[start : start + PARTS]


def _reference(call: Arrays) -> tuple[Array, ...]:
    found: list[Array] = []
    for number, start in enumerate(_starts(call.operands)):
        results = call.results[len(_UPDATED) * number : len(_UPDATED) * (number + 1)]
        operands = (*call.operands[start : start + PARTS], call.operand(0))
        found += ADAMW.reference(operands, {"decay": call.boolean("decay")}, results)
    return tuple(found)


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    elements = sum(tensor.elements for tensor in results[:: len(_UPDATED)])
    return Cost(14 * elements, nbytes(*operands, *results))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def member(shape: tuple[int, ...], moments: DType = DType.F32) -> tuple[SampleOperand, ...]:
        squares = floats(rng.standard_normal(shape) ** 2 + 1e-3, moments)
        return (normal(shape), normal(shape), normal(shape, moments), squares)

    shapes = [(64,), (3, 33), (257,), (1,), (5000,), (2, 3, 5), (), (0, 8)]
    for moments in (DType.F32, DType.BF16):
        for count in range(1, MOST_UPDATES + 1):
            members = (part for shape in shapes[:count] for part in member(shape, moments))
            yield valid(sample_factors(), *members, decay=True)
        pair = (*member((67,), moments), *member((4, 9), moments))
        yield valid(sample_factors(0.3), *pair, decay=False)
        yield valid(sample_factors(), *member((6, 16), moments), *member((6,), moments), decay=True)
        yield valid(sample_factors(0.0, 0.0), *pair, decay=True)
    attrs: dict[str, Attr] = {"decay": True}
    good = member((6,)), member((4, 6))
    yield invalid(ShapeError, sample_factors(), attrs=attrs)
    yield invalid(ShapeError, reals([1.0]), *good[0], attrs=attrs)
    yield invalid(ShapeError, sample_factors(), *good[0][:3], attrs=attrs)
    yield invalid(ShapeError, sample_factors(), *good[0], good[1][0], good[0][1], *good[1][2:], attrs=attrs)
    yield invalid(ShapeError, sample_factors(), *good[0], None, None, None, None, *good[1], attrs=attrs)
    yield invalid(DTypeError, sample_factors(), *good[0], *member((5,), DType.BF16), attrs=attrs)
    yield invalid(DTypeError, sample_factors(), indices(np.zeros(6)), *good[0][1:], attrs=attrs)
    yield invalid(ConfigError, sample_factors(), *good[0])


def _specs() -> Iterator[OperandSpec]:
    yield FACTORS_OPERAND
    for index in range(MOST_UPDATES):
        for spec in ADAMW.operands[:PARTS]:
            yield OperandSpec(f"{spec.name}{index}", spec.dtypes, optional=index > 0)


ADAMW_GROUP = define(
    "adamw_group",
    f"adamw of up to {MOST_UPDATES} parameters without mirrors, each with its gradient and moments, in their bytes.",
    tuple(_specs()),
    tuple(f"{name}{index}_out" for index in range(MOST_UPDATES) for name in ("parameter", "first", "second")),
    _infer,
    _reference,
    _samples,
    ADAMW.tolerance,
    attrs=(AttrSpec("decay", bool),),
    effect=Effect.STATE,
    must_alias=tuple(
        (len(_UPDATED) * index + place, 1 + PARTS * index + part)
        for index in range(MOST_UPDATES)
        for place, part in enumerate(_UPDATED)
    ),
    cost=_cost,
    derivative=UPDATE,
)

OPTIMIZER_GROUP_OPS = (ADAMW_GROUP,)
