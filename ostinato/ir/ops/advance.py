"""The end of a decode step: the inputs of the step become those of the next one, in place, so that a replay of the same step makes the next token.

What the host would pack for the next step is what the inputs hold afterwards: the token chosen is the one to feed, one position further on. A row whose history
is empty keeps none (nothing penalises it). A row stays as it is, all of it, where no token was chosen (-1) and where its position is the last of the context or
none: a replay past the end of a row computes the same once more and writes nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import (
    Attr,
    AttrSpec,
    Cost,
    Effect,
    OperandSpec,
    OperandTypes,
    Sample,
    SampleOperand,
    Tolerance,
)
from ostinato.ir.ops.rules import (
    I32,
    Arrays,
    Site,
    define,
    fail,
    nbytes,
    require_axes,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, valid
from ostinato.ir.types import Array, TensorType

__all__ = ["ADVANCE", "ADVANCE_OPS"]

UPDATED = ("input_ids", "position", "length", "sample_index", "history", "history_length", "rotary_length")
"""The operands that follow the token and that the node updates; the last one is there where the rotary embedding depends on a length."""
_OF_TOKENS = ("input_ids", "position", "rotary_length")
_HISTORY = "history"


def _infer(site: Site) -> tuple[TensorType, ...]:
    token = site.operand(0)
    require_rank(site.op, "token", token, exactly=1)
    require_axes(site.op, "token", token, "R")
    if site.integer("context") < 1:
        fail(ConfigError, site.op, "a context of 1 position or more", str(site.integer("context")), "give the cache's")
    found: list[TensorType] = []
    for place, name in enumerate(UPDATED, start=1):
        tensor = site.optional(place)
        if tensor is None:
            continue
        if name == _HISTORY:
            require_rank(site.op, name, tensor, exactly=2)
            require_same_extent(site.op, "history of the rows of token,", token.shape[0], tensor.shape[0])
            require_axes(site.op, name, tensor, "RS")
        else:
            require_shape(site.op, name, tensor, token.shape)
            require_axes(site.op, name, tensor, "N" if name in _OF_TOKENS else "R")
        if not tensor.is_natural:
            fail(
                LayoutError, site.op, f"{name} in its natural layout", str(tensor), "inputs are never stored otherwise"
            )
        found.append(tensor.with_layout(None))
    return tuple(found)


def _reference(call: Arrays) -> tuple[Array, ...]:
    """Rows are those of the token: fewer than the inputs have where only some are valid."""
    token = call.operand(0)
    given = {name: call.optional(place) for place, name in enumerate(UPDATED, start=1)}
    made = {name: array.copy() for name, array in given.items() if array is not None}
    rows = np.arange(len(token))
    following, seen = made["position"][rows].astype(np.int64) + 1, made["history_length"][rows]
    width = made[_HISTORY].shape[1]
    goes_on = (token >= 0) & (following >= 1) & (following < call.integer("context")) & (seen < width)
    rows = rows[goes_on]
    made["input_ids"][rows] = token[rows]
    for name in ("position", "length", "sample_index", "rotary_length"):
        if name in made:
            made[name][rows] += np.int32(1)
    rows = rows[seen[rows] > 0]
    made[_HISTORY][rows, seen[rows]] = token[rows]
    made["history_length"][rows] += np.int32(1)
    return tuple(made.values())


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """Of the history one token a row is written."""
    del results, attrs
    token = operands[0]
    vectors = [tensor for tensor in operands[1:] if tensor is not None and tensor.rank == 1]
    return Cost(0, nbytes(token, token, *vectors, *vectors))


def _call(
    token: Sequence[int],
    position: Sequence[int],
    seen: Sequence[int],
    *,
    width: int = 8,
    rotary: bool = False,
    named: bool = False,
) -> tuple[SampleOperand, ...]:
    """Operands whose other numbers follow from these."""
    rows, tokens = ("R", "N") if named else ("", "")
    at = np.array(position, np.int64)
    history = np.arange(len(token) * width).reshape(len(token), width)
    last = np.clip(at + 1, -(2**31), 2**31 - 1)
    operands = (
        indices(token, rows),
        indices(7 * np.arange(len(token)), tokens),
        indices(at, tokens),
        indices(last, rows),
        indices(np.maximum(at - 3, 0), rows),
        indices(history, "R_" if named else ""),
        indices(seen, rows),
    )
    return (*operands, indices(last, tokens)) if rotary else operands


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rotary in (False, True):
        for named in (False, True):
            yield valid(*_call([5], [0], [1], rotary=rotary, named=named), context=8)
            yield valid(
                *_call([9, -1, 0, 3], [2, 2, 7, 6], [0, 3, 0, 7], rotary=rotary, named=named),
                context=8,
            )
    # rows that stay: no token, the last position and beyond it, no position, no room in the history
    stays = _call([-1, 4, 4, 4, 4, -5], [3, 7, 8, -1, 3, 3], [4, 4, 4, 4, 8, 0], rotary=True)
    yield valid(*stays, context=8)
    for rows in (33, 300):
        token = rng.integers(-1, 50, rows)
        position = rng.integers(-2, 20, rows)
        seen = np.where(rng.random(rows) < 0.5, 0, np.clip(position + 1, 0, 17))
        yield valid(*_call(token.tolist(), position.tolist(), seen.tolist(), width=17, rotary=True), context=17)
    yield valid(*_call([3, 3], [2**31 - 2, 2**31 - 1], [1, 1]), context=2**31)
    yield valid(*_call([], [], []), context=1)
    yield valid(*_call([2], [0], [0], width=0), context=1)
    good = _call([1, 2], [3, 4], [0, 5], rotary=True)
    yield invalid(ConfigError, *good, attrs={"context": 0})
    yield invalid(ConfigError, *good)
    context: Mapping[str, Attr] = {"context": 8}
    yield invalid(ShapeError, indices([[1, 2]]), *good[1:], attrs=context)
    for place in (1, 2, 3, 4, 6, 7):
        yield invalid(ShapeError, *good[:place], indices([1, 2, 3]), *good[place + 1 :], attrs=context)
    yield invalid(ShapeError, *good[:5], indices([1, 2]), *good[6:], attrs=context)
    yield invalid(ShapeError, *good[:5], indices([[1, 2]]), *good[6:], attrs=context)
    yield invalid(ShapeError, *good[:6], attrs=context)
    yield invalid(DTypeError, normal((2,)), *good[1:], attrs=context)
    yield invalid(DTypeError, *good[:5], normal((2, 8)), *good[6:], attrs=context)
    yield invalid(LayoutError, *good[:2], indices([3, 4], "R"), *good[3:], attrs=context)
    yield invalid(LayoutError, *good[:3], indices([3, 4], "N"), *good[4:], attrs=context)


ADVANCE = define(
    "advance",
    "Moves the inputs of a decode step on to the next token, in place; rows without a token and rows at the end of the context stay as they are.",
    (
        OperandSpec("token", I32),
        *(OperandSpec(name, I32, optional=name == UPDATED[-1]) for name in UPDATED),
    ),
    tuple(f"{name}_out" for name in UPDATED),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "integers are right or wrong"),
    attrs=(AttrSpec("context", int),),
    effect=Effect.STATE,
    must_alias=tuple((place, place + 1) for place in range(len(UPDATED))),
    extent="token",
    cost=_cost,
)

ADVANCE_OPS = (ADVANCE,)
