"""Projections of many rows by panels (linear/panel): the bits of the same rows one at a time, by linear/tile, and the reference's values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import check, references, results_of
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls.hip import HIP_ROWS, linear
from ostinato.backend_hip.kernel_source import STATUS_BYTES, KernelName, modules
from ostinato.ir.opdef import Sample, SampleOperand
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import normal, valid
from ostinato.ir.types import Array, DType
from tests.kernels.emulated import WAVES, EmulatedMachine, compiled, instances

by_wave = pytest.mark.parametrize("wave", WAVES)
BF16, F16, F32 = DType.BF16, DType.F16, DType.F32
PLACES = {"linear": (0, 3), "linear_split": (0,), "linear_swiglu": (0,), "linear_group": (0,)}
"""Operands that have the rows."""


def product(
    op: str, rows: int, outputs: int, columns: int, half: DType, result: DType, *, more: bool = False
) -> Sample:
    """A product of halves; `more`: with biases, and with a residual where there may be one."""
    x, attrs = normal((rows, columns), half), {"dtype": result.value}

    def bias(count: int) -> tuple[SampleOperand, ...]:
        return (normal((count,)),) if more else ()

    if op == "linear":
        residual = (normal((rows, outputs), result),) if more else ()
        return valid(x, normal((outputs, columns), half), *bias(outputs), *residual, **attrs)
    if op == "linear_split":
        sizes = (outputs - 21, 16, 5)
        return valid(x, normal((outputs, columns), half), *bias(outputs), sizes=sizes, **attrs)
    if op == "linear_swiglu":
        return valid(x, normal((2 * outputs, columns), half), **attrs)
    members = (outputs, 17, 70)
    weights = [normal((count, columns), half) for count in members]
    return valid(x, *weights, *([normal((count,)) for count in members] if more else ()), **attrs)


def call_of(op: str, wave: int, sample: Sample, count: int | None = None) -> Call:
    name = f"hip_tile{wave}" + ("" if op == "linear_group" else "_fixed")
    row = next(row for row in HIP_ROWS if (row.op, row.name) == (op, name))
    return next(call for call in calls(row, sample) if call.count == count and not call.in_place)


def machine_of(wave: int, *found: Call) -> EmulatedMachine:
    return EmulatedMachine(wave, 3, compiled(modules(instances(found)), wave))


def file_of(call: Call) -> str:
    return KernelName.parse(call.row.kernel(call.site)).file


def require_bits_of_single_rows(op: str, wave: int, whole: Call, single: Call, arrays: list[Array | None]) -> None:
    """Rows of the many, of both ends of tiles and panels, are what each is alone."""
    assert (file_of(whole), file_of(single)) == ("linear/panel", "linear/tile")
    machine, rows = machine_of(wave, whole, single), len(next(array for array in arrays if array is not None))
    together = results_of(whole, machine, arrays)
    valid_rows = rows if whole.count is None else whole.count
    for row in sorted({0, 15, 16, 63, 64, 100, 127, 128, valid_rows - 1} & set(range(valid_rows))):
        alone = [a if a is None or i not in PLACES[op] else a[row : row + 1] for i, a in enumerate(arrays)]
        for many, one in zip(together, results_of(single, machine, alone), strict=True):
            assert np.ascontiguousarray(many[row : row + 1]).tobytes() == one.tobytes(), f"row {row} of {whole}"


class Shape(NamedTuple):
    """A product of the test."""

    op: str
    rows: int
    outputs: int
    columns: int
    half: DType
    result: DType
    more: bool

    def sample(self, rows: int) -> Sample:
        return product(self.op, rows, self.outputs, self.columns, self.half, self.result, more=self.more)


SHAPES = (
    Shape("linear", 65, 33, 32, BF16, BF16, True),
    Shape("linear", 130, 200, 96, F16, F32, True),
    Shape("linear", 200, 64, 896, BF16, F32, False),
    Shape("linear", 65, 33, 1536, BF16, BF16, False),
    Shape("linear", 195, 33, 4864, BF16, BF16, True),
    Shape("linear_split", 130, 200, 96, BF16, F16, True),
    Shape("linear_split", 65, 64, 1536, F16, F16, False),
    Shape("linear_swiglu", 200, 33, 96, F16, F32, False),
    Shape("linear_swiglu", 65, 64, 896, BF16, BF16, False),
    Shape("linear_swiglu", 65, 33, 1536, BF16, F32, False),
    Shape("linear_group", 130, 64, 96, BF16, BF16, True),
    Shape("linear_group", 65, 33, 896, F16, F32, False),
)


@by_wave
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_rows_have_the_bits_of_each_alone(shape: Shape, wave: int, rng: np.random.Generator) -> None:
    op = shape.op
    sample = shape.sample(shape.rows)
    whole, arrays = call_of(op, wave, sample), arrays_of(OP[op], sample, rng)
    single = call_of(op, wave, shape.sample(1))
    require_bits_of_single_rows(op, wave, whole, single, arrays)
    check(whole, [machine_of(wave, whole)], arrays, references(whole, arrays))


@by_wave
@pytest.mark.parametrize("op", list(PLACES))
def test_rows_past_the_count_are_neither_read_nor_written(op: str, wave: int, rng: np.random.Generator) -> None:
    sample = product(op, 140, 33, 96, BF16, F32, more=op != "linear_swiglu")
    arrays = arrays_of(OP[op], sample, rng)
    single = call_of(op, wave, product(op, 1, 33, 96, BF16, F32, more=op != "linear_swiglu"))
    for count in (0, 70, 140):
        whole = call_of(op, wave, sample, count)
        require_bits_of_single_rows(op, wave, whole, single, arrays)
        check(whole, [machine_of(wave, whole)], arrays, references(whole, arrays))


@by_wave
def test_an_infinite_row_is_nobody_elses(wave: int, rng: np.random.Generator) -> None:
    """Rows and outputs past the last repeat it: what lies in one row comes nowhere near the others."""
    sample = product("linear", 70, 40, 160, BF16, F32)
    call, arrays = call_of("linear", wave, sample), arrays_of(OP["linear"], sample, rng)
    machine, x = machine_of(wave, call), arrays[0]
    assert x is not None
    (before,) = results_of(call, machine, arrays)
    x[69] = np.inf
    (after,) = results_of(call, machine, arrays)
    assert after[:69].tobytes() == before[:69].tobytes()
    assert not np.isfinite(after[69]).any()


@by_wave
def test_operands_may_lie_at_any_address(wave: int, rng: np.random.Generator) -> None:
    """The kernel then goes another way, which is that of a row alone too."""
    rows, outputs, columns = 66, 7, 64
    sample = product("linear", rows, outputs, columns, F16, F32)
    call = call_of("linear", wave, sample)
    kernel, launch = KernelName.parse(call.row.kernel(call.site)), call.row.launch_of(call.site)
    assert launch is not None
    x, weight = (rng.standard_normal((count, columns)).astype(np.float16) for count in (rows, outputs))
    room = np.zeros(weight.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 16 + 2
    room[start : start + weight.nbytes] = weight.reshape(-1).view(np.uint8)
    y, status = np.full((rows, outputs), np.nan, np.float32), np.zeros(STATUS_BYTES // 4, np.uint32)
    machine_of(wave, call).modules[kernel.file].launch(
        kernel.symbol,
        launch,
        [x.ctypes.data, room.ctypes.data + start, 0, 0, 0, y.ctypes.data, 0, 0],
        call.row.params(call.site),
        status=status.ctypes.data,
    )
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight.astype(np.float64).T, rtol=1e-4, atol=1e-4)
    assert not status.any()


def test_a_few_rows_are_no_panels() -> None:
    for rows, columns, file in (
        (1, 96, "linear/tile"),
        (64, 96, "linear/tile"),
        (65, 96, "linear/panel"),
        (4096, 96, "linear/panel"),
        (192, 4096, "linear/tile"),
        (193, 4096, "linear/panel"),
    ):
        assert file_of(call_of("linear", 32, product("linear", rows, 64, columns, BF16, F32))) == file
    assert linear.panels_of(500, 896, [896, 65]) == linear.Panels(8 * (14 + 2))
