"""The kernels of decode steps: a row has the same bits whatever the rows beside it, as their rows promise, and weights may lie at any address."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls, refusal
from ostinato.backend_hip.evidence.rows import results_of
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import STATUS_BYTES, KernelName, modules
from ostinato.ir.evidence import Exactness
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import given, indices, normal, valid
from ostinato.ir.types import Array, DType
from tests.kernels.emulated import EmulatedMachine, compiled, instances

BF16 = DType.BF16
WAVE = 32
Cut = Callable[[int], Sample]
"""A sample of so many rows."""


def few_rows_call(sample: Sample, op: str, name: str) -> Call:
    row = next(row for row in HIP_ROWS if (row.op, row.name) == (op, name))
    assert row.exactness is Exactness.ROW_INVARIANT
    return next(iter(calls(row, sample)))


def machine_of(*found: Call) -> EmulatedMachine:
    return EmulatedMachine(WAVE, 1, compiled(modules(instances(found)), WAVE))


def linear(columns: int, gain: bool) -> Cut:
    def cut(rows: int) -> Sample:
        x, weight = normal((rows, columns)), normal((9, columns), BF16)
        if not gain:
            return valid(x, weight, normal((9,)), normal((rows, 9)))
        return valid(x, weight, None, None, normal((columns,)), eps=1e-6)

    return cut


def attention(rows: int) -> Sample:
    """Tokens of rows that see 600 keys, more than one turn of each block that shares them, one, 40 and 599."""
    lengths = (600, 1, 40, 599)
    cache = normal((5, 1, 640, 64), BF16)
    places = indices(range(rows)), indices([n - 1 for n in lengths[:rows]]), indices([[r] for r in range(5)])
    return valid(normal((rows, 2, 64)), cache, cache, *places, indices([*lengths, 0]), scale=0.125)


@pytest.mark.parametrize(
    ("op", "name", "cut", "counts"),
    [
        ("linear", "hip_few_rows", linear(896, gain=True), (1, 3, 4)),
        ("linear", "hip_few_rows", linear(896, gain=False), (1, 3, 8)),
        ("linear", "hip_few_rows", linear(4864, gain=False), (1, 2)),  # several groups of lanes an output
        ("attention_packed", "hip_split", attention, (1, 4)),
    ],
)
def test_a_row_has_the_same_bits_whatever_the_rows_beside_it(
    op: str, name: str, cut: Cut, counts: tuple[int, ...], rng: np.random.Generator
) -> None:
    every = [few_rows_call(cut(rows), op, name) for rows in counts]
    machine, most = machine_of(*every), counts[-1]
    whole = arrays_of(OP[op], cut(most), rng)
    (expected,) = results_of(every[-1], machine, whole)
    for call, rows in zip(every[:-1], counts[:-1], strict=True):
        (found,) = results_of(call, machine, [_first(array, rows, most) for array in whole])
        assert found.tobytes() == np.ascontiguousarray(expected[:rows]).tobytes(), f"{rows} of {most} rows"


def _first(array: Array | None, rows: int, most: int) -> Array | None:
    """The part of an operand that belongs to the first rows; weights, caches and tables have another extent, and are whole."""
    return array if array is None or array.shape[0] != most else np.ascontiguousarray(array[:rows])


def test_rows_of_x_that_a_block_has_no_memory_for_are_refused() -> None:
    row = next(row for row in HIP_ROWS if row.identity == "linear@hip_few_rows")
    cut = linear(4864, gain=False)
    assert refusal(row, cut(2)) is None
    assert "4 rows of x must fit 40 KiB of a block's memory, found 76 KiB" in str(refusal(row, cut(3)))


def test_more_than_four_rows_go_to_the_matrix_units_where_these_take_them() -> None:
    row = next(row for row in HIP_ROWS if row.identity == "linear@hip_few_rows")
    said = "more than 4 rows by halves go to the matrix units, found 8"
    assert refusal(row, linear(896, gain=True)(4)) is None
    assert said in str(refusal(row, linear(896, gain=True)(5)))
    assert said in str(refusal(row, valid(normal((8, 64), BF16), normal((9, 64), BF16))))
    assert refusal(row, linear(904, gain=True)(5)) is None
    assert refusal(row, valid(normal((8, 64)), normal((9, 64)), None, None, normal((64,)), eps=1e-6)) is None


def test_weights_may_lie_at_any_address(rng: np.random.Generator) -> None:
    """Views of caller-owned memory may begin anywhere; the kernel then goes another way."""
    columns, outputs = 96, 7
    x, gain = rng.standard_normal((3, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    weight = rng.standard_normal((outputs, columns)).astype(ml_dtypes.bfloat16)
    residual = rng.standard_normal((3, outputs)).astype(np.float32)
    operands = [given(x), given(weight), None, given(residual), given(gain)]
    call = few_rows_call(valid(*operands, eps=1e-6), "linear", "hip_few_rows")
    kernel, launch = KernelName.parse(call.row.kernel(call.site)), call.row.launch_of(call.site)
    assert launch is not None
    room = np.zeros(weight.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 16 + 2
    room[start : start + weight.nbytes] = weight.reshape(-1).view(np.uint8)
    y, status = np.full((3, outputs), np.nan, np.float32), np.zeros(STATUS_BYTES // 4, np.uint32)
    addresses = [array.ctypes.data for array in (x, residual, gain, y)]
    machine_of(call).modules[kernel.file].launch(
        kernel.symbol,
        launch,
        [addresses[0], room.ctypes.data + start, 0, *addresses[1:3], 0, addresses[3]],
        call.row.params(call.site),
        status=status.ctypes.data,
    )
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-6) * gain
    expected = normed @ weight.astype(np.float64).T + residual
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert not status.any()
