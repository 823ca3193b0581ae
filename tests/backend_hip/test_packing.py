"""The load program: rows of any order and dtype into weights of any layout, in pieces, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.packing import pack_call
from ostinato.ir.blocks import dequantize
from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.ops.samplers import materialise, normal
from ostinato.ir.types import Array, DType, TensorType
from tests.backend_hip import panels
from tests.backend_hip.execute import Rows

FLOATS = (DType.F32, DType.F16, DType.BF16)
BLOCKS = tuple(dtype for dtype in DType if dtype.is_block)


@pytest.fixture(scope="module")
def device() -> HostDevice:
    return HostDevice(threads=2)


def converted(source: Array, dtype: DType, target: DType) -> Array:
    """Stored rows of `dtype` as rows of `target`."""
    if dtype is target:
        return source
    wide = dequantize(source, dtype) if dtype.is_block else source.astype(np.float32)
    return wide.astype(target.numpy)


@pytest.mark.parametrize("layout", ["row", "panel32", "panel32_pair"])
@pytest.mark.parametrize(
    ("source", "target"),
    [*((a, b) for a in (*FLOATS, *BLOCKS) for b in FLOATS), *((a, a) for a in BLOCKS)],
    ids=lambda dtype: dtype.value,
)
def test_rows_arrive_in_order_in_any_layout(
    device: HostDevice, source: DType, target: DType, layout: str, rng: np.random.Generator
) -> None:
    rows, columns = 70, max(96, source.block_elements) if source.is_block else 33
    stored = materialise(normal((80, columns), source), rng)
    order = rng.permutation(80)[:rows].astype(np.int64)
    tensor = TensorType((rows, columns), target, layout=layout)
    buffer = device.allocate(tensor.nbytes)
    buffer.view(np.uint8, (tensor.nbytes,))[:] = 0xFF
    for start, stop in (
        (32, 70),
        (0, 20),
        (20, 32),
    ):  # pieces in any order; the one with the last row writes all padding
        device.pack(tensor, buffer.address, Rows(stored, source, order[start:stop]), start)
    logical = converted(stored[order], source, target)
    if layout == "row":
        expected = logical.reshape(-1).view(np.uint8)
    else:
        weight = panels.Rows(target.value, logical, np.zeros((rows, columns)))
        expected = panels.to_panels(weight, pair=layout == "panel32_pair")
    actual = buffer.view(np.uint8, (tensor.nbytes,))
    assert np.array_equal(actual, expected)


def test_rows_may_start_anywhere_in_a_mapped_file(device: HostDevice, rng: np.random.Generator) -> None:
    stored = rng.standard_normal((6, 5)).astype(np.float32)
    file = np.zeros(stored.nbytes + 3, np.uint8)
    file[3:] = stored.reshape(-1).view(np.uint8)
    file.flags.writeable = False
    tensor = TensorType((6, 5), DType.F32)
    buffer = device.allocate(tensor.nbytes)
    device.pack(tensor, buffer.address, Rows(file[3:], DType.F32, np.arange(6)), 0)
    assert np.array_equal(buffer.view(np.float32, (6, 5)), stored)


@pytest.mark.parametrize("source", FLOATS, ids=lambda dtype: dtype.value)
def test_vectors_are_columns_of_single_elements(device: HostDevice, source: DType, rng: np.random.Generator) -> None:
    stored = rng.standard_normal(9).astype(source.numpy)
    tensor = TensorType((12,), DType.F32)
    buffer = device.allocate(tensor.nbytes)
    device.pack(tensor, buffer.address, Rows(stored, source, np.array([8, 0, 3, 3], np.int64)), 2)
    expected = np.zeros(12, np.float32)
    expected[2:6] = stored[[8, 0, 3, 3]].astype(np.float32)
    assert np.array_equal(buffer.view(np.float32, (12,)), expected)


def test_conversions_that_do_not_exist_are_refused(rng: np.random.Generator) -> None:
    floats = Rows(np.zeros((4, 32), np.float32), DType.F32, np.arange(4))
    blocks = Rows(materialise(normal((4, 32), DType.Q4_0), rng), DType.Q4_0, np.arange(4))
    with pytest.raises(DTypeError, match="f32 rows cannot become q8_0"):
        pack_call(TensorType((4, 32), DType.Q8_0), 0, floats, 0)
    with pytest.raises(DTypeError, match="q4_0 rows cannot become q8_0"):
        pack_call(TensorType((4, 32), DType.Q8_0), 0, blocks, 0)
    with pytest.raises(DTypeError, match="i32 cannot be packed"):
        pack_call(TensorType((4, 32), DType.I32), 0, floats, 0)


def test_rows_that_do_not_exist_are_refused() -> None:
    tensor = TensorType((4, 8), DType.F32)
    data = np.zeros((3, 8), np.float32)
    with pytest.raises(BoundsError, match=r"rows \[2, 5\) are outside"):
        pack_call(tensor, 0, Rows(data, DType.F32, np.arange(3)), 2)
    for index in ([0, 3], [-1, 0]):
        with pytest.raises(BoundsError, match="the source has 3 rows of 32 bytes"):
            pack_call(tensor, 0, Rows(data, DType.F32, np.array(index, np.int64)), 0)


def test_sources_and_layouts_that_cannot_be_packed_are_refused() -> None:
    rows = np.arange(4)
    with pytest.raises(LayoutError, match="contiguous"):
        pack_call(TensorType((4, 8), DType.F32), 0, Rows(np.zeros((8, 4), np.float32).T, DType.F32, rows), 0)
    with pytest.raises(DTypeError, match="row index must be int64"):
        pack_call(
            TensorType((4, 8), DType.F32), 0, Rows(np.zeros((4, 8), np.float32), DType.F32, rows.astype(np.int32)), 0
        )
    with pytest.raises(LayoutError, match="natural or packed"):
        pack_call(
            TensorType((4, 8), DType.F32, ("F", "C"), "CF"), 0, Rows(np.zeros((4, 8), np.float32), DType.F32, rows), 0
        )
    with pytest.raises(ShapeError, match="scalar"):
        pack_call(TensorType((), DType.F32), 0, Rows(np.zeros(1, np.float32), DType.F32, np.arange(1)), 0)
