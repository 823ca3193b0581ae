"""Softmax over rows, whole and causal: shifted by the row's largest visible value, sums in one fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import DTypeError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.elementwise import HALVES, SHAPES, infer_same
from ostinato.ir.ops.rules import FLOATS, Arrays, Site, cost_per_element, define, fail, require_rank
from ostinato.ir.ops.samplers import given, indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, TensorType

__all__ = ["CAUSAL_SOFTMAX", "SOFTMAX", "SOFTMAX_OPS"]

TOLERANCE = Tolerance(2e-6, 2e-5, "contract of softmax: fp32 exponentials and one fp32 reduction")


def _infer_softmax(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x", x, at_least=1)
    if x.shape[-1] == 0:
        fail(ShapeError, site.op, "a last axis that is not empty", str(x), "softmax of nothing is undefined")
    return infer_same(site)


def _infer_causal(site: Site) -> tuple[TensorType, ...]:
    x = site.operand(0)
    require_rank(site.op, "x [..., T, T]", x, at_least=2)
    if x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
        fail(ShapeError, site.op, "last two axes of one extent above 0", str(x), "scores of T queries over T keys")
    return infer_same(site)


def _softmax(x: Array) -> Array:
    """A row of -inf only has no visible entry and gives zeros; +inf or NaN gives NaN."""
    largest = np.max(x, axis=-1, keepdims=True)
    hidden = largest == -np.inf
    with np.errstate(invalid="ignore"):
        power = np.exp(x - np.where(hidden, 0.0, largest))
        total = np.sum(power, axis=-1, keepdims=True)
        found: Array = (power / np.where(hidden, 1.0, total)).astype(np.float32)
    return found


def _reference_softmax(call: Arrays) -> tuple[Array, ...]:
    return (_softmax(call.wide(0)),)


def _reference_causal(call: Arrays) -> tuple[Array, ...]:
    """What a row must not see is hidden before anything is computed, NaN included."""
    x = call.wide(0)
    visible = np.tri(x.shape[-1], dtype=np.bool_)
    return (np.where(visible, _softmax(np.where(visible, x, -np.inf)), np.float32(0)),)


def _gradients_softmax(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("softmax_backward", (only_gradient(at), at.result()))}


def _gradients_causal(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("causal_softmax_backward", (only_gradient(at), at.result()))}


def _samples_softmax(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield valid(normal(shape))
    for dtype in HALVES:
        yield valid(normal((5, 33), dtype))
    yield valid(normal((2, 3, 4, 32), axes="BHTS"))
    masked = rng.standard_normal((4, 65)).astype(np.float32)
    masked[0, 1:] = -np.inf
    masked[1, :] = -np.inf
    masked[2, ::2] = -np.inf
    yield valid(given(masked))
    yield valid(reals([[1e4, 1e4, -1e4], [-3e38, -3e38, 3e38]]))
    yield valid(normal((0, 8)))
    yield invalid(ShapeError, normal((3, 0)))
    yield invalid(ShapeError, normal(()))
    yield invalid(DTypeError, indices([[1, 2]]))


def _samples_causal(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1, 1), (2, 2), (33, 33), (3, 17, 17), (2, 3, 65, 65)):
        yield valid(normal(shape))
    for dtype in HALVES:
        yield valid(normal((2, 33, 33), dtype))
    yield valid(normal((2, 3, 31, 31), axes="BHTS"))
    special = rng.standard_normal((2, 9, 9)).astype(np.float32)
    special[0] += np.triu(np.full((9, 9), np.nan, dtype=np.float32), 1)  # hidden: must not matter
    special[1, 0, 0] = -np.inf
    special[1, 5, :3] = -np.inf
    yield valid(given(special))
    yield valid(reals(rng.standard_normal((40, 40)) * 1e4))
    yield valid(normal((0, 8, 8)))
    yield invalid(ShapeError, normal((3, 0, 0)))
    yield invalid(ShapeError, normal((3, 4)))
    yield invalid(ShapeError, normal((4,)))
    yield invalid(DTypeError, indices([[1, 2], [3, 4]]))


X = OperandSpec("x", FLOATS)

SOFTMAX = define(
    "softmax",
    "exp(x) / sum(exp(x)) over the last axis, shifted by the row's maximum; a row of -inf gives zeros.",
    (X,),
    ("y",),
    _infer_softmax,
    _reference_softmax,
    _samples_softmax,
    TOLERANCE,
    cost=cost_per_element(5),
    derivative=_gradients_softmax,
)
CAUSAL_SOFTMAX = define(
    "causal_softmax",
    "softmax of x [..., T, T] where row i sees the entries up to i; the others are exactly 0 and are not read.",
    (X,),
    ("y",),
    _infer_causal,
    _reference_causal,
    _samples_causal,
    TOLERANCE,
    cost=cost_per_element(3),
    derivative=_gradients_causal,
)

SOFTMAX_OPS = (
    SOFTMAX,
    CAUSAL_SOFTMAX,
)
