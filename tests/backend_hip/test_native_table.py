"""Device, step table and thread pool through `_native`: checks made once, statuses with their step, interruption, threads, forks."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip._native import Device, NativeError, Table

Step = tuple[int, int, int, Sequence[tuple[int, int]], Sequence[int | float], Sequence[int], Sequence[int]]

LAUNCH, GEMM, COPY, FILL = 0, 1, 2, 3
INVALID, OUT_OF_RANGE, LIFECYCLE, BACKEND, CAPACITY, INTERRUPTED, NOT_FOUND = 1, 2, 3, 4, 5, 6, 7


def operand(array: npt.NDArray[np.generic]) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def step(
    kind: int,
    operands: Sequence[tuple[int, int]],
    params: Sequence[int | float] = (),
    *,
    kernel: int = 0,
    lane: int = 0,
    waits: Sequence[int] = (),
    signals: Sequence[int] = (),
) -> Step:
    return (kind, kernel, lane, list(operands), list(params), list(waits), list(signals))


def embedding(
    device: Device, ids: npt.NDArray[np.int32], table: npt.NDArray[np.float32], out: npt.NDArray[np.float32]
) -> Step:
    operands = [operand(ids), operand(table), (0, 0), operand(out)]
    return step(LAUNCH, operands, [len(ids), *table.shape, 0, 0], kernel=device.kernel("embedding_f32"))


def failure(action: Callable[[], object]) -> NativeError:
    with pytest.raises(NativeError) as caught:
        action()
    return caught.value


@pytest.fixture
def device() -> Device:
    return Device(2)


def test_module_facts() -> None:
    assert _native.abi_version() == 2
    units = _native.isa_available()
    assert units[0] == "portable"
    assert len(set(units)) == len(units)
    numbers = _native.dtype_numbers()
    assert numbers["f32"] == 0
    assert len(set(numbers.values())) == len(numbers)
    for name, (operands, params, optional) in _native.kernel_names().items():
        assert name
        assert 0 < operands <= 32
        assert params >= 0
        assert optional < 1 << operands


def test_every_unit_has_the_same_kernels() -> None:
    for unit in _native.isa_available():
        device = Device(1, unit)
        assert device.isa == unit
        numbers = {device.kernel(name) for name in _native.kernel_names()}
        assert len(numbers) == len(_native.kernel_names())


def test_device_facts() -> None:
    device = Device()
    assert 1 <= device.threads <= (os.cpu_count() or 1)
    assert device.isa == _native.isa_available()[-1]
    assert device.available.split(",") == _native.isa_available()
    assert device.cpu
    assert Device(7).threads == 7


@pytest.mark.parametrize(
    ("threads", "isa", "status"), [(1, "sse9", NOT_FOUND), (1, "", NOT_FOUND), (5000, "auto", INVALID)]
)
def test_device_refuses(threads: int, isa: str, status: int) -> None:
    error = failure(lambda: Device(threads, isa))
    assert error.status == status
    assert error.step == -1


def test_an_unknown_kernel_is_named(device: Device) -> None:
    error = failure(lambda: device.kernel("linear_q2_k"))
    assert error.status == NOT_FOUND
    assert "linear_q2_k" in error.text


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 1 << 20, (3 << 20) + 5])
@pytest.mark.parametrize("alignment", [1, 64, 256, 4096, 1 << 16])
def test_memory_is_zeroed_and_aligned(device: Device, size: int, alignment: int) -> None:
    address = device.allocate(size, alignment)
    assert address % alignment == 0
    assert ctypes.string_at(address, size) == bytes(size)
    ctypes.memset(address, 1, size)
    device.free(address)
    assert failure(lambda: device.free(address)).status == INVALID


def test_memory_refuses(device: Device) -> None:
    assert failure(lambda: device.allocate(8, 3)).status == INVALID
    assert failure(lambda: device.allocate(8, 0)).status == INVALID
    assert failure(lambda: device.allocate(1 << 62, 64)).status == CAPACITY
    assert failure(lambda: device.allocate((1 << 64) - 1, 64)).status == CAPACITY
    assert failure(lambda: device.free(4096)).status == INVALID
    device.free(0)


def test_copy_and_fill(device: Device, rng: np.random.Generator) -> None:
    for size in (0, 1, 1000, (1 << 20) + 3, 5 << 20):
        source = rng.integers(0, 256, size, np.uint8)
        target = np.zeros(size + 64, np.uint8)
        Table(device, [step(COPY, [operand(source), (target.ctypes.data, size)])]).run()
        assert np.array_equal(target[:size], source)
        assert not target[size:].any()
        Table(device, [step(FILL, [(target.ctypes.data, size)], [0x5A])]).run()
        assert (target[:size] == 0x5A).all()
        assert not target[size:].any()


def test_the_steps_are_copied(device: Device) -> None:
    target = np.zeros(16, np.uint8)
    operands, params = [operand(target)], [3]
    table = Table(device, [(FILL, 0, 0, operands, params, [], [])])
    operands.clear()
    params[0] = 9
    table.run()
    assert (target == 3).all()
    assert len(table) == 1


def test_ranges_of_steps(device: Device) -> None:
    target = np.zeros(4, np.uint8)
    table = Table(device, [step(FILL, [operand(target[i : i + 1])], [i + 1]) for i in range(4)])
    table.run(1, 2)
    assert target.tolist() == [0, 2, 3, 0]
    table.run(3)
    assert target.tolist() == [0, 2, 3, 4]
    table.run(4)
    table.run(0, 0)
    for first, count in [(0, 5), (5, 0), (3, 2), (5, -1)]:
        error = failure(lambda first=first, count=count: table.run(first, count))  # type: ignore[misc]
        assert (error.status, error.step) == (INVALID, -1)
    assert target.tolist() == [0, 2, 3, 4]
    Table(device, []).run()


def test_refused_tables(device: Device) -> None:
    a, b = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    whole, other = operand(a), operand(b)
    kernel = device.kernel("embedding_f32")
    bad: list[tuple[str, Step, int]] = [
        ("kernel number", step(LAUNCH, [whole], kernel=10_000), NOT_FOUND),
        ("kind", step(GEMM, [whole]), INVALID),
        ("kind", step(99, [whole]), INVALID),
        ("lane", step(FILL, [whole], [0], lane=1), INVALID),
        ("operands", step(FILL, [whole, other], [0]), INVALID),
        ("params", step(FILL, [whole]), INVALID),
        ("operands", step(LAUNCH, [whole], kernel=kernel), INVALID),
        ("null", step(FILL, [(0, 8)], [0]), INVALID),
        ("null", step(LAUNCH, [whole, (0, 0), (0, 0), other], [0] * 5, kernel=kernel), INVALID),
        ("bytes", step(COPY, [whole, (other[0], 63)]), INVALID),
        ("overlap", step(COPY, [(whole[0], 32), (whole[0] + 8, 32)]), INVALID),
        ("cannot have", step(FILL, [(2**64 - 64, 128)], [0]), INVALID),
        ("event", step(FILL, [whole], [0], waits=[4]), INVALID),
    ]
    for word, wrong, status in bad:
        error = failure(lambda wrong=wrong: Table(device, [step(FILL, [whole], [1]), wrong]))  # type: ignore[misc]
        assert (error.status, error.step) == (status, 1), word
        assert word in error.text
        assert "step 1" in error.text
    assert not a.any()


def test_python_values_are_not_converted(device: Device) -> None:
    target = np.zeros(8, np.uint8)
    for params in (["1"], [None], [np.float32(1)]):
        with pytest.raises(TypeError):
            Table(device, [(FILL, 0, 0, [operand(target)], params, [], [])])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        Table(device, [("fill", 0, 0, [], [], [], [])])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a step is"):
        Table(device, [(FILL, 0, 0, [], [], [])])  # type: ignore[list-item]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Table(device, [(-1, 0, 0, [], [], [], [])])


def test_events_in_order_are_fine(device: Device) -> None:
    target = np.zeros(8, np.uint8)
    first = step(FILL, [operand(target)], [1], signals=[7])
    second = step(FILL, [operand(target)], [2], waits=[7])
    Table(device, [first, second]).run()
    assert (target == 2).all()
    assert failure(lambda: Table(device, [second, first])).status == INVALID


def test_out_of_range_is_reported_after_the_run(device: Device) -> None:
    table_rows = np.ones((4, 2), np.float32)
    ids, out = np.array([0, 9], np.int32), np.full((2, 2), 7, np.float32)
    done = np.zeros(4, np.uint8)
    again = np.array([-5], np.int32)
    steps = [
        step(FILL, [operand(done[:2])], [1]),
        embedding(device, ids, table_rows, out),
        embedding(device, again, table_rows, out[1:]),
        step(FILL, [operand(done[2:])], [1]),
    ]
    table = Table(device, steps)
    error = failure(table.run)
    assert (error.status, error.step) == (OUT_OF_RANGE, 1)
    assert "step 1 (embedding_f32)" in error.text
    assert done.all()
    assert out.tolist() == [[1, 1], [0, 0]]
    ids[1], again[0] = 3, 0
    table.run()  # the status of one run is not that of the next


def test_what_a_kernel_refuses_stops_the_run(device: Device) -> None:
    table_rows, ids, out = np.ones((4, 2), np.float32), np.zeros(2, np.int32), np.zeros((2, 2), np.float32)
    done = np.zeros(4, np.uint8)
    wrong = list(embedding(device, ids, table_rows, out))
    wrong[4] = [2, 4, 2, 99, 0]
    table = Table(device, [tuple(wrong), step(FILL, [operand(done)], [1])])  # type: ignore[list-item]
    error = failure(table.run)
    assert (error.status, error.step) == (INVALID, 0)
    assert not done.any()


def test_interrupt_before_a_run_stops_it_once(device: Device) -> None:
    target = np.zeros(8, np.uint8)
    table = Table(device, [step(FILL, [operand(target)], [1])])
    table.interrupt()
    error = failure(table.run)
    assert (error.status, error.step) == (INTERRUPTED, 0)
    assert not target.any()
    table.run()
    assert target.all()


def long_table(device: Device, keep: list[npt.NDArray[np.uint8]], steps: int = 200_000) -> Table:
    keep.append(np.zeros(1 << 16, np.uint8))
    return Table(device, [step(FILL, [operand(keep[0])], [1])] * steps)


def test_interrupt_from_another_thread(device: Device) -> None:
    keep: list[npt.NDArray[np.uint8]] = []
    table = long_table(device, keep)
    errors: list[NativeError] = []
    worker = threading.Thread(target=lambda: errors.append(failure(table.run)))
    worker.start()
    time.sleep(0.02)
    table.interrupt()
    worker.join()
    assert errors[0].status == INTERRUPTED


def test_control_c_ends_a_run(device: Device) -> None:
    keep: list[npt.NDArray[np.uint8]] = []
    table = long_table(device, keep, 400_000)

    def run_for_long() -> None:
        for _ in range(100):
            table.run()

    timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_for_long()
    timer.join()
    table.run(0, 1)


def test_runs_from_many_threads_take_turns(device: Device, rng: np.random.Generator) -> None:
    source = rng.integers(0, 256, 3 << 20, np.uint8)
    targets = [np.zeros_like(source) for _ in range(4)]
    tables = [Table(device, [step(COPY, [operand(source), operand(target)])]) for target in targets]
    workers = [threading.Thread(target=lambda t=table: [t.run() for _ in range(20)]) for table in tables]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(target, source) for target in targets)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_many_small_jobs_and_sleeps(threads: int) -> None:
    """Every chunk of every job is done exactly once, whether the workers spin, yield or sleep when it comes."""
    device = Device(threads)
    rows, width = 64, 16
    table_rows = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    ids, out = np.zeros(33, np.int32), np.zeros((33, width), np.float32)
    table = Table(device, [embedding(device, ids, table_rows, out)])
    for turn in range(400):
        ids[:] = (np.arange(33) * 7 + turn) % rows
        out.fill(-1)
        table.run()
        assert np.array_equal(out, table_rows[ids])
        if turn % 100 == 0:
            time.sleep(0.01)


def test_a_forked_child_has_its_own_workers(device: Device) -> None:
    source, target = np.arange(3 << 20, dtype=np.uint8), np.zeros(3 << 20, np.uint8)
    table = Table(device, [step(COPY, [operand(source), operand(target)])])
    table.run()
    target.fill(0)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        table.run()
        table.run()
        os._exit(0 if np.array_equal(source, target) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not target.any()
    table.run()
    assert np.array_equal(source, target)


def test_a_table_keeps_its_device() -> None:
    target = np.zeros(2 << 20, np.uint8)
    table = Table(Device(3), [step(FILL, [operand(target)], [1])])
    table.run()
    assert target.all()


def test_errors_are_values() -> None:
    error = NativeError(3, "text", 4)
    assert (error.status, error.text, error.step, str(error)) == (3, "text", 4, "text")
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.text, again.step) == (3, "text", 4)
    assert NativeError(1, "x").step == -1
    assert isinstance(error, RuntimeError)
