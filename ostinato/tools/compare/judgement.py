"""What is wrong: one judgement for `compare` and `bisect`, of a result beside its reference and of the outputs of two programs.

**A result by itself.** The reference is worked out in float64 on the very operands that the row was given, rounded as they are, and rounded once to the dtype
of the result. A result may be off by

- its operator's tolerance (docs/OPERATORS.md), `absolute` times the root mean square of its own row (of the last axis) plus `relative` times
  the element: tolerances are stated for values of unit scale, and an error grows with the values of its row, not with those of another token. A tolerance of a
  bf16 or f16 result has one unit in the last place in `relative`, since both sides round once. Exact operators allow nothing;
- where that is exceeded, what a row may do and still be validated (`evidence/validate.py`): twice the largest error of the same reference composed in float32
  on the same operands, or four units in the last place of the largest value of its row. The first is for sums that cancel: the gradient of a token that sees
  itself alone is zero, a residual stream can be thousands large until the last layer takes it away. The second is for results in bf16, where probabilities that
  are rounded for matrix units move a result by two units, which no order of sums in float32 does.

So no row that keeps what it was validated for is called wrong, and a wrong one must be within some parts in ten thousand of its row in f32 and three in a
hundred in bf16 to be overlooked. Measured: on SmolLM2 (f32, its blocks, bf16 weights), on Q's shape in bf16, and on small models of all families and training
steps, on the host and the emulated GPU, no result is beyond its operator's tolerance (0.4 of it at most in f32, and just one unit in bf16) but for gradients of
queries that are zero, which are at most a fifth of the second bound.

**Outputs of two programs.** See `TOLERANCE`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.backend_hip.evidence.trials import PLAIN_ERRORS, UNITS, ulp
from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Node, Value
from ostinato.ir.opdef import Tolerance
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, TensorType
from ostinato.tools.compare.differences import bits_equal, difference_of

__all__ = [
    "SENSITIVE",
    "TOLERANCE",
    "Judged",
    "checked_tolerance",
    "judged",
    "limits_of",
    "output_limit",
    "tolerance_of",
]

TOLERANCE = {"f32": 2e-4, "bf16": 1e-1}
"""Largest difference from the reference, in standard deviations of the reference's outputs, of all rows but a `_FEW`th of them, which may be `SENSITIVE` times
as far off.

Measured on SmolLM2 beside a float64 model of its own: f32 kernels are off by 4e-6 to 1.2e-5 on ids of chance, 2.3e-5 on one id all along. Its first and last id
in turn give 1.7e-4 at one position (bf16: 0.39, elsewhere 0.024 at most), and that is the model: half a unit of f32 of noise, put on every value of the float64
model, moves this row by 1e-4 and those of chance by 1e-6 to 3e-6. An error of 1 % in a head's queries is 5e-4 to 1.5e-3, in all rows: a limit wide enough for
the sensitive row would hide it. Small models of all families, in bf16, stay below 0.1 but for single rows of up to 0.2. A wrong mask, position or weight row is
off by whole deviations.
"""
SENSITIVE = 5
"""A model can be that much more sensitive on a few rows, such as ids that it never saw in training."""
_FEW = 4
_SMALLEST = float(np.finfo(np.float32).tiny)
"""Below it a device may have no values but zero."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A result, valid rows only, beside its reference: element by element how far off it is, and how far it may be, in float64."""

    value: Value
    found: Array
    wanted: Array
    difference: Array
    allowed: Array

    @property
    def ratio(self) -> Array:
        """How many times what is allowed each element is off; infinite where nothing is allowed."""
        nothing = np.where(self.difference > 0, np.inf, 0.0)
        return np.asarray(np.divide(self.difference, self.allowed, out=nothing, where=self.allowed > 0))


def judged(
    node: Node, results: Sequence[Array], expected: Sequence[Array], plain: Callable[[], Sequence[Array]]
) -> list[Judged]:
    """The results of a node that have any elements, beside what the reference `expected` of the same operands. `plain` gives that in float32 arithmetic; it is
    asked only where a tolerance is exceeded."""
    stated = OP[node.op].tolerance
    places = [index for index, array in enumerate(expected) if array.size]
    first = [_judged(node.results[index], results[index], expected[index], stated) for index in places]
    if stated.is_exact or not any(_doubtful(one) for one in first):
        return first
    composed = plain()
    return [_again(one, composed[index]) if _doubtful(one) else one for index, one in zip(places, first, strict=True)]


