"""Trials of a row on one class of types: calls with fresh random values, what the oracle makes of them, and how far a plain composition is from the oracle.

The oracle is the operator's reference in float64. The plain composition is the same reference in float32 (`plain_arithmetic`), the precision that kernels
compute in, rounded to the result's dtype as a kernel's result is. Of a small result one draw says little about what such a composition is good for, so that
more values are drawn for it, and for any result many more where a row seems to be too far off. Trials know no device: those of one class serve every kernel
unit and every card.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.evidence.calls import Call
from ostinato.backend_hip.evidence.classes import ClassCall, class_calls
from ostinato.backend_hip.evidence.rows import exact_references, rounded, valid_rows
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.ir.blocks import block_parts
from ostinato.ir.errors import OstinatoError, UserCodeError
from ostinato.ir.rounding import plain_arithmetic
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["PLAIN_ERRORS", "UNITS", "PlainError", "Trial", "trial_calls", "trials", "ulp"]

PLAIN_ERRORS, UNITS = 2.0, 4.0
"""What a value may be off: so many times the largest error of a plain composition, or so many units in the last place of the largest value of its row."""
_ENOUGH = 256
"""Values of a result that say what a plain composition is good for, as a first estimate."""
_MOST_DRAWS = 16
_MORE_VALUES, _MORE_DRAWS, _ORDERS = 1 << 17, 32, 16
"""How many more are drawn, at most, where a row is farther off than the first estimate allows, and in how many orders the same values are summed."""


@dataclass(frozen=True, slots=True)
class PlainError:
    """How far the plain composition of a result is from the oracle, over all draws."""

    maximum: float = 0.0
    rms: float = 0.0


Errors = tuple[PlainError, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A call with its operands' values. `exact` are the oracle's results, valid rows only, not rounded; None where the kernel must refuse the call."""

    call: Call
    arrays: Sequence[Array | None]
    exact: Sequence[Array] | None
    expected: Sequence[Array] | None
    """`exact` rounded once to the result dtypes, all rows."""
    plain: Errors = ()
    more: Callable[[], Errors] = lambda: ()
    """The plain errors in other orders of summation, and over many more draws: asked for where the first estimate is exceeded."""


def trials(row: Impl, like: CallSite, seed: int) -> list[Trial]:
    """All trials of the site's class; empty where no sample of the operator gives one. The same for the same seed."""
    rng = _random(row, like, seed)
    return [made for one in class_calls(row, like, rng) for made in _trials(one, rng)]


def trial_calls(row: Impl, like: CallSite, seed: int) -> list[Call]:
    """The calls of these trials, without values: what a device compiles for them."""
    return [one.call for one in class_calls(row, like, _random(row, like, seed))]


def _random(row: Impl, like: CallSite, seed: int) -> np.random.Generator:
    """Numbers that depend on the row and the class, and not on what else is tried."""
    return np.random.default_rng((seed, zlib.crc32(f"{row.identity} {signature_class(like)}".encode())))


def _trials(one: ClassCall, rng: np.random.Generator) -> Iterator[Trial]:
    call, op = one.call, one.call.op
    arrays = arrays_of(op, one.sample, rng)
    if one.refused:
        yield Trial(call, arrays, None, None)
        return
    try:
        exact = exact_references(call, arrays)
    except UserCodeError:
        raise
    except OstinatoError:  # a random shape that the reference takes for none
        return
    if exact is None:
        yield Trial(call, arrays, None, None)
        return
    values = max(1, sum(array.size for array in exact))

    if op.tolerance.is_exact:
        first: Errors = (PlainError(),) * len(exact)
    else:
        few = _drawn(one, rng, min(_MOST_DRAWS, -(-(_ENOUGH - values) // values)))
        first = _most((_plain_error(call, arrays, exact), few))

    def more() -> Errors:
        orders = [_plain_error(call, arrays, exact, order) for order in range(_ORDERS)]
        return _most((first, *orders, _drawn(one, rng, min(_MORE_DRAWS, -(-_MORE_VALUES // values)))))

    yield Trial(call, arrays, _valid(call, exact), rounded(call, exact), first, more)


def _drawn(one: ClassCall, rng: np.random.Generator, draws: int) -> Errors:
    """The plain errors over so many draws of a call's values."""
    found: list[Errors] = []
    for _ in range(draws):
        arrays = arrays_of(one.call.op, one.sample, rng)
        exact = exact_references(one.call, arrays)
        if exact is not None:
            found.append(_plain_error(one.call, arrays, exact))
    return _most(found)


def _most(found: Iterable[Errors]) -> Errors:
    """The largest errors of each result."""
    columns = zip(*(errors for errors in found if errors), strict=True)
    return tuple(PlainError(max(one.maximum for one in c), max(one.rms for one in c)) for c in columns)


def _plain_error(
    call: Call, arrays: Sequence[Array | None], exact: Sequence[Array], order: int | None = None
) -> Errors:
    apart = _minima_apart(call, arrays)
    forms = [_plain_errors(call, form, exact, order) for form in (arrays, apart) if form is not None]
    return _most(forms)


def _minima_apart(call: Call, arrays: Sequence[Array | None]) -> list[Array | None] | None:
    """The operands of a product whose weight has blocks with minima as that of x twice over by scaled codes, then minima: the plain way of multiplying by
    such blocks besides dequantising them. The norm of x twice over is that of x. None for all other calls."""
    places = {spec.name: index for index, spec in enumerate(call.op.operands)}
    if not {"x", "weight"} <= places.keys():
        return None
    weight, tensor = arrays[places["weight"]], call.site.operands[places["weight"]]
    parts = None if weight is None or tensor is None else block_parts(weight, tensor.dtype)
    if parts is None:
        return None
    made = list(arrays)
    made[places["weight"]] = np.concatenate(parts, axis=-1)
    for name in ("x", "gain"):
        if name in places and (array := arrays[places[name]]) is not None:
            made[places[name]] = np.concatenate((array, array), axis=-1)
    return made


def _plain_errors(call: Call, arrays: Sequence[Array | None], exact: Sequence[Array], order: int | None) -> Errors:
    with plain_arithmetic(order), np.errstate(all="ignore"):
        made = exact_references(call, arrays)
    assert made is not None
    found = []
    for mine, oracle in zip(_valid(call, rounded(call, made)), _valid(call, exact), strict=True):
        if not np.issubdtype(oracle.dtype, np.floating):
            found.append(PlainError())
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(mine.astype(np.float64) - oracle.astype(np.float64))
        off = off[np.isfinite(off)]
        found.append(PlainError(float(off.max()), float(np.sqrt(np.mean(off * off)))) if off.size else PlainError())
    return tuple(found)


def _valid(call: Call, arrays: Sequence[Array]) -> list[Array]:
    return [valid_rows(call, value.type, array) for value, array in zip(call.site.node.results, arrays, strict=True)]


_MANTISSA = {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7}
_SMALLEST = {DType.F64: -1074, DType.F32: -149, DType.F16: -24, DType.BF16: -133}


def ulp(largest: Array, tensor: TensorType) -> Array:
    """The unit in the last place, in the dtype of a result, of magnitudes in float64."""
    exponent = np.frexp(largest)[1] - 1 - _MANTISSA[tensor.dtype]
    unit: Array = np.ldexp(1.0, np.maximum(exponent, _SMALLEST[tensor.dtype]))
    return unit
