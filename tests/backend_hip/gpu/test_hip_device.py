"""A GPU as the runtime uses it: memory, windows, tables, graphs, launches and weights, on the emulated machine at both waves."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip import _native, hip_kernels, hip_weights
from ostinato.backend_hip import open as opening
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_memory import HipBuffer
from ostinato.backend_hip.open import open_hip
from ostinato.ir.errors import (
    BackendError,
    BoundsError,
    CapacityError,
    ConfigError,
    DeviceUnavailable,
    DTypeError,
    LayoutError,
    LifecycleError,
)
from ostinato.ir.step import KernelCall, Launch, StepKind
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import PackSource
from ostinato.runtime.device import Device, ResolvedStep
from tests.backend_hip.gpu.child import run_child
from tests.backend_hip.gpu.machine import CACHE
from tests.backend_hip.gpu.programs import decoder_on
from tests.kernels.test_hip_plans import CONFIGS

HOST = HostDevice(threads=1)
ONE_BLOCK = Launch((1, 1, 1), (256, 1, 1))
ROWS = 4


@pytest.fixture(params=[0, 1], ids=["wave64", "wave32"])
def gpu(request: pytest.FixtureRequest, machine: EmulatedGpu) -> Iterator[HipDevice]:
    yield HipDevice(machine.gpu.device(request.param), cache=CodeCache(CACHE / "code"), host=HOST)
    gc.collect()


def add(a: int, b: int, y: int, node: str = "sum") -> ResolvedStep:
    """64 floats of y are those of a and b together."""
    operands = ((a, 256), (b, 256), (0, 0), (y, 256))
    return ResolvedStep(node, StepKind.LAUNCH, "elementwise/elementwise:add<f32>", operands, (1, 64), launch=ONE_BLOCK)


def look_up(node: str) -> KernelCall:
    """Two rows of a table of `ROWS` by ids, which may be out of range: ids, table, count, result."""
    return KernelCall(node, "linear/embedding:embedding<f32,f32>", (2, 1, ROWS, 8), 4, launch=ONE_BLOCK)


def floats(gpu: HipDevice, values: Array) -> HipBuffer:
    buffer = gpu.allocate(values.nbytes)
    buffer.write(values)
    return buffer


def test_it_is_a_device_of_the_runtime(gpu: HipDevice) -> None:
    device: Device = gpu
    index = gpu.native.index
    assert device.name == device.target.device == f"hip:{index}"
    assert device.isa == device.target.name == ("gfx942", "gfx1100")[index]
    assert device.captures
    assert device.threads == 1
    with pytest.raises(LifecycleError, match="open one in the other process"):
        pickle.dumps(gpu)


# memory


def test_memory_is_zeroed_unless_it_need_not_be(gpu: HipDevice) -> None:
    assert not gpu.allocate(1000).read(np.uint8, (1000,)).any()
    assert gpu.allocate(1001, zeroed=False).read(np.uint8, (1001,)).all(), "as the driver gave it: poison"


def test_memory_is_written_read_and_filled_in_place(gpu: HipDevice) -> None:
    buffer, values = gpu.allocate(64), np.arange(6, dtype=np.int16).reshape(2, 3)
    buffer.write(values, 8)
    assert (buffer.read(np.int16, (3, 2), 8).ravel() == range(6)).all()
    buffer.fill(0x7F, 10, 2)
    assert buffer.read(np.uint8, (6,), 8).tolist() == [0, 0, 0x7F, 0x7F, 2, 0]
    buffer.fill(1, 60)
    assert buffer.read(np.uint8, (5,), 59).tolist() == [0, 1, 1, 1, 1]
    for wrong in (
        lambda: buffer.read(np.uint8, (65,)),
        lambda: buffer.read(np.uint8, (1,), -1),
        lambda: buffer.write(values, 56),
        lambda: buffer.fill(0, 60, 5),
    ):
        with pytest.raises(BoundsError, match="outside of a buffer of 64"):
            wrong()
    with pytest.raises(LayoutError, match="contiguous"):
        buffer.write(np.arange(8)[::2])


def test_a_freed_buffer_refuses_everything(gpu: HipDevice) -> None:
    before = gpu.native.counters.current_bytes
    buffer = gpu.allocate(64)
    buffer.free()
    buffer.free()
    assert gpu.native.counters.current_bytes == before
    for use in (lambda: buffer.read(np.uint8, (1,)), lambda: buffer.fill(0), buffer.window):
        with pytest.raises(LifecycleError, match="was freed"):
            use()
    with pytest.raises(LifecycleError, match="pickled"):
        pickle.dumps(buffer)


def test_no_bytes_have_an_address_and_nothing_to_read(gpu: HipDevice) -> None:
    buffer = gpu.allocate(0)
    assert buffer.address
    assert buffer.read(np.float32, (0, 3)).shape == (0, 3)
    window = buffer.window()
    window.upload(0, 0)
    window.download(0, 0)
    with pytest.raises(BoundsError):
        buffer.read(np.uint8, (1,))


@pytest.mark.parametrize(("nbytes", "alignment"), [(-1, 256), (8, 0), (8, 24), (8, 512)])
def test_a_size_or_alignment_that_cannot_be_is_refused(nbytes: int, alignment: int, gpu: HipDevice) -> None:
    with pytest.raises(ConfigError, match=r"a power of two up to 256"):
        gpu.allocate(nbytes, alignment)


def test_no_room_says_how_much_was_asked_for_and_is_free(machine: EmulatedGpu, gpu: HipDevice) -> None:
    machine.capacity(gpu.native.index, 1 << 20)
    try:
        with pytest.raises(CapacityError, match=r"no room for 2097152 bytes: [0-9]+ of 1048576 are free") as caught:
            gpu.allocate(2 << 20)
        assert caught.value.hint is not None
    finally:
        machine.capacity(gpu.native.index, 256 << 20)


def test_a_window_goes_in_the_order_of_its_stream(gpu: HipDevice) -> None:
    stream, buffer = gpu.open_stream(), gpu.allocate(768)
    window = buffer.window(stream)
    view = window.view(np.float32, (64,))
    view[:] = np.arange(64)
    table = gpu.make_table([add(buffer.address, buffer.address, buffer.address + 512)], stream)
    for factor in (2, 6):
        window.upload(0, 256)
        table.enqueue()
        window.download(512, 768)
        table.finish()
        assert (window.view(np.float32, (64,), 512) == np.arange(64) * factor).all()
        view *= 3
    with pytest.raises(BoundsError):
        window.upload(512, 1024)
    with pytest.raises(BoundsError):
        window.view(np.float64, (97,))


def test_a_view_of_a_window_outlives_everything(gpu: HipDevice) -> None:
    view = gpu.allocate(16).window().view(np.int32, (4,))
    gc.collect()
    view[:] = 7
    assert view.tolist() == [7] * 4


def test_a_stream_of_something_else_is_refused(machine: EmulatedGpu, gpu: HipDevice) -> None:
    other = _native.Stream(machine.gpu.device(1 - gpu.native.index))
    for wrong in (other, _native.Stream(None), "stream"):
        with pytest.raises(ConfigError, match="expected a stream of device"):
            gpu.make_table([], wrong)


# tables and graphs


def test_a_table_runs_is_captured_and_replays(gpu: HipDevice) -> None:
    stream, x = gpu.open_stream(), floats(gpu, np.ones(64, np.float32))
    y = gpu.allocate(512)
    steps = [
        add(x.address, x.address, y.address, "twice"),
        ResolvedStep("keep", StepKind.COPY, "", ((y.address, 256), (y.address + 256, 256)), ()),
        ResolvedStep("clear", StepKind.FILL, "", ((y.address, 256),), (0,)),
    ]
    table = gpu.make_table(steps, stream)
    assert len(table) == 3
    table.run()
    assert (y.read(np.float32, (128,)) == np.repeat([0, 2], 64)).all()
    table.run(0, 1)
    assert (y.read(np.float32, (64,)) == 2).all()
    graph = table.capture()
    assert (graph.node_count, graph.node_counts) == (3, (1, 1, 1))
    assert [node.type for node in graph.nodes] == ["kernel", "copy", "fill"]
    assert graph.edges == [(0, 1), (1, 2)]
    assert graph.functions[0] == graph.nodes[0].function
    assert graph.functions[1:] == (0, 0)
    assert graph.status == table.status
    x.fill(0)
    del table
    graph.enqueue()
    stream.synchronize()
    assert not y.read(np.float32, (128,)).any()
    graph.release()
    with pytest.raises(LifecycleError, match="undefined"):
        graph.enqueue()


def test_the_default_stream_is_not_captured(gpu: HipDevice) -> None:
    x = floats(gpu, np.ones(64, np.float32))
    table = gpu.make_table([add(x.address, x.address, x.address)])
    table.run()
    assert (x.read(np.float32, (64,)) == 2).all()
    with pytest.raises(BackendError, match="default stream cannot be captured"):
        table.capture()


WRONG_STEPS = {
    "a lane": (ResolvedStep("n", StepKind.FILL, "", ((256, 8),), (0,), lane=1), "one lane"),
    "an event": (ResolvedStep("n", StepKind.FILL, "", ((256, 8),), (0,), waits=(3,)), r"waits for \[3\]"),
    "a signal": (ResolvedStep("n", StepKind.FILL, "", ((256, 8),), (0,), signals=(3,)), r"signals \[3\]"),
    "another kind": (ResolvedStep("n", StepKind.COLLECTIVE, "", (), ()), "runs no step of kind collective"),
    "no shape": (ResolvedStep("n", StepKind.LAUNCH, "elementwise/elementwise:add<f32>", (), ()), "has a grid"),
    "sizes": (ResolvedStep("n", StepKind.COPY, "", ((256, 8), (512, 16)), ()), "a copy of 8 bytes to 16"),
    "operands": (ResolvedStep("n", StepKind.COPY, "", ((256, 8),), ()), "a copy has 2 operands, found 1"),
    "a product": (ResolvedStep("n", StepKind.GEMM, "gemm", ((256, 8),), ()), "a product has 6 operands"),
}


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_a_step_that_cannot_run_is_refused_by_name(name: str, gpu: HipDevice) -> None:
    step, message = WRONG_STEPS[name]
    with pytest.raises(BackendError, match=message) as caught:
        gpu.make_table([step])
    assert caught.value.node == "n"


def test_a_kernel_that_does_not_compile_says_why(gpu: HipDevice) -> None:
    step = ResolvedStep("n", StepKind.LAUNCH, "elementwise/elementwise:nothing<f32>", (), (), launch=ONE_BLOCK)
    with pytest.raises(BackendError, match="nothing"):
        gpu.make_table([step])
    with pytest.raises(BackendError, match="there is no kernel file no/where"):
        gpu.make_table([ResolvedStep("n", StepKind.LAUNCH, "no/where:nothing", (), (), launch=ONE_BLOCK)])


def test_a_kernel_is_loaded_once_for_all_tables_and_launches(machine: EmulatedGpu, gpu: HipDevice) -> None:
    x = floats(gpu, np.ones(64, np.float32))
    before = machine.count("hipModuleLoadData")
    tables = [gpu.make_table([add(x.address, x.address, x.address)]) for _ in range(3)]
    step = add(0, 0, 0)
    gpu.make_launch(KernelCall("again", step.kernel, step.params, 4, launch=ONE_BLOCK))
    assert machine.count("hipModuleLoadData") == before + 1
    assert gpu.kernels.module_count == 1
    del tables


def test_many_kernels_of_one_file_are_one_module_and_few_are_one_each(
    gpu: HipDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*instances: str) -> int:
        kernels = [f"elementwise/elementwise:{instance}" for instance in instances]
        gpu.prepare([KernelCall("n", kernel, (1, 64), 3, launch=ONE_BLOCK) for kernel in kernels])
        return gpu.kernels.module_count

    assert prepare("silu<f32>", "silu<f16>") == 2
    assert prepare("silu<f32>", "silu<f16>") == 2, "they are there"
    monkeypatch.setattr(hip_kernels, "_MANY", 2)
    assert prepare("silu<f32>", "hyperbolic_tangent<f32>", "hyperbolic_tangent<f16>", "hyperbolic_tangent<bf16>") == 3
    assert prepare("hyperbolic_tangent<f16>") == 3


def test_compiled_kernels_are_found_again_for_the_same_architecture_alone(machine: EmulatedGpu, tmp_path: Path) -> None:
    call = [KernelCall("n", "elementwise/elementwise:silu<f32>", (1, 64), 3, launch=ONE_BLOCK)]
    found = []
    for index in (0, 0, 1):
        cache = CodeCache(tmp_path)
        HipDevice(machine.gpu.device(index), cache=cache, host=HOST).prepare(call)
        found.append((cache.counters.misses, cache.counters.hits))
    assert found == [(1, 0), (0, 1), (1, 0)]


# launches


def test_launches_are_counted_and_run_in_the_default_order(gpu: HipDevice) -> None:
    x, before = floats(gpu, np.ones(64, np.float32)), gpu.launches
    step = add(x.address, x.address, x.address)
    launch = gpu.make_launch(KernelCall("double", step.kernel, step.params, 4, launch=ONE_BLOCK))
    for _ in range(3):
        launch.run(step.operands)
    gpu.synchronize()
    assert (x.read(np.float32, (64,)) == 8).all()
    assert gpu.launches == before + 3
    gpu.make_table([step]).run()
    assert gpu.launches == before + 3
    with pytest.raises(BackendError, match="takes 4 operands, found 1") as caught:
        launch.run(((x.address, 256),))
    assert caught.value.node == "double"


def test_an_index_out_of_range_names_the_launch_that_met_it(gpu: HipDevice, rng: np.random.Generator) -> None:
    weight = floats(gpu, rng.standard_normal((ROWS, 8), np.float32))
    ids, y = floats(gpu, np.array([3, 9], np.int32)), gpu.allocate(64)
    operands = ((ids.address, 8), (weight.address, 128), (0, 0), (y.address, 64))
    first, second, stream = gpu.make_launch(look_up("first")), gpu.make_launch(look_up("second")), gpu.open_stream()
    second.run(operands)
    with pytest.raises(BoundsError, match="out of range") as caught:
        gpu.synchronize()
    assert caught.value.node == "second"
    gpu.synchronize()
    first.run(operands, stream)
    gpu.finish()
    with pytest.raises(BoundsError) as caught:
        gpu.finish(stream)
    assert caught.value.node == "first"
    gpu.finish(stream)


def test_a_launch_that_is_none_is_refused_by_name(gpu: HipDevice) -> None:
    with pytest.raises(BackendError, match="of kind copy is no launch") as caught:
        gpu.make_launch(KernelCall("n", "", (), 2, kind=StepKind.COPY))
    assert caught.value.node == "n"


# weights

SOURCES = {
    "as it is": (DType.F32, DType.F32),
    "narrowed": (DType.F32, DType.BF16),
    "widened": (DType.F16, DType.F32),
    "blocks": (DType.Q8_0, DType.Q8_0),
    "dequantised": (DType.Q8_0, DType.F16),
}


def rows_of(dtype: DType, rows: int, columns: int, rng: np.random.Generator) -> Array:
    """Bytes of so many rows."""
    if not dtype.is_block:
        return rng.standard_normal((rows, columns)).astype(dtype.numpy).reshape(-1).view(np.uint8)
    raw = rng.integers(0, 256, (rows, columns // 32, 34), dtype=np.uint8)
    raw[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    return raw.reshape(-1)


@pytest.mark.parametrize("half", [1 << 20, 1024, 16], ids=["one piece", "pieces", "a row at a time"])
@pytest.mark.parametrize("name", SOURCES)
def test_weights_are_packed_as_the_host_packs_them(
    name: str, half: int, gpu: HipDevice, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(hip_weights, "_HALF", half)
    source, target = SOURCES[name]
    tensor, order = TensorType((24, 64), target), rng.permutation(24).astype(np.int64)
    data, buffer = rows_of(source, 24, 64, rng), gpu.allocate(tensor.nbytes)
    expected = np.zeros(tensor.nbytes, np.uint8)
    for first, index in ((0, order[:10]), (10, order[10:])):
        part = PackSource(data, source, index)
        gpu.pack(tensor, buffer.address, part, first)
        HOST.pack(tensor, expected.ctypes.data, part, first)
    assert (buffer.read(np.uint8, (tensor.nbytes,)) == expected).all()
    assert (gpu.unpack(tensor, buffer.address) == HOST.unpack(tensor, expected.ctypes.data)).all()


def test_vectors_are_rows_of_one_element(gpu: HipDevice, rng: np.random.Generator) -> None:
    tensor, values = TensorType((100,), DType.BF16), rng.standard_normal(100, np.float32)
    buffer = gpu.allocate(tensor.nbytes)
    gpu.pack(tensor, buffer.address, PackSource(values.view(np.uint8), DType.F32, np.arange(99, -1, -1)), 0)
    np.testing.assert_allclose(gpu.unpack(tensor, buffer.address), values[::-1], rtol=2**-8)


def test_staging_is_bounded_and_kept(machine: EmulatedGpu, gpu: HipDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip_weights, "_HALF", 4096)
    tensor, live = TensorType((512, 32), DType.F32), machine.count("live bytes")
    buffer, source = (
        gpu.allocate(tensor.nbytes),
        PackSource(np.zeros(tensor.nbytes, np.uint8), DType.F32, np.arange(512)),
    )
    for _ in range(2):
        gpu.pack(tensor, buffer.address, source, 0)
        assert machine.count("live bytes") == live + tensor.nbytes + 2 * 4096


def test_weights_that_cannot_be_packed_are_refused(gpu: HipDevice) -> None:
    tensor, data = TensorType((24, 64), DType.F32), np.zeros(24 * 256, np.uint8)
    buffer = gpu.allocate(tensor.nbytes)
    with pytest.raises(LayoutError, match="natural layout"):
        gpu.pack(replace(tensor, layout="panel32"), buffer.address, PackSource(data, DType.F32, np.arange(24)), 0)
    with pytest.raises(BoundsError, match=r"rows \[1, 25\)"):
        gpu.pack(tensor, buffer.address, PackSource(data, DType.F32, np.arange(24)), 1)
    with pytest.raises(BoundsError, match="the source has 24 rows"):
        gpu.pack(tensor, buffer.address, PackSource(data, DType.F32, np.arange(1, 25)), 0)
    wrong = TensorType((24, 64), DType.Q8_0)
    with pytest.raises(DTypeError, match="cannot become"):
        gpu.pack(wrong, buffer.address, PackSource(data, DType.F32, np.arange(24)), 0)


# programs


@pytest.mark.parametrize("name", CONFIGS)
def test_a_planned_decoder_equals_the_interpreter(name: str, gpu: HipDevice, rng: np.random.Generator) -> None:
    found = decoder_on(gpu, CONFIGS[name], rng)
    np.testing.assert_allclose(found.planned, found.expected, rtol=0, atol=1e-4 * float(np.std(found.expected)))
    assert found.planned.tobytes() == found.replayed.tobytes(), "replays and steps are bit-equal"


# opening


def test_a_gpu_is_opened_by_number(machine: EmulatedGpu, tmp_path: Path) -> None:
    device = open_hip(1, gpu=machine.gpu, cache=CodeCache(tmp_path))
    assert (device.name, device.isa) == ("hip:1", "gfx1100")
    with pytest.raises(DeviceUnavailable, match="hip:2 does not exist; there are 2: hip:0, hip:1"):
        open_hip(2, gpu=machine.gpu)
    with pytest.raises(ConfigError, match="the number of a GPU is -1"):
        open_hip(-1, gpu=machine.gpu)


def test_who_opens_a_gpu_again_gets_the_same(machine: EmulatedGpu) -> None:
    first = open_hip(0, gpu=machine.gpu)
    assert open_hip(0, gpu=machine.gpu) is first
    assert open_hip(0, gpu=machine.gpu, host=HOST) is not first


def test_names_of_gpus(machine: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_with_a_card", lambda platform: machine.gpu)
    assert [opening.open_named(name).name for name in ("hip", "hip:0", "hip:1")] == ["hip:0", "hip:0", "hip:1"]
    assert opening.open_named("hip", threads=1).threads == 1
    for wrong in ("hip:", "hip:-1", "hip:one", "cuda", "hipp"):
        with pytest.raises(ConfigError, match="is unknown"):
            opening.open_named(wrong)


def test_a_machine_without_libraries_says_what_to_install() -> None:
    told = run_child("open_without_libraries")
    assert told.startswith("DeviceUnavailable no GPU can be used")
    assert "AMD: no GPU runtime: libamdhip64 was not found" in told
    assert "install ROCm" in told
    assert "NVIDIA: no driver: libcuda was not found" in told
    assert "install NVIDIA's driver" in told
