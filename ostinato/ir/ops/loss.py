"""Cross entropy of integer targets: the mean over the rows that have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import OperandSpec, Sample, Tolerance
from ostinato.ir.ops.derivatives import only_gradient
from ostinato.ir.ops.rules import (
    F32,
    I32,
    Arrays,
    Site,
    check_index,
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

__all__ = ["CROSS_ENTROPY", "IGNORED", "LOSS_OPS", "counted_rows", "require_logits"]

IGNORED = -100
"""Target of a row that does not count."""


def require_logits(site: Site, logits: int, target: int) -> tuple[str, ...]:
    """Operands logits S + [V] and target S, with a vocabulary that is not empty; the axis names that they have together for S."""
    scores, chosen = site.operand(logits), site.operand(target)
    require_rank(site.op, "logits", scores, at_least=1)
    if scores.shape[-1] == 0:
        fail(ShapeError, site.op, "a vocabulary that is not empty", str(scores), "there is nothing to choose from")
    require_shape(site.op, "target", chosen, scores.shape[:-1])
    return join_axes(site.op, "target", scores.axes[:-1], chosen.axes)


def counted_rows(call: Arrays, target: int) -> Array:
    """The rows, leading axes flattened, whose target counts; raises `BoundsError` where none does."""
    rows = np.flatnonzero(call.operand(target).reshape(-1) != IGNORED)
    if not rows.size:
        raise BoundsError(
            f"{call.op}: expected a target other than {IGNORED}, found none", hint="leave batches without targets out"
        )
    return rows


def _infer(site: Site) -> tuple[TensorType, ...]:
    require_logits(site, 0, 1)
    return (make_type(site.op, (), DType.F32, ()),)


def _reference(call: Arrays) -> tuple[Array, ...]:
    logits = call.wide(0).reshape(-1, call.operand(0).shape[-1])
    target = call.operand(1).reshape(-1)
    rows = counted_rows(call, 1)
    check_index(call.op, "target", target[rows], 0, logits.shape[1])
    counted = logits[rows]
    largest = np.max(counted, axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(counted - largest), axis=-1)) + largest[:, 0]
    return (np.asarray(np.mean(total - counted[np.arange(rows.size), target[rows]]), dtype=np.float32),)


def _gradients(at: Gradients) -> Mapping[int, str]:
    return {0: at.apply("cross_entropy_backward", (only_gradient(at), at.operand(0), at.operand(1)))}


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, vocabulary in ((1, 1), (1, 100), (5, 33), (33, 257), (7, 31)):
        yield valid(normal((rows, vocabulary)), indices(rng.integers(0, vocabulary, rows)))
    yield valid(normal((2, 3, 100), axes="BTV"), indices([[5, -100, 99], [-100, -100, 0]], "BT"))
    yield valid(reals([[1e4, -1e4, 0.0], [-3e38, 0.0, 80.0]]), indices([0, 2]))
    yield valid(normal((17,)), indices(3))
    yield invalid(BoundsError, normal((2, 5)), indices([0, 5]))
    yield invalid(BoundsError, normal((2, 5)), indices([-1, 0]))
    yield invalid(BoundsError, normal((2, 5)), indices([-100, -100]))
    yield invalid(BoundsError, normal((0, 5)), indices(np.zeros((0,))))
    yield invalid(ShapeError, normal((2, 5)), indices([0, 1, 2]))
    yield invalid(ShapeError, normal((2, 0)), indices([0, 0]))
    yield invalid(ShapeError, normal(()), indices(0))
    yield invalid(DTypeError, normal((2, 5)), normal((2,), DType.I64))
    yield invalid(DTypeError, normal((2, 5), DType.BF16), indices([0, 1]))
    yield invalid(LayoutError, normal((3, 3, 5), axes="BTV"), indices(np.zeros((3, 3)), "TB"))


CROSS_ENTROPY = define(
    "cross_entropy",
    f"Mean of logsumexp(logits) - logits[target] over the rows whose target is not {IGNORED}: logits S + [V], target S -> scalar.",
    (OperandSpec("logits", F32), OperandSpec("target", I32)),
    ("y",),
    _infer,
    _reference,
    _samples,
    Tolerance(2e-5, 2e-5, "contract of cross_entropy: fp32 exponentials, float64 sums in ascending order"),
    extent="logits",
    cost=cost_per_element(4, operand=0),
    derivative=_gradients,
)

LOSS_OPS = (CROSS_ENTROPY,)