def limits_of(kind: TensorType, tolerance: Tolerance, wanted: Array, plain: Array) -> tuple[float, float]:
    """What all elements of a result may be off by, as two numbers: absolute, and times the expected value."""
    stated = tolerance.for_result(kind.dtype)
    if stated.is_exact or not (kind.dtype.is_float and wanted.size):
        return stated.absolute, stated.relative
    return max(float(np.max(_base(kind, stated, wanted))), float(np.max(_floor(kind, wanted, plain)))), stated.relative


def tolerance_of(precisions: Iterable[str], given: float | None = None) -> float:
    """In standard deviations of the outputs, of programs of these precisions; whatever rounds to bf16 somewhere is judged as bf16. `given` replaces it."""
    return max(TOLERANCE["f32" if name == "f32" else "bf16"] for name in precisions) if given is None else given


def output_limit(
    good: Sequence[Array], other: Sequence[Array], precisions: Iterable[str], given: float | None = None
) -> float:
    """What is allowed between outputs [rows, ...] of two programs, of which `good` have the spread: `SENSITIVE` times the tolerance where no more than few of
    all rows need that. A tolerance that is `given` counts for every row."""
    spread = _spread(good)
    usual = tolerance_of(precisions, given) * spread
    if given is not None:
        return usual
    beyond = sum(
        np.count_nonzero((difference_of(a, b) > usual).reshape(len(a), -1).any(axis=1))
        for a, b in zip(good, other, strict=True)
        if a.size and a.shape == b.shape
    )
    return usual * SENSITIVE if beyond * _FEW <= sum(map(len, good)) else usual


def checked_tolerance(tolerance: object) -> float | None:
    """A tolerance of the caller's. Raises `ConfigError` for what is no finite number from 0 on."""
    if tolerance is None:
        return None
    if isinstance(tolerance, bool) or not (isinstance(tolerance, float | int) and 0 <= tolerance <= sys.float_info.max):
        raise ConfigError(
            f"tolerance is {shown(tolerance)}", hint="give standard deviations of the outputs, 0 for equal bits"
        )
    return float(tolerance)


def _judged(value: Value, found: Array, wanted: Array, tolerance: Tolerance) -> Judged:
    stated = tolerance.for_result(value.type.dtype)
    difference = np.zeros(wanted.shape) if bits_equal(found, wanted) else difference_of(found, wanted)
    allowed = _base(value.type, stated, wanted) + stated.relative * _sizes(wanted)
    return Judged(value, found, wanted, difference, np.broadcast_to(allowed, difference.shape))


def _doubtful(one: Judged) -> bool:
    """Whether it is beyond its tolerance, by a number: what is not finite where the reference is has no bound to be within."""
    beyond = one.value.type.dtype.is_float and bool((one.difference > one.allowed).any())
    return beyond and bool(np.isfinite(one.difference).all())


def _again(one: Judged, plain: Array) -> Judged:
    return replace(one, allowed=np.maximum(one.allowed, _floor(one.value.type, one.wanted, plain)))


def _base(kind: TensorType, stated: Tolerance, wanted: Array) -> Array:
    """The absolute part of a tolerance at the scale of each row; of integers as it is stated."""
    if stated.is_exact or not kind.dtype.is_float:
        return np.full((), stated.absolute)
    sizes = _sizes(wanted)
    typical = np.sqrt(np.mean(np.square(sizes), axis=-1, keepdims=True)) if sizes.ndim else sizes
    return np.asarray(stated.absolute * typical + _SMALLEST)


def _floor(kind: TensorType, wanted: Array, plain: Array) -> Array:
    """What a row may be off by and still be validated, row by row."""
    sizes, error = _sizes(wanted), difference_of(plain, wanted)
    largest = sizes.max(axis=-1, keepdims=True) if sizes.ndim else sizes
    composed = float(np.max(error, where=np.isfinite(error), initial=0.0))
    return np.maximum(PLAIN_ERRORS * composed, UNITS * ulp(largest, kind))


def _sizes(wanted: Array) -> Array:
    """Magnitudes in float64, 0 of what is not finite."""
    sizes = np.abs(wanted.astype(np.float64))
    return np.where(np.isfinite(sizes), sizes, 0.0)


def _spread(outputs: Sequence[Array]) -> float:
    """The standard deviation of the finite values; 0 where there are none."""
    finite = [values[np.isfinite(values)].astype(np.float64) for values in outputs]
    every = np.concatenate(finite) if finite else np.zeros(0)
    return float(np.std(every)) if every.size else 0.0
