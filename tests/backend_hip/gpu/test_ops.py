"""`ostinato.ops` on device memory, on the emulated GPU: every operator's samples, what a call does to the device (one launch), and whose memory it takes."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.ops import OPS
from ostinato.ir.step import StepKind
from ostinato.ir.types import DType
from tests.backend_hip.gpu.device_memory import (
    COPIES,
    ELEMENTWISE,
    MEMORY,
    WAITS,
    Call,
    OnDevice,
    counts,
    floats,
    gpu,
    opened,
    other,
    valid_samples,
)
from tests.runtime.operator_samples import check_result

__all__ = ["gpu", "other"]


# operators


def submitted(call: Call, machine: EmulatedGpu) -> tuple[int, int, int]:
    """Runs a call: the kernels, the vendor's products and the copies that it submitted."""

    def so_far() -> tuple[int, int, int]:
        copies = sum(counts(machine, *COPIES).values())
        return call.gpu.launches, machine.count("hipblasLtMatmul"), copies

    before = so_far()
    call.run()
    launched, products, copies = (now - then for now, then in zip(so_far(), before, strict=True))
    return launched, products, copies


@pytest.mark.parametrize("index", [0, 1], ids=["wave 64", "wave 32"])
def test_every_operator_equals_its_reference(index: int, machine: EmulatedGpu, rng: np.random.Generator) -> None:
    """On raw pointers of device memory; each call is one launch of one kernel or one product of the vendor's, and no copy."""
    failures, ran = [], 0
    with opened(machine.gpu.device(index)) as gpu:
        gpu.load()
        ops.scale(
            gpu.put(np.ones(1, np.float32)), factor=1.0, out=gpu.empty(1)
        )  # the first call makes what others report to
        for op in OPS:
            if op.is_view:
                continue
            for number, sample in enumerate(valid_samples(op, rng)):
                call = Call(gpu, op, sample, rng)
                launched, products, copies = submitted(call, machine)
                if products:  # the first call of the vendor's chose the algorithm, and ran it in memory of its own
                    launched, products, copies = submitted(call, machine)
                ran += 1
                if launched + products != int(any(tensor.elements for tensor in call.results)):
                    failures.append(f"{op.name}, sample {number}: {launched} launches, {products} products")
                if copies:
                    failures.append(f"{op.name}, sample {number}: {copies} copies")
                ops.check(gpu.name)
                for tensor, actual, wanted in zip(call.results, call.found(), call.expected(), strict=True):
                    if problem := check_result(op, tensor, actual, wanted):
                        failures.append(f"{op.name}, sample {number}, {sample.attrs} -> {tensor}: {problem}")
        assert ran > len(OPS)
    assert not failures, f"{len(failures)} failures of {ran}\n" + "\n".join(failures[:10])


