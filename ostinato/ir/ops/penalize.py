"""Penalties on tokens that a row has seen, with vLLM's meaning and order.

The token has been seen when it stands in the first `length` entries of its row; the first `prompt_length` of them are the prompt and the others were
generated. First repetition, for every token seen: a positive logit is divided by it and any other multiplied. Then for the generated ones the frequency
penalty times the number of times, and last the presence penalty, are subtracted. All in float32, in this order, so that every device has the same bits.
A row whose penalties are 1, 0 and 0 is a plain copy; its tokens and lengths are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import CHOSEN
from ostinato.ir.ops.rules import (
    F32,
    I32,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    join_axes,
    make_type,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.ops.samplers import given, indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["PENALIZE", "PENALIZE_OPS"]

SETTINGS = ("prompt_length", "length", "repetition", "presence", "frequency")


def _infer(site: Site) -> tuple[TensorType, ...]:
    logits, tokens = site.operand(0), site.operand(1)
    require_rank(site.op, "logits [R, V]", logits, exactly=2)
    require_rank(site.op, "tokens [R, S]", tokens, exactly=2)
    require_same_extent(site.op, "tokens of the rows of logits,", logits.shape[0], tokens.shape[0])
    axes = join_axes(site.op, "tokens", logits.axes[:1], tokens.axes[:1])
    for place, name in enumerate(SETTINGS, start=2):
        require_shape(site.op, name, site.operand(place), logits.shape[:1])
        axes = join_axes(site.op, name, axes, site.operand(place).axes)
    return (make_type(site.op, logits.shape, DType.F32, (*axes, logits.axes[1])),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    logits, tokens, prompt_length, length, repetition, presence, frequency = (call.operand(i) for i in range(7))
    y = np.array(logits, copy=True)
    for row in np.flatnonzero((repetition != 1) | (presence != 0) | (frequency != 0)):
        check_index(call.op, f"length of row {row}", length[row : row + 1], 0, tokens.shape[1] + 1)
        check_index(call.op, f"prompt length of row {row}", prompt_length[row : row + 1], 0, int(length[row]) + 1)
        seen = tokens[row, : length[row]]
        check_index(call.op, f"token of row {row}", seen, 0, logits.shape[1])
        distinct = np.unique(seen)
        found = y[row, distinct]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            y[row, distinct] = np.where(found > 0, found / repetition[row], found * repetition[row])
            generated, times = np.unique(seen[prompt_length[row] :], return_counts=True)
            y[row, generated] -= frequency[row] * times.astype(np.float32)
            y[row, generated] -= presence[row]
    return (y,)


def _call(
    rng: np.random.Generator,
    rows: int,
    vocabulary: int,
    width: int,
    prompt_length: Sequence[int],
    length: Sequence[int],
    penalties: Sequence[tuple[float, float, float]] = ((1.2, 0.5, 0.25), (0.8, -0.3, 0.0), (1.0, 0.0, 0.7)),
) -> tuple[SampleOperand, ...]:
    """Operands of `rows` rows; lists are repeated to that length. Tokens past the length lie outside the vocabulary: nobody may read them."""
    lengths = np.resize(length, rows)
    tokens = rng.integers(0, max(vocabulary, 1), (rows, width))
    tokens[np.arange(width)[None, :] >= lengths[:, None]] = 2**31 - 1
    chosen = [penalties[row % len(penalties)] for row in range(rows)]
    return (
        normal((rows, vocabulary)),
        indices(tokens),
        indices(np.resize(prompt_length, rows)),
        indices(lengths),
        *(reals([row[kind] for row in chosen]) for kind in range(3)),
    )


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(*_call(rng, 1, 1, 1, (0,), (1,)))
    yield valid(*_call(rng, 7, 33, 20, (3, 0, 5), (20, 7, 5)))
    yield valid(*_call(rng, 33, 100, 1, (1, 0, 0), (1, 1, 0)))
    yield valid(*_call(rng, 3, 257, 700, (350, 10, 699), (700, 600, 700)))
    yield valid(*_call(rng, 3, 5, 64, (0, 32, 64), (64,)))
    special = rng.standard_normal((4, 8)).astype(np.float32)
    special[0, :4] = [0.0, -0.0, np.inf, -np.inf]
    special[1, 2] = np.nan
    yield valid(given(special), *_call(rng, 4, 8, 12, (6,), (12,))[1:])
    neutral = (1.0, 0.0, 0.0)
    garbage = _call(rng, 3, 50, 4, (9, 0, -1), (-5, 99, 2), (neutral, neutral, neutral))
    yield valid(*garbage)
    yield valid(*_call(rng, 3, 50, 0, (0,), (0,)))
    yield valid(*_call(rng, 0, 50, 4, (0,), (0,)))
    named = _call(rng, 2, 50, 6, (2,), (5,))
    axes = (("R", "V"), ("R", "S"), *[("R",)] * 5)
    yield valid(
        *(
            SampleOperand(TensorType(operand.type.shape, operand.type.dtype, letters), operand.data)
            for operand, letters in zip(named, axes, strict=True)
        )
    )
    good = _call(rng, 2, 50, 6, (2,), (5,))
    bad = np.array(good[1].data)
    bad[1, 4] = 50
    yield invalid(BoundsError, good[0], indices(bad), *good[2:])
    yield invalid(BoundsError, *good[:3], indices([7, 1]), *good[4:])
    yield invalid(BoundsError, *good[:2], indices([6, 0]), *good[3:])
    yield invalid(BoundsError, *good[:2], indices([-1, 0]), *good[3:])
    yield invalid(ShapeError, normal((3, 50)), *good[1:])
    yield invalid(ShapeError, *good[:6])
    yield invalid(ShapeError, *good[:2], indices([[1, 1]]), *good[3:])
    yield invalid(DTypeError, normal((2, 50), DType.BF16), *good[1:])
    yield invalid(DTypeError, *good[:4], indices([1, 1]), *good[5:])
    yield invalid(LayoutError, normal((2, 50), axes="RV"), indices(bad, "BS"), *good[2:])


PENALIZE = define(
    "penalize",
    "Logits [R,V] after the repetition, frequency and presence penalties of the tokens [R,S] that each row has seen; neutral penalties copy the row.",
    (
        OperandSpec("logits", F32),
        OperandSpec("tokens", I32),
        *(OperandSpec(name, I32) for name in SETTINGS[:2]),
        *(OperandSpec(name, F32) for name in SETTINGS[2:]),
    ),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "references and kernels do the same float32 operations in the same order"),
    cost=cost_per_element(6, operand=1),
    derivative=CHOSEN,
)

PENALIZE_OPS = (PENALIZE,)
