"""Vendor GEMM through the table: layouts, types, batches, bias, algorithms with and without a workspace, and handles that are made before a capture."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.errors import BackendError, ConfigError, LifecycleError
from ostinato.ir.types import Array
from tests.backend_hip.gpu.machine import Memory

TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def column_major(values: Array) -> Array:
    """The bytes of a (batched) matrix by columns."""
    return np.ascontiguousarray(np.swapaxes(values, -1, -2))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_product_equals_numpy_s(
    kind: str, transpose_a: bool, transpose_b: bool, batches: int, device: _native.GpuDevice, rng: np.random.Generator
) -> None:
    m, n, k = 5, 4, 6
    a = rng.integers(-3, 4, (batches, k, m) if transpose_a else (batches, m, k)).astype(TYPES[kind])
    b = rng.integers(-3, 4, (batches, n, k) if transpose_b else (batches, k, n)).astype(TYPES[kind])
    bias = rng.integers(-3, 4, m).astype(np.float32)
    memory = [
        Memory(device, values)
        for values in (column_major(a), column_major(b), np.zeros((batches, n, m), np.float32), bias)
    ]
    problem = _native.GemmProblem(
        m,
        n,
        k,
        (kind, kind, "f32", "f32"),
        (a.shape[1], b.shape[1], m, m),
        transpose_a,
        transpose_b,
        bias="f32",
        batches=batches,
        strides=(m * k, k * n, m * n, m * n),
    )
    left, right = (np.swapaxes(x, -1, -2) if flag else x for x, flag in ((a, transpose_a), (b, transpose_b)))
    expected = 0.5 * (left.astype(np.float32) @ right.astype(np.float32)) + bias[None, :, None]
    workspace = device.allocate(65536)
    for choice in _native.gemm_choices(device, problem, 65536):
        memory[2].write(np.full((batches, n, m), np.nan, np.float32))
        _native.gemm(
            device,
            problem,
            choice,
            memory[0].address,
            memory[1].address,
            memory[2].address,
            memory[2].address,
            bias=memory[3].address,
            alpha=0.5,
            workspace=workspace,
            workspace_bytes=65536,
        )
        assert (np.swapaxes(memory[2].read(), -1, -2) == expected).all()
    device.free(workspace)


SQUARE = _native.GemmProblem(4, 4, 4, ("f32", "f32", "f32", "f32"), (4, 4, 4, 4))


def operands(device: _native.GpuDevice, rng: np.random.Generator) -> list[Memory]:
    return [Memory(device, rng.standard_normal((4, 4)).astype(np.float32)) for _ in range(3)]


def multiply(
    device: _native.GpuDevice,
    choice: _native.GemmChoice,
    memory: list[Memory],
    workspace: int = 0,
    nbytes: int = 0,
    stream: _native.Stream | None = None,
) -> None:
    a, b, d = (one.address for one in memory)
    _native.gemm(device, SQUARE, choice, a, b, d, d, workspace=workspace, workspace_bytes=nbytes, stream=stream)


def test_the_allowed_workspace_decides_the_choices(device: _native.GpuDevice) -> None:
    sizes = {
        limit: [choice.workspace_bytes for choice in _native.gemm_choices(device, SQUARE, limit)]
        for limit in (0, 4096, 1 << 20)
    }
    assert sizes == {0: [0], 4096: [4096, 0], 1 << 20: [65536, 4096, 0]}
    assert len(_native.gemm_choices(device, SQUARE, 1 << 20, wanted=1)) == 1


def test_a_choice_is_data_that_can_be_kept_and_made_again(device: _native.GpuDevice, rng: np.random.Generator) -> None:
    memory = operands(device, rng)
    chosen = _native.gemm_choices(device, SQUARE, 0)[0]
    again = _native.GemmChoice(chosen.algorithm, chosen.workspace_bytes)
    multiply(device, chosen, memory)
    first = memory[2].read()
    multiply(device, again, memory)
    assert (memory[2].read() == first).all()


def test_a_workspace_smaller_than_the_choice_s_is_refused(device: _native.GpuDevice, rng: np.random.Generator) -> None:
    memory, choice = operands(device, rng), _native.gemm_choices(device, SQUARE, 4096)[0]
    with pytest.raises(ConfigError, match="workspace of 4096 bytes, found 100"):
        multiply(device, choice, memory, device.index, 100)


def test_a_workspace_outside_of_memory_is_seen(
    machine: EmulatedGpu, device: _native.GpuDevice, rng: np.random.Generator
) -> None:
    memory, choice = operands(device, rng), _native.gemm_choices(device, SQUARE, 4096)[0]
    small = device.allocate(64)
    multiply(device, choice, memory, small, 4096)
    with pytest.raises(BackendError, match="IllegalAddress"):
        device.synchronize()
    assert "outside of live memory" in machine.problem
    machine.recover()
    device.free(small)


def test_extents_of_nothing_are_refused(device: _native.GpuDevice) -> None:
    with pytest.raises(ConfigError, match="positive extents"):
        _native.gemm_choices(device, _native.GemmProblem(0, 4, 4, ("f32",) * 4, (1, 4, 1, 1)), 0)
    with pytest.raises(ConfigError, match="no type i64"):
        _native.GemmProblem(4, 4, 4, ("i64", "f32", "f32", "f32"), (4, 4, 4, 4))
    with pytest.raises(BackendError, match="invalid value"):
        _native.gemm_choices(device, _native.GemmProblem(4, 4, 4, ("f32", "f32", "f32", "f32"), (3, 4, 4, 4)), 0)


def in_new_thread(work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def test_handles_belong_to_a_thread_and_a_device_and_are_used_again(
    machine: EmulatedGpu, device: _native.GpuDevice
) -> None:
    seen: list[tuple[bool, bool]] = []

    def work() -> None:
        before = _native.vendor_is_warm(device)
        _native.warm_vendor(device)
        _native.warm_vendor(device)
        seen.append((before, _native.vendor_is_warm(device)))

    in_new_thread(work)
    made = machine.count("hipblasLtCreate")
    in_new_thread(work)
    assert seen == [(False, True)] * 2
    assert machine.count("hipblasLtCreate") == made, "the ended thread's handle"


def test_a_capture_needs_a_warm_handle_and_an_algorithm_that_ran(
    machine: EmulatedGpu, device: _native.GpuDevice, rng: np.random.Generator
) -> None:
    memory, choice = operands(device, rng), _native.gemm_choices(device, SQUARE, 0)[0]

    def work() -> None:
        stream = _native.Stream(device)
        handles = machine.count("hipblasLtCreate")
        with pytest.raises(LifecycleError, match="did not run before"):
            _native.HipGraphExecutable.capture(stream, lambda: multiply(device, choice, memory, stream=stream))
        with pytest.raises(LifecycleError, match="algorithms are chosen before"):
            _native.HipGraphExecutable.capture(stream, lambda: _native.gemm_choices(device, SQUARE, 0))
        assert machine.count("hipblasLtCreate") == handles
        multiply(device, choice, memory, stream=stream)
        stream.synchronize()
        eager = memory[2].read()
        graph = _native.HipGraphExecutable.capture(
            stream, lambda: multiply(device, choice, memory, stream=stream), record=True
        )
        memory[2].write(np.zeros((4, 4), np.float32))
        graph.launch(stream)
        stream.synchronize()
        assert (memory[2].read() == eager).all()
        assert [(node.type, node.arguments) for node in graph.nodes] == [("kernel", None)], (
            "the vendor's arguments are its own"
        )

    in_new_thread(work)


def test_an_algorithm_s_kernels_are_as_many_nodes(
    device: _native.GpuDevice, stream: _native.Stream, rng: np.random.Generator
) -> None:
    memory, workspace = operands(device, rng), device.allocate(65536)
    counts = []
    for choice in _native.gemm_choices(device, SQUARE, 65536):
        multiply(device, choice, memory, workspace, 65536, stream)
        stream.synchronize()
        submit = functools.partial(multiply, device, choice, memory, workspace, 65536, stream)
        counts.append(_native.HipGraphExecutable.capture(stream, submit).node_count)
    assert counts == [1, 2, 1]
    device.free(workspace)


def test_plans_are_kept_by_the_thread_and_counted_until_cleared(
    device: _native.GpuDevice, rng: np.random.Generator
) -> None:
    def work() -> None:
        memory = operands(device, rng)
        assert _native.plan_cache() == (0, 0, 0)
        choice = _native.gemm_choices(device, SQUARE, 0)[0]
        multiply(device, choice, memory)
        multiply(device, choice, memory)
        other = _native.GemmProblem(4, 4, 4, ("f32", "f32", "f32", "f32"), (4, 4, 4, 4), True)
        _native.gemm_choices(device, other, 0)
        assert _native.plan_cache() == (2, 2, 2)
        _native.clear_plan_cache()
        assert _native.plan_cache() == (0, 0, 0)

    in_new_thread(work)