def test_a_call_submits_one_launch_and_nothing_else(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """Counted where the driver is: no memory, no copy, no wait, on the default stream and on another one."""
    gpu.load(ELEMENTWISE)
    a, b = (gpu.put(floats(40, 30) + shift) for shift in (0, 1))
    stream = ost.Stream(gpu.name)
    for queue in (None, stream):
        out = gpu.empty(40, 30)
        ops.add(a, a, out=out, stream=queue)  # the first call makes things ready
        before = counts(machine, *COPIES, *WAITS, *MEMORY, "hipModuleLoadData")
        launches, counters = machine.count("hipModuleLaunchKernel"), gpu.device.native.counters
        for _ in range(5):
            assert ops.add(a, b, out=out, stream=queue) is out
        assert machine.count("hipModuleLaunchKernel") == launches + 5
        assert counts(machine, *COPIES, *WAITS, *MEMORY, "hipModuleLoadData") == before
        assert gpu.device.native.counters.allocations == counters.allocations
        stream.synchronize()
        assert (gpu.get(out) == 2 * floats(40, 30) + 1).all()


def test_a_call_returns_before_its_work_is_done(gpu: OnDevice, machine: EmulatedGpu, seed: int) -> None:
    gpu.load(ELEMENTWISE)
    x, out = gpu.put(floats(64)), gpu.empty(64)
    ops.scale(x, factor=2.0, out=out)
    ops.check(gpu.name)
    machine.seed(seed, eagerness=0)
    ops.scale(x, factor=2.0, out=out)
    assert machine.count("pending") == 1
    ops.check(gpu.name)
    assert machine.count("pending") == 0


def test_views_of_device_memory_walk_the_same_bytes(gpu: OnDevice) -> None:
    gpu.load("movement/movement", ELEMENTWISE)
    values = floats(6, 8)
    x = gpu.put(values)
    part = ops.transpose(x, order=(1, 0)).slice(0, 2, 6, 2)
    assert (part.device, part.address) == (gpu.name, x.address + 8)
    with pytest.raises(ost.LayoutError, match=r"no row of gfx942[\s\S]*make a dense copy of x first: ops\.contiguous"):
        ops.scale(part, factor=1.0, out=gpu.empty(2, 6))
    dense = ops.contiguous(part, out=gpu.empty(2, 6))
    assert (gpu.get(dense) == values.T[2:6:2]).all()


def test_an_operator_without_a_row_for_the_dtype_is_refused(gpu: OnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax of bf16 on a device whose rows know f32 alone: what there is is named, and nothing is routed through a temporary."""
    target = gpu.device.target

    def only_f32(row: Any) -> Any:
        return replace(
            row, accepts=lambda site: None if site.operand(0).dtype is DType.F32 else "x must be f32, found bf16"
        )

    rows = tuple(only_f32(row) if row.op == "softmax" else row for row in target.rows)
    monkeypatch.setattr(HipDevice, "target", replace(target, rows=rows))
    x = gpu.empty(4, 8, dtype="bf16")
    with pytest.raises(
        ost.BackendError, match=r"softmax: no row of gfx942 takes this call\n  softmax@hip: x must be f32"
    ):
        ops.softmax(x, out=gpu.empty(4, 8, dtype="bf16"))
    others = tuple(row for row in target.rows if row.op != "softmax")
    monkeypatch.setattr(HipDevice, "target", replace(target, rows=others))
    with pytest.raises(ost.BackendError, match="no row of gfx942 takes this call"):
        ops.softmax(gpu.empty(4, 9), out=gpu.empty(4, 9))
    assert gpu.launches == 0


# what only a kernel meets


def embed(gpu: OnDevice, ids: list[int], stream: ost.Stream | None = None) -> ost.TensorView:
    table = gpu.put(floats(8, 4))
    out = gpu.empty(len(ids), 4)
    ops.embedding(gpu.put(np.array(ids, np.int32)), table, out=out, stream=stream)
    return out


def test_work_that_is_sent_to_another_stream_reports_there(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """The first on no stream by name: what it reported to was the default stream's, and outlived the stream."""
    gpu.load("linear/embedding")
    stream = ost.hip.Stream(gpu.device.native, non_blocking=True)
    with ost.hip.ScopedDeferredHipStream(stream, 64):
        for _ in range(2):
            embed(gpu, [8])
            with pytest.raises(ost.BoundsError, match="embedding"):
                gpu.device.finish()
        embed(gpu, [-1])
        with pytest.raises(ost.BoundsError, match="embedding"):
            ops.check(gpu.name)
        embed(gpu, [1])
        ops.check(gpu.name)
    del stream
    embed(gpu, [2])
    ops.check(gpu.name)
    embed(gpu, [8])
    with pytest.raises(ost.BoundsError, match="embedding"):
        ops.check(gpu.name)
    assert not machine.problem


def test_an_index_out_of_range_is_told_by_whoever_waits(gpu: OnDevice) -> None:
    gpu.load("linear/embedding")
    stream = ost.Stream(gpu.name)
    out = embed(gpu, [1, 99, 7])  # no error yet
    stream.synchronize()  # nothing of this stream's
    with pytest.raises(ost.BoundsError, match=r"embedding: an index in device memory was out of range"):
        ops.check(gpu.name)
    ops.check(gpu.name)  # told once
    assert (gpu.get(out)[[0, 2]] == floats(8, 4)[[1, 7]]).all()
    embed(gpu, [-1], stream)
    with pytest.raises(ost.BoundsError, match="embedding"):
        stream.synchronize()
    stream.synchronize()
    embed(gpu, [8], stream)
    with pytest.raises(ost.BoundsError, match="embedding"):
        ops.check(gpu.name)
    embed(gpu, [0], stream)
    ops.check(gpu.name)
    embed(gpu, [8], stream)
    embed(gpu, [8])
    for _ in range(2):
        with pytest.raises(ost.BoundsError, match="embedding"):
            ops.check(gpu.name)
    ops.check(gpu.name)
    ops.check("cpu")


def test_a_lost_device_is_told_too(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    x, out = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=1.0, out=out)
    ops.check(gpu.name)
    machine.fail("hipModuleLaunchKernel", 1)
    with pytest.raises(ost.BackendError, match="scale: launching kernel"):
        ops.scale(x, factor=1.0, out=out)
    machine.fail("kernel", 719)
    ops.scale(x, factor=1.0, out=out)
    with pytest.raises(ost.BackendError):
        ops.check(gpu.name)
    machine.recover()


def test_a_check_touches_no_stream_of_others(gpu: OnDevice, machine: EmulatedGpu) -> None:
    """One on which another thread captures stays whole: the check lets the capture end, or is refused. One that its owner destroyed is not asked."""
    gpu.load(ELEMENTWISE, "linear/embedding")
    x, y = gpu.put(floats(8)), gpu.empty(8)
    stream = ost.Stream(gpu.name, non_blocking=True)
    theirs = _native.Stream(gpu.device.native)
    borrowed = ost.Stream.external(gpu.name, theirs.handle)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    embed(gpu, [99], borrowed)
    del theirs
    inside, checked = threading.Event(), threading.Event()
    found: list[int] = []

    def submit() -> None:
        ops.scale(x, factor=2.0, out=y, stream=stream)
        inside.set()
        checked.wait(30)
        ops.scale(y, factor=2.0, out=x, stream=stream)

    thread = threading.Thread(
        target=lambda: found.append(ost.hip.HipGraphExecutable.capture(stream.native, submit).node_count)
    )
    thread.start()
    inside.wait(30)
    try:
        with pytest.raises(ost.LifecycleError, match="another thread captures"):
            ops.check(gpu.name)
    finally:
        checked.set()
    with pytest.raises(ost.BoundsError, match="embedding"):
        ops.check(gpu.name)
    thread.join()
    ops.check(gpu.name)
    assert found == [2]


# memory


def test_operands_on_two_devices_are_refused_naming_both(gpu: OnDevice, other: OnDevice) -> None:
    x, far = gpu.put(floats(8)), other.put(floats(8))
    for operands, out, text in (
        ((x, far), gpu.empty(8), "add: a is on hip:0, b on hip:1"),
        ((floats(8), x), gpu.empty(8), "add: a is on cpu, b on hip:0"),
        ((x, x), far, "add: a is on hip:0, out on hip:1"),
        ((x, x), floats(8), "add: a is on hip:0, out on cpu"),
    ):
        with pytest.raises(ost.ConfigError, match=text):
            ops.add(*operands, out=out)
    assert gpu.launches == other.launches == 0


def test_memory_that_its_owner_freed_is_refused(gpu: OnDevice) -> None:
    gpu.load(ELEMENTWISE)
    x, y = gpu.put(floats(8)), gpu.empty(8)
    ops.scale(x, factor=1.0, out=y)
    ops.check(gpu.name)
    x.owner.free()
    with pytest.raises(ost.LifecycleError, match=r"scale\.x: the owner of the memory freed it"):
        ops.scale(x, factor=1.0, out=y)
    with pytest.raises(ost.LifecycleError, match="the owner of the memory freed it"):
        ops.scale(y, factor=1.0, out=x)


def test_numpy_does_not_reach_device_memory(gpu: OnDevice) -> None:
    x = gpu.put(floats(8))
    for reach in (x.numpy, lambda: np.asarray(x), lambda: np.array(x), lambda: float(x.numpy()[0])):
        with pytest.raises(ost.InputError, match="is on hip:0, where numpy does not reach"):
            reach()
    assert not hasattr(x, "__array_interface__")
    assert repr(x) == f"<TensorView f32[8] at {x.address:#x} on hip:0>"


def test_workspaces_are_the_callers_and_on_the_device(gpu: OnDevice) -> None:
    gpu.load("selection/penalize")
    logits, seen, prompt = np.array([[1, -2, 3]], np.float32), np.array([[0, 1]], np.int32), np.zeros(1, np.int32)
    one = np.ones(1, np.float32)
    operands = [gpu.put(array) for array in (logits, seen, prompt, prompt + 2, 2 * one, 0 * one, 0 * one)]
    out = gpu.empty(1, 3)
    needed = ops.workspace_bytes("penalize", *operands)
    types = [operand.type for operand in operands]
    assert needed == ops.workspace_bytes("penalize", *types, device="cuda:0") > 0
    with pytest.raises(ost.ConfigError, match="the tensors are on hip:0, device is cpu"):
        ops.workspace_bytes("penalize", *operands, device="cpu")

    def call(workspace: Any) -> None:
        ops.penalize(*operands, out=out, workspace=workspace)

    with pytest.raises(ost.CapacityError, match=rf"needs {needed} bytes of workspace[\s\S]*{needed} bytes on hip:0"):
        call(None)
    with pytest.raises(ost.CapacityError, match=rf"{needed} bytes are needed, {needed - 1} are given"):
        call(gpu.bytes(needed - 1))
    with pytest.raises(ost.LayoutError, match=r"penalize\.workspace: .* is not aligned to 16"):
        call(gpu.bytes(needed, skew=8))
    with pytest.raises(ost.ConfigError, match="the call is on hip:0, workspace on cpu"):
        call(np.empty(needed, np.uint8))
    with pytest.raises(ost.LayoutError, match=r"#workspace .* overlaps logits"):
        call(operands[0])
    assert gpu.launches == 0
    call(gpu.bytes(needed))
    ops.check(gpu.name)
    assert gpu.get(out).tolist() == [[0.5, -4, 3]]


def test_slices_of_an_arena_are_tensors(gpu: OnDevice, machine: EmulatedGpu) -> None:
    gpu.load(ELEMENTWISE)
    stream = ost.Stream(gpu.name)
    arena = ost.hip.HipActivationArena(stream.native, 1024)

    def slice_of(owner: Any) -> ost.TensorView:
        return ost.TensorView(owner.allocate_slice(64), 64, (16,), None, "f32", gpu.name, owner)

    x, made = gpu.put(floats(16)), counts(machine, "hipMalloc")
    y, z = slice_of(arena), slice_of(arena)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    ops.scale(y, factor=3.0, out=z, stream=stream)
    back = gpu.empty(16)
    ops.scale(z, factor=1.0, out=back, stream=stream)
    assert machine.count("hipMalloc") == made["hipMalloc"] + 1, "of the one that reads it back"
    stream.synchronize()
    assert (gpu.get(back) == 6 * floats(16)).all()
    assert (y.owner, arena.planned_bytes) == (arena, 320)


def test_weights_of_a_gpu_are_read_as_they_are_stored(gpu: OnDevice) -> None:
    weight = gpu.put(floats(32, 32))
    for refused in (lambda: ops.packed_bytes(weight), lambda: ops.pack(weight, out=gpu.bytes(1 << 13))):
        with pytest.raises(
            ost.ConfigError, match=r"linear packs none of its operands on hip:0[\s\S]*as they are stored"
        ):
            refused()
    with pytest.raises(ost.ConfigError, match="the call is on cpu, out on hip:0"):
        ops.pack(floats(32, 32), out=gpu.bytes(1 << 13))


def test_a_product_of_the_vendors_is_one_call(gpu: OnDevice, machine: EmulatedGpu, rng: np.random.Generator) -> None:
    """Where the vendor's library serves: its workspace is the caller's, its algorithm is settled before a capture, and memory must begin at its alignment."""
    gpu.load("matmul/matmul")
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float32) for _ in range(2))
    on_a, on_b, out = gpu.put(a), gpu.put(b), gpu.empty(64, 64)
    needed = ops.workspace_bytes("matmul", on_a, on_b, level="vendor")
    workspace, stream = gpu.bytes(max(needed, 1)), ost.Stream(gpu.name)

    def submit(first: ost.TensorView = on_a, target: ost.TensorView = out, level: str = "vendor") -> None:
        ops.matmul(first, on_b, out=target, workspace=workspace, level=level, stream=stream)

    submit()
    before = counts(machine, *COPIES, *WAITS, *MEMORY)
    products = machine.count("hipblasLtMatmul")
    submit()
    assert machine.count("hipblasLtMatmul") == products + 1
    assert counts(machine, *COPIES, *WAITS, *MEMORY) == before
    graph = ost.hip.HipGraphExecutable.capture(stream.native, submit)
    out.owner.fill(0xFF)
    graph.launch(stream.native)
    stream.synchronize()
    assert (gpu.get(out) == a @ b).all()
    skewed = gpu.put(a, skew=4)
    with pytest.raises(ost.BackendError, match=r"matmul@hip_vendor: a must lie in runs of 4 elements"):
        submit(skewed)
    with pytest.raises(ost.LayoutError, match="writes memory that is aligned to 16 bytes"):
        submit(target=gpu.empty(64, 64, skew=4))
    submit(skewed, level="readable")
    stream.synchronize()
    assert (gpu.get(out) == a @ b).all()
    assert gpu.device.target.ranked("matmul")[0].kind is StepKind.GEMM
