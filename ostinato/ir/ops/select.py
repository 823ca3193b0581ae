"""Choosing rows and tokens: gather, argmax, and sampling with Philox4x32-10.

`sample` is a function of its operands alone: the random number of a row follows from its seed and the index of the token to choose, so a row's choice does
not depend on its batch. Kernels must choose the same token, so the float operations are part of the definition: (logit - largest) / temperature and its
exponential in float32, which orders, weighs and drops tokens; sums, the top-p goal and the inverse of the distribution in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, Cost, Effect, OperandSpec, OperandTypes, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import CHOSEN, only_gradient, reshaped
from ostinato.ir.ops.rules import (
    ELEMENTS,
    F32,
    I32,
    I64,
    Arrays,
    Site,
    check_index,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    nbytes,
    require_rank,
    require_shape,
)
from ostinato.ir.ops.samplers import given, indices, invalid, normal, reals, valid
from ostinato.ir.random import uniform
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["ARGMAX", "GATHER_ROWS", "SAMPLE", "SELECT_OPS"]

INVALID = -1
"""Token of a row that nothing can be chosen from, and index of a row of zeros."""


# gather_rows


def _infer_gather(site: Site) -> tuple[TensorType, ...]:
    x, index = site.operand(0), site.operand(1)
    require_rank(site.op, "x [..., C]", x, at_least=2)
    require_rank(site.op, "index", index, exactly=1)
    return (make_type(site.op, (*index.shape, x.shape[-1]), x.dtype, (*index.axes, x.axes[-1])),)


def _reference_gather(call: Arrays) -> tuple[Array, ...]:
    index = call.operand(1)
    x = call.operand(0)
    rows = x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])
    check_index(call.op, "row", index, INVALID, rows.shape[0])
    y = np.zeros((index.shape[0], x.shape[-1]), dtype=x.dtype)
    chosen = index != INVALID
    y[chosen] = rows[index[chosen]]
    return (y,)


def _cost_gather(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    return Cost(0, nbytes(operands[1], results[0], results[0]))


# argmax


def _infer_argmax(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x", x, at_least=1)
    if x.shape[-1] == 0:
        fail(ShapeError, site.op, "a last axis that is not empty", str(x), "there is nothing to choose from")
    return (make_type(site.op, x.shape[:-1], DType.I32, x.axes[:-1]),)


def _greedy(x: Array) -> Array:
    """Smallest index of the maximum of each row; -1 where a row holds NaN or +inf, or -inf only."""
    largest = np.max(x, axis=-1)
    return np.where(np.isfinite(largest), np.argmax(x, axis=-1), INVALID).astype(np.int32)


def _reference_argmax(call: Arrays) -> tuple[Array, ...]:
    return (_greedy(call.operand(0)),)


# sample

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "seed", "index")


def _infer_sample(site: Site) -> tuple[TensorType, ...]:
    logits = site.operand(0)
    require_rank(site.op, "logits", logits, exactly=2)
    if logits.shape[1] == 0:
        fail(ShapeError, site.op, "a vocabulary that is not empty", str(logits), "there is nothing to choose from")
    axes = logits.axes[:1]
    for place, name in enumerate(SETTINGS, start=1):
        require_shape(site.op, name, site.operand(place), logits.shape[:1])
        axes = join_axes(site.op, name, axes, site.operand(place).axes)
    return (make_type(site.op, logits.shape[:1], DType.I32, axes),)


def _choose(
    logits: Array, temperature: np.float32, top_k: int, top_p: np.float32, min_p: np.float32, point: float
) -> int:
    """One token of a row of finite maximum, at a temperature above 0; `point` in (0, 1) picks it from the distribution."""
    with np.errstate(over="ignore"):
        scaled = (logits - np.max(logits)) / temperature
    tokens = np.arange(scaled.size)
    if 0 < top_k < scaled.size:
        tokens = np.sort(np.argsort(-scaled, kind="stable")[:top_k])
    weight = np.exp(scaled[tokens].astype(np.float64)).astype(np.float32).astype(np.float64)
    if top_p < 1:
        descending = np.argsort(-weight, kind="stable")
        reached = np.searchsorted(np.cumsum(weight[descending]), np.float64(top_p) * np.sum(weight))
        kept = np.sort(descending[: int(reached) + 1])
        tokens, weight = tokens[kept], weight[kept]
    enough = (weight >= min(np.float64(min_p), 1.0)) & (weight > 0)
    tokens, mass = tokens[enough], np.cumsum(weight[enough])
    chosen = int(np.searchsorted(mass, point * mass[-1], side="right"))
    return int(tokens[min(chosen, tokens.size - 1)])


def _reference_sample(call: Arrays) -> tuple[Array, ...]:
    logits, temperature, top_k, top_p, min_p, seed, index = (call.operand(i) for i in range(7))
    if not logits.shape[0]:
        return (np.zeros(0, dtype=np.int32),)
    usable = (temperature >= 0) & np.isfinite(temperature) & ~np.isnan(top_p) & ~np.isnan(min_p)
    token = np.where(usable, _greedy(logits), INVALID).astype(np.int32)
    point = uniform(seed, index)
    for row in np.flatnonzero((token != INVALID) & (temperature > 0)):
        token[row] = _choose(logits[row], temperature[row], int(top_k[row]), top_p[row], min_p[row], point[row])
    return (token,)


# samples


def _samples_gather(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.I32):
        yield valid(normal((7, 33), dtype), indices([6, 0, 0, 3]))
    yield valid(normal((2, 5, 96), axes="BTC"), indices([4, 9], "R"))
    yield valid(normal((5, 64), axes="NC"), indices([-1, 2, -1], "R"))
    yield valid(normal((1, 1)), indices([0]))
    yield valid(normal((4, 8)), indices(np.zeros((0,))))
    yield valid(normal((0, 8)), indices([-1]))
    yield invalid(BoundsError, normal((4, 8)), indices([4]))
    yield invalid(BoundsError, normal((4, 8)), indices([0, -2]))
    yield invalid(ShapeError, normal((4,)), indices([0]))
    yield invalid(ShapeError, normal((4, 8)), indices([[0]]))
    yield invalid(DTypeError, normal((4, 8)), normal((1,)))
    yield invalid(DTypeError, normal((4, 32), DType.Q8_0), indices([0]))
    yield invalid(LayoutError, normal((4, 8), axes="NC"), indices([0], "C"))


def _samples_argmax(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1, 1), (3, 33), (31, 100), (2, 257), (1, 5000)):
        yield valid(normal(shape))
    yield valid(normal((2, 3, 64), axes="BTV"))
    yield valid(normal((17,)))
    yield valid(normal((0, 5)))
    special = rng.standard_normal((10, 67)).astype(np.float32)
    special[0, [5, 40]] = 9.0
    special[1, [66, 0]] = 9.0
    special[2, 66] = np.nan
    special[3, 0] = np.inf
    special[4, :] = -np.inf
    special[5, :60] = -np.inf
    special[6, :] = 2.0
    special[7, 3] = -np.nan
    special[8, :] = np.array([-0.0, 0.0] * 33 + [-0.0])
    special[9, [1, 2]] = [np.nan, np.inf]
    yield valid(given(special))
    yield invalid(ShapeError, normal((3, 0)))
    yield invalid(ShapeError, normal(()))
    yield invalid(DTypeError, normal((3, 4), DType.BF16))
    yield invalid(DTypeError, indices([[1, 2]]))


def settings(
    rows: int,
    rng: np.random.Generator,
    temperature: Sequence[float] = (1.0,),
    top_k: Sequence[int] = (0,),
    top_p: Sequence[float] = (1.0,),
    min_p: Sequence[float] = (0.0,),
) -> tuple[SampleOperand, ...]:
    """Settings of `rows` rows; each list is repeated to that length. Seeds and indices are random, negative seeds too."""
    return (
        reals(np.resize(temperature, rows)),
        indices(np.resize(top_k, rows)),
        reals(np.resize(top_p, rows)),
        reals(np.resize(min_p, rows)),
        given(rng.integers(-(2**63), 2**63 - 1, rows, dtype=np.int64, endpoint=True)),
        indices(rng.integers(0, 2**31, rows)),
    )


def _samples_sample(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, vocabulary in ((1, 1), (33, 100), (7, 257), (3, 1001)):
        yield valid(normal((rows, vocabulary)), *settings(rows, rng))
        yield valid(normal((rows, vocabulary)), *settings(rows, rng, temperature=(0.0, 0.7, 1.3)))
    wide = reals(rng.standard_normal((32, 100)) * 4)
    yield valid(wide, *settings(32, rng, top_k=(1, 5, 40, 100, 1000)))
    yield valid(wide, *settings(32, rng, top_p=(0.0, 0.1, 0.5, 0.9, 0.999)))
    yield valid(wide, *settings(32, rng, min_p=(0.0, 0.05, 0.3, 1.0)))
    yield valid(wide, *settings(32, rng, (0.5, 1.0, 2.0), (10, 0, 50), (0.9, 1.0), (0.02, 0.0, 0.1, 0.0)))
    # few distinct values: ties at every edge
    ties = reals(rng.integers(0, 3, (32, 65)).astype(np.float32))
    yield valid(ties, *settings(32, rng, (0.0, 1.0), (2, 7, 30), (0.3, 0.8, 1.0)))
    special = rng.standard_normal((6, 40)).astype(np.float32)
    special[0, 7] = np.nan
    special[1, 7] = np.inf
    special[2, :] = -np.inf
    special[3, 1:] = -np.inf
    special[4, ::2] = -np.inf
    yield valid(given(special), *settings(6, rng, (1.0, 0.8), (0, 3)))
    yield valid(given(special), *settings(6, rng, (0.0,)))
    yield valid(given(special), *settings(6, rng, (np.inf, 1e30)))
    plain = given(rng.standard_normal((6, 40)).astype(np.float32))
    yield valid(
        plain,
        *settings(
            6, rng, (-1.0, np.nan, 1.0, 1.0, 1e-30, 1e30), (0, -3), (1, 1, np.nan, 1, 1, -1), (0, 0, 0, np.nan, 0, 2)
        ),
    )
    named = settings(2, rng)
    yield valid(
        normal((2, 50), axes="RV"), *(SampleOperand(TensorType((2,), s.type.dtype, ("R",)), s.data) for s in named)
    )
    yield valid(normal((0, 50)), *settings(0, rng))
    good = settings(2, rng)
    yield invalid(ShapeError, normal((2, 0)), *good)
    yield invalid(ShapeError, normal((3, 50)), *good)
    yield invalid(ShapeError, normal((2, 1, 50)), *good)
    yield invalid(ShapeError, normal((2, 50)), *good[:5])
    yield invalid(DTypeError, normal((2, 50), DType.F16), *good)
    yield invalid(DTypeError, normal((2, 50)), *good[:4], indices([1, 2]), good[5])
    yield invalid(
        LayoutError,
        normal((2, 50), axes="RV"),
        SampleOperand(TensorType((2,), DType.F32, ("B",)), good[0].data),
        *good[1:],
    )


def _gradients_gather(at: Gradients) -> Mapping[int, str]:
    x, dy = at.type(at.operand(0)), only_gradient(at)
    rows = math.prod(x.static_shape[:-1])
    return {0: reshaped(at, at.apply("embedding_backward", [dy, at.operand(1)], {"rows": rows}), x.shape, x.axes)}


GATHER_ROWS = define(
    "gather_rows",
    "Rows of x, leading axes flattened, at index [R]; index -1 gives a row of zeros.",
    (OperandSpec("x", ELEMENTS), OperandSpec("index", I32)),
    ("y",),
    _infer_gather,
    _reference_gather,
    _samples_gather,
    Tolerance(0, 0, "bytes are copied"),
    cost=_cost_gather,
    derivative=_gradients_gather,
)

ARGMAX = define(
    "argmax",
    "Index of the largest value of the last axis, the smallest one on ties; -1 for a row with NaN or +inf, or of -inf only.",
    (OperandSpec("x", F32),),
    ("y",),
    _infer_argmax,
    _reference_argmax,
    _samples_argmax,
    Tolerance(0, 0, "an index is right or wrong"),
    cost=cost_per_element(1, operand=0),
    derivative=CHOSEN,
)

SAMPLE = define(
    "sample",
    "One token a row of logits [R,V]: temperature (0: argmax), top-k, top-p, min-p, Philox4x32-10 keyed by seed and index.",
    (
        OperandSpec("logits", F32),
        OperandSpec("temperature", F32),
        OperandSpec("top_k", I32),
        OperandSpec("top_p", F32),
        OperandSpec("min_p", F32),
        OperandSpec("seed", I64),
        OperandSpec("index", I32),
    ),
    ("token",),
    _infer_sample,
    _reference_sample,
    _samples_sample,
    Tolerance(0, 0, "an index is right or wrong: references and kernels do the same float operations"),
    effect=Effect.RANDOM,
    cost=cost_per_element(6, operand=0),
    derivative=CHOSEN,
)

SELECT_OPS = (
    GATHER_ROWS,
    ARGMAX,
    SAMPLE,
)
