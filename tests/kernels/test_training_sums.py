"""Sums of training kernels: the same bits wherever an operand lies, and as often as a step is run again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import STATUS_BYTES, KernelName, modules
from ostinato.ir.opdef import Sample
from ostinato.ir.ops.samplers import indices, normal, valid
from ostinato.ir.types import Array
from tests.kernels.emulated import compiled, instances

WIDTH = 9001
MOVED = (0, 4, 8)
"""Bytes that operands lie past a multiple of 16."""


def only_call(op: str, sample: Sample) -> Call:
    return next(calls(next(row for row in HIP_ROWS if row.op == op), sample))


def run(call: Call, operands: Sequence[Array | None], seed: int) -> None:
    """Runs the row's kernel on arrays, in place; None for an operand that is absent."""
    assert len(operands) == len(call.row.operands)
    kernel, launch = KernelName.parse(call.row.kernel(call.site)), call.row.launch_of(call.site)
    assert launch is not None
    module = compiled(modules(instances([call])), 32)[kernel.file]
    status = np.zeros(STATUS_BYTES // 4, np.uint32)
    addresses = [0 if operand is None else operand.ctypes.data for operand in operands]
    module.launch(kernel.symbol, launch, addresses, call.row.params(call.site), status=status.ctypes.data, seed=seed)
    assert not status.any(), "no error, and tickets as they were"


def moved(values: Array, offset: int) -> Array:
    """A copy that begins so many bytes past a multiple of 16."""
    room = np.zeros(values.nbytes + 32, np.uint8)
    start = (-room.ctypes.data) % 16 + offset
    there = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    there[...] = values
    return there


def test_squares_have_the_same_sum_wherever_they_lie(rng: np.random.Generator) -> None:
    call = only_call("square_sum", valid(normal((3, WIDTH))))
    assert call.row.workspace(call.site) > 8, "several blocks"
    x, found = rng.standard_normal((3, WIDTH)).astype(np.float32), set()
    parts = np.empty(call.row.workspace(call.site), np.uint8)
    for seed, offset in enumerate(MOVED):
        y = np.zeros(1, np.float32)
        run(call, [moved(x, offset), parts, y], seed)
        found.add(y.tobytes())
    assert len(found) == 1
    assert y[0] == pytest.approx(np.sum(x.astype(np.float64) ** 2), rel=1e-6)


def test_the_loss_of_a_token_is_the_same_wherever_its_logits_lie(rng: np.random.Generator) -> None:
    target = np.array([0, WIDTH - 1], np.int32)
    call = only_call("token_cross_entropy", valid(normal((2, WIDTH)), indices(target)))
    logits, found = rng.standard_normal((2, WIDTH)).astype(np.float32), set()
    for seed, offset in enumerate(MOVED):
        y, log_sum = np.zeros(2, np.float32), np.zeros(2, np.float32)
        run(call, [moved(logits, offset), target, y, log_sum], seed)
        found.add(y.tobytes() + log_sum.tobytes())
    assert len(found) == 1


def test_rows_of_a_table_sum_up_to_the_same_bits_in_place_and_apart(rng: np.random.Generator) -> None:
    """More tokens than threads, of few ids: a gradient that is added to zeros is the gradient that is made."""
    ids = rng.integers(-1, 7, 600).astype(np.int32)
    gradient = rng.standard_normal((600, 33)).astype(np.float32)
    table, made = np.zeros((7, 33), np.float32), np.full((7, 33), np.nan, np.float32)
    add = only_call("embedding_backward_add", valid(normal((7, 33)), normal((600, 33)), indices(ids)))
    run(add, [table, gradient, ids], 1)
    run(only_call("embedding_backward", valid(normal((600, 33)), indices(ids), rows=7)), [gradient, ids, made], 2)
    assert table.tobytes() == made.tobytes()
    expected = np.zeros((7, 33), np.float32)
    for token in np.flatnonzero(ids >= 0):
        expected[ids[token]] += gradient[token]
    assert table.tobytes() == expected.tobytes(), "float32 sums in ascending order of tokens"


def test_both_rows_of_the_norm_have_the_same_bits(rng: np.random.Generator) -> None:
    """Which of them is chosen follows from the width alone, and changes nothing."""
    shape = (2, 900)
    sample = valid(normal(shape), normal(shape), normal(shape[1:]), normal(shape), eps=1e-6)
    gradient, x, addend = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    gain, found = rng.standard_normal(shape[1:]).astype(np.float32), set()
    for row in (row for row in HIP_ROWS if row.op == "rms_norm_backward"):
        y, inverse = np.zeros(shape, np.float32), np.zeros(2, np.float32)
        run(next(calls(row, sample)), [gradient, x, gain, addend, y, inverse, None], 3)
        found.add(y.tobytes() + inverse.tobytes())
    assert len(found) == 1
