"""Numbers added to the logits of a few tokens of each row: a request's logit bias, and -inf for tokens it may not choose now.

A pair of one token twice adds twice, in the order of the list, in float32, so that every device has the same bits. A row of 0 pairs is a plain copy.
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

__all__ = ["ADD_AT_TOKENS", "LOGIT_BIAS_OPS"]


def _infer(site: Site) -> tuple[TensorType, ...]:
    logits, tokens, bias, pairs = (site.operand(index) for index in range(4))
    require_rank(site.op, "logits [R, V]", logits, exactly=2)
    require_rank(site.op, "tokens [R, B]", tokens, exactly=2)
    require_same_extent(site.op, "tokens of the rows of logits,", logits.shape[0], tokens.shape[0])
    require_shape(site.op, "bias", bias, tokens.shape)
    require_shape(site.op, "pairs", pairs, logits.shape[:1])
    axes = join_axes(site.op, "tokens", logits.axes[:1], tokens.axes[:1])
    join_axes(site.op, "bias", tokens.axes, bias.axes)
    axes = join_axes(site.op, "bias", axes, bias.axes[:1])
    axes = join_axes(site.op, "pairs", axes, pairs.axes)
    return (make_type(site.op, logits.shape, DType.F32, (*axes, logits.axes[1])),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    logits, tokens, bias, pairs = (call.operand(index) for index in range(4))
    y = np.array(logits, copy=True)
    for row in np.flatnonzero(pairs):
        check_index(call.op, f"pairs of row {row}", pairs[row : row + 1], 0, tokens.shape[1] + 1)
        chosen = tokens[row, : pairs[row]]
        check_index(call.op, f"token of row {row}", chosen, 0, logits.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(y[row], chosen, bias[row, : pairs[row]])
    return (y,)


def _call(
    rng: np.random.Generator, rows: int, vocabulary: int, width: int, pairs: Sequence[int]
) -> tuple[SampleOperand, ...]:
    """Operands of `rows` rows; counts of pairs are repeated to that length. Pairs past the count name no token: nobody may read them."""
    counts = np.resize(pairs, rows)
    past = np.arange(width)[None, :] >= counts[:, None]
    tokens = rng.integers(0, max(vocabulary, 1), (rows, width))
    bias = rng.standard_normal((rows, width)).astype(np.float32)
    bias[rng.random((rows, width)) < 0.3] = -np.inf
    tokens[past], bias[past] = 2**31 - 1, np.nan
    return normal((rows, vocabulary)), indices(tokens), reals(bias), indices(counts)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(*_call(rng, 1, 1, 1, (1,)))
    yield valid(*_call(rng, 7, 33, 20, (3, 0, 20)))
    yield valid(*_call(rng, 33, 100, 1, (1, 0)))
    yield valid(*_call(rng, 3, 1025, 64, (64, 5, 0)))
    yield valid(*_call(rng, 2, 3, 40, (40, 17)))  # many pairs of one token
    special = np.array([[np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0]], np.float32)
    yield valid(
        given(special), indices([[0, 1, 2, 3, 4, 5]]), reals([[-1.0, 1.0, 1.0, -np.inf, -0.0, 3.4e38]]), indices([6])
    )
    yield valid(*_call(rng, 3, 50, 0, (0,)))
    yield valid(*_call(rng, 0, 50, 4, (0,)))
    named = _call(rng, 2, 50, 6, (2, 6))
    yield valid(
        *(
            SampleOperand(TensorType(operand.type.shape, operand.type.dtype, letters), operand.data)
            for operand, letters in zip(named, (("R", "V"), ("R", "B"), ("R", "B"), ("R",)), strict=True)
        )
    )
    good = _call(rng, 2, 50, 6, (2, 5))
    tokens = good[1].data
    assert tokens is not None
    bad = np.array(tokens)
    bad[1, 4] = 50
    yield invalid(BoundsError, good[0], indices(bad), *good[2:])
    yield invalid(BoundsError, *good[:3], indices([7, 1]))
    yield invalid(BoundsError, *good[:3], indices([-1, 1]))
    yield invalid(ShapeError, normal((3, 50)), *good[1:])
    yield invalid(ShapeError, *good[:2], reals([[0.0, 1.0]] * 2), good[3])
    yield invalid(ShapeError, *good[:3], indices([1]))
    yield invalid(DTypeError, normal((2, 50), DType.BF16), *good[1:])
    yield invalid(DTypeError, *good[:2], good[1], good[3])
    yield invalid(LayoutError, normal((2, 50), axes="RV"), indices(tokens, "BS"), *good[2:])


ADD_AT_TOKENS = define(
    "add_at_tokens",
    "Logits [R,V] with bias [R,B] added at tokens [R,B], the first pairs[r] of each row; 0 copies the row.",
    (
        OperandSpec("logits", F32),
        OperandSpec("tokens", I32),
        OperandSpec("bias", F32),
        OperandSpec("pairs", I32),
    ),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(0, 0, "references and kernels do the same float32 additions in the same order"),
    cost=cost_per_element(1, operand=1),
    derivative=CHOSEN,
)

LOGIT_BIAS_OPS = (ADD_AT_TOKENS,)
