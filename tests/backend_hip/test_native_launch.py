"""A launch on its own: the same checks and bits as a table of one step, on operands that change from call to call."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip._native import Device, Launch, NativeError, Table
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.errors import BackendError, BoundsError
from ostinato.ir.step import KernelCall
from ostinato.ir.types import Array
from tests.backend_hip.test_native_process import run_program

INVALID, OUT_OF_RANGE = 1, 2
Operands = tuple[tuple[int, int], ...]


def place(*arrays: Array | None) -> Operands:
    return tuple((0, 0) if array is None else (array.ctypes.data, array.nbytes) for array in arrays)


@pytest.fixture
def device() -> Device:
    return Device(2)


def scale(device: Device, count: int, factor: float) -> Launch:
    return Launch(device, device.kernel("scale"), (1, count, factor, 0))


def test_one_launch_serves_many_operands(device: Device) -> None:
    double = scale(device, 6, 2.0)
    before = device.launches
    for number in range(3):
        x, y = np.full(6, number, np.float32), np.zeros(6, np.float32)
        double.run(place(x, None, y))
        assert (y == 2 * number).all()
    assert device.launches - before == 3


def test_a_launch_gives_the_bits_of_a_table(device: Device) -> None:
    rng = np.random.default_rng(11)
    x, gain = rng.standard_normal((37, 129)).astype(np.float32), np.ones(129, np.float32)
    alone, stepped = np.empty_like(x), np.empty_like(x)
    kernel, params = device.kernel("rms_norm"), (37, 129, 1e-6, 0, 0)
    Launch(device, kernel, params).run(place(x, gain, None, alone))
    Table(device, [(0, kernel, 0, place(x, gain, None, stepped), params, (), ())]).run()
    assert alone.tobytes() == stepped.tobytes()


def test_operands_that_cannot_be_are_refused_before_anything_is_written(device: Device) -> None:
    double = scale(device, 6, 2.0)
    x, y = np.ones(6, np.float32), np.zeros(6, np.float32)
    for operands, text in (
        (place(x, y), "2 operands and 4 params given, 3 and 4 expected"),
        (place(None, None, y), "operand 0 is null and not optional"),
        (((x.ctypes.data, 2**64 - 8), (0, 0), *place(y)), "cannot have"),
        (place(x[:5], None, y), "fewer bytes than its extents need"),
        (place(x, None, y[:5]), "fewer bytes than its extents need"),
    ):
        with pytest.raises(NativeError, match=text) as caught:
            double.run(operands)
        assert caught.value.status == INVALID
    malformed: list[tuple[Any, type[Exception]]] = [
        ((1, 2, 3), ValueError),
        (((1,), (0, 0), (1, 2)), ValueError),
        (((1, 2, 3), (0, 0), (1, 2)), ValueError),
        (((1, -1), (0, 0), (1, 2)), OverflowError),
        (((1.5, 4), (0, 0), (1, 2)), TypeError),
        (((0, 0),) * 33, ValueError),
        ([(0, 0)] * 3, TypeError),
    ]
    for wrong, family in malformed:
        with pytest.raises(family):
            double.run(wrong)
    assert not y.any()
    with pytest.raises(NativeError, match="kernel number"):
        Launch(device, 10_000, ()).run(())


def test_an_index_out_of_range_is_reported_and_stays_in_bounds(device: Device) -> None:
    ids, table, y = np.array([0, 7], np.int32), np.ones((3, 4), np.float32), np.full((2, 4), 9, np.float32)
    lookup = Launch(device, device.kernel("embedding_f32"), (2, 3, 4, 0, 0))
    with pytest.raises(NativeError) as caught:
        lookup.run(place(ids, table, None, y))
    assert caught.value.status == OUT_OF_RANGE
    ids[1] = 2
    lookup.run(place(ids, table, None, y))
    assert (y == 1).all()


def test_a_launch_keeps_its_device() -> None:
    double = scale(Device(2), 3, 2.0)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    double.run(place(x, None, y))
    assert y.tolist() == [2, 2, 2]


def test_threads_may_share_a_launch(device: Device) -> None:
    double, wrong = scale(device, 1 << 12, 2.0), []

    def work(number: int) -> None:
        x, y = np.full(1 << 12, number, np.float32), np.zeros(1 << 12, np.float32)
        for _ in range(200):
            y[:] = 0
            double.run(place(x, None, y))
            if not (y == 2 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_handler_that_launches_within_a_run_of_its_device_is_refused() -> None:
    out = run_program("""
        copy = _native.Launch(device, device.kernel("silu"), (0, 0, 0))
        def handler(*_):
            global done
            done = True
            try:
                copy.run(((memory, 0), (0, 0), (memory, 0)))
            except _native.NativeError as error:
                print(error.status, error.text)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        fill(5000).run()
        assert done
    """)
    assert out.startswith("3 a run on this device is in progress on this thread")


def test_the_device_names_the_node_of_a_launch() -> None:
    host = HostDevice(threads=1)
    with pytest.raises(BackendError, match="warp"):
        host.make_launch(KernelCall("y", "warp", (), 0))
    with pytest.raises(BackendError, match=r"^y: ") as caught:
        host.make_launch(KernelCall("y", "silu", (1, 1, 0), 0)).run(())
    assert caught.value.node == "y"
    ids, table, y = np.array([-1], np.int32), np.ones((3, 4), np.float32), np.zeros((1, 4), np.float32)
    with pytest.raises(BoundsError, match=r"^embed: .*out of range"):
        host.make_launch(KernelCall("embed", "embedding_f32", (1, 3, 4, 0, 0), 4)).run(place(ids, table, None, y))
