"""The host device: memory and its views, tables and their errors, interruption, creation."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.errors import BackendError, BoundsError, CapacityError, ConfigError, DeviceUnavailable, LifecycleError
from ostinato.ir.step import StepKind
from ostinato.ir.types import DType
from tests.backend_hip.execute import Step


@pytest.fixture(scope="module")
def device() -> HostDevice:
    return HostDevice(threads=1)


def scale_step(source: int, target: int, count: int, factor: float, node: str = "y") -> Step:
    return Step(node, "scale", ((source, 4 * count), (0, 0), (target, 4 * count)), (1, count, factor, DType.F32.number))


def test_the_device_says_what_it_is(device: HostDevice) -> None:
    assert device.name == "host:0"
    assert device.threads == 1
    assert device.isa in device.available
    assert set(device.available) == set(_native.isa_available())
    assert device.info.cpu
    assert device.info.abi_version == _native.abi_version()


def test_dtype_numbers_agree_with_the_header() -> None:
    assert _native.dtype_numbers() == {dtype.value: dtype.number for dtype in DType}


@pytest.mark.parametrize("isa", _native.isa_available())
def test_every_unit_can_be_asked_for(isa: str) -> None:
    assert HostDevice(threads=1, isa=isa).isa == isa


def test_what_cannot_be_created_says_why() -> None:
    with pytest.raises(ConfigError, match=r"sse2[\s\S]*portable"):
        HostDevice(isa="sse2")
    with pytest.raises(ConfigError, match="threads is -1"):
        HostDevice(threads=-1)
    with pytest.raises(ConfigError, match="threads is"):
        HostDevice(threads=1 << 20)
    missing = [unit for unit in ("avx2", "avx512", "avx512_bf16") if unit not in _native.isa_available()]
    for unit in missing:
        with pytest.raises((ConfigError, DeviceUnavailable)):
            HostDevice(isa=unit)


def test_memory_is_zeroed_aligned_and_viewed_in_place(device: HostDevice) -> None:
    buffer = device.allocate(1000, 4096)
    assert buffer.address % 4096 == 0
    view = buffer.view(np.float32, (5, 10), offset=200)
    assert view.shape == (5, 10)
    assert not view.any()
    view[:] = 7
    assert view.ctypes.data == buffer.address + 200
    assert buffer.view(np.uint8, (1000,))[200:400].any()
    assert not buffer.view(np.uint8, (200,)).any()
    assert device.allocate(0).view(np.float32, (0, 3)).shape == (0, 3)


def test_a_view_keeps_its_memory_alive(device: HostDevice) -> None:
    view = device.allocate(1 << 16).view(np.int64, (1 << 13,))[10:20]
    view[:] = 3
    gc.collect()
    others = [device.allocate(1 << 16) for _ in range(4)]
    assert (view == 3).all()
    assert all(other.address for other in others)


def test_views_stay_inside_their_buffer(device: HostDevice) -> None:
    buffer = device.allocate(64)
    for shape, offset in (((17,), 0), ((1,), 61), ((1,), -4)):
        with pytest.raises(BoundsError, match="outside of a buffer of 64"):
            buffer.view(np.float32, shape, offset)


def test_freed_memory_cannot_be_viewed(device: HostDevice) -> None:
    buffer = device.allocate(64)
    buffer.free()
    buffer.free()
    with pytest.raises(LifecycleError, match="freed"):
        buffer.view(np.uint8, (1,))


def test_memory_that_there_is_not_is_a_capacity_error(device: HostDevice) -> None:
    with pytest.raises(CapacityError, match=str(1 << 60)):
        device.allocate(1 << 60)
    with pytest.raises(ConfigError, match="power of two"):
        device.allocate(8, 3)


def test_a_table_runs_all_or_some_of_its_steps(device: HostDevice) -> None:
    buffer = device.allocate(3 * 16)
    values = buffer.view(np.float32, (3, 4))
    values[0] = 1
    address = buffer.address
    table = device.make_table(
        [scale_step(address, address + 16, 4, 2.0), scale_step(address + 16, address + 32, 4, 3.0)]
    )
    assert len(table) == 2
    table.run()
    assert values.tolist() == [[1] * 4, [2] * 4, [6] * 4]
    values[0] = 5
    table.run(1, 1)
    assert values[2].tolist() == [6] * 4
    table.run(0, 1)
    assert values[1].tolist() == [10] * 4
    table.run(2)
    for first, count in ((3, -1), (-1, 1), (0, 3), (1, -2)):
        with pytest.raises(BoundsError, match="table of 2"):
            table.run(first, count)


def test_copy_and_fill_steps_need_no_kernel(device: HostDevice) -> None:
    buffer = device.allocate(32)
    values = buffer.view(np.uint8, (32,))
    values[:16] = np.arange(16)
    copy = Step("copy", "", ((buffer.address, 16), (buffer.address + 16, 16)), (), StepKind.COPY)
    fill = Step("fill", "", ((buffer.address, 8),), (9,), StepKind.FILL)
    device.make_table([copy, fill]).run()
    assert values.tolist() == [9] * 8 + list(range(8, 16)) + list(range(16))


def test_an_index_out_of_range_is_a_bounds_error_with_the_node(device: HostDevice) -> None:
    buffer = device.allocate(256)
    ids = buffer.view(np.int32, (2,))
    ids[:] = (0, 9)
    table, result = buffer.address + 64, buffer.address + 128
    step = Step(
        "tokens",
        "embedding_f32",
        ((buffer.address, 8), (table, 32), (0, 0), (result, 64)),
        (2, 2, 4, DType.F32.number, 0),
    )
    loaded = device.make_table([scale_step(table, table, 8, 1.0, "first"), step])
    with pytest.raises(BoundsError, match="tokens: step 1") as caught:
        loaded.run()
    assert caught.value.node == "tokens"
    assert caught.value.hint
    ids[1] = 1
    loaded.run()


def test_steps_that_cannot_run_are_refused_when_the_table_is_made(device: HostDevice) -> None:
    buffer = device.allocate(64)
    with pytest.raises(BackendError, match="no kernel is called 'warp'"):
        device.make_table([Step("y", "warp", (), ())])
    with pytest.raises(BackendError, match="operands"):
        device.make_table([Step("y", "scale", ((buffer.address, 64),), ())])
    with pytest.raises(BackendError, match="null") as caught:
        device.make_table(
            [scale_step(buffer.address, buffer.address, 4, 1.0), scale_step(0, buffer.address, 4, 1.0, "second")]
        )
    assert caught.value.node == "second"


def test_a_run_can_be_interrupted_and_the_next_one_works(device: HostDevice) -> None:
    buffer = device.allocate(1 << 16)
    count = buffer.nbytes // 4
    table = device.make_table([scale_step(buffer.address, buffer.address, count, 1.0)] * 50_000)
    timer = threading.Timer(0.05, table.interrupt)
    timer.start()

    def keep_running() -> None:
        for _ in range(1000):
            table.run()

    with pytest.raises(LifecycleError, match="interrupted"):
        keep_running()
    timer.join()
    table.run(0, 10)
