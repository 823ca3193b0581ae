"""What must run in a process of its own: libraries are opened once a process, and a fork or an exit ends one."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip import open as opening
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.emulator.machine import EmulatedGpu, emulated_gpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.vendor_choices import VendorChoices
from ostinato.ir.errors import LifecycleError, OstinatoError
from ostinato.ir.step import Launch, StepKind
from ostinato.ir.types import DType
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.device_memory import OnDevice
from tests.backend_hip.gpu.machine import CACHE, Memory, kernels
from tests.backend_hip.gpu.tables import add, fill, table_kernels

ROOT = Path(__file__).resolve().parents[3]


def run_child(name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What the function of that name prints, in a new process that must end well."""
    command = [sys.executable, "-m", "tests.backend_hip.gpu.child", name, *arguments]
    variables = {**os.environ, **(environment or {})}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=variables)
    assert run.returncode == 0, f"{command} ended with {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout.strip()


def _opened() -> tuple[EmulatedGpu, _native.GpuDevice, _native.Stream]:
    machine = emulated_gpu(CACHE)
    device = machine.gpu.device(0)
    kernels(0)  # loaded before any capture
    return machine, device, _native.Stream(device)


def older_node_types() -> None:
    machine, device, stream = _opened()
    machine.version(50221153)
    memory = Memory(device, np.zeros(8, np.float32))

    def submit() -> None:
        kernels(0).increment(memory, stream)
        _native.copy_async(memory.address, device, memory.address + 16, device, 16, stream)
        _native.fill_async(memory.address, device, 0, 16, stream)

    print(*(node.type for node in _native.HipGraphExecutable.capture(stream, submit, record=True).nodes))


def foreign_capture() -> None:
    machine, _, stream = _opened()
    library = ctypes.CDLL(str(machine.folder / "libamdhip64.so"))
    assert library.hipStreamBeginCapture(ctypes.c_void_p(stream.handle), 2) == 0
    try:
        _native.HipGraphExecutable.capture(stream, lambda: None)
    except LifecycleError as error:
        print(error)


def exit_with_live_objects() -> None:
    """Graphs, memory, scopes and streams are alive when the interpreter ends."""
    _, device, stream = _opened()
    memory = Memory(device, np.zeros(8, np.float32))
    graph = _native.HipGraphExecutable.capture(stream, lambda: kernels(0).increment(memory, stream))
    graph.launch(stream)
    keep = [graph, memory, _native.HipActivationArena(stream, 4096), _native.DeferredHipDeallocationScope(stream, 4)]
    _native.warm_vendor(device)
    print(len(keep))


def _print_from_a_fork(answers: Callable[[], int]) -> None:
    """Prints the number that comes of this in a child."""
    child = os.fork()
    if child == 0:
        found = 0
        try:
            found = answers()
        finally:
            os._exit(found)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _refused(uses: Iterable[Callable[[], object]]) -> int:
    """How many of these uses are told, by a typed error, that this is a fork."""
    answers = 0
    for use in uses:
        try:
            use()
        except LifecycleError as error:
            answers += "forked" in str(error)
    return answers


def fork() -> None:
    """The child of a process that opened the GPU is told, by a typed error, at once."""
    _, device, stream = _opened()
    uses: tuple[Callable[[], object], ...] = (
        stream.synchronize,
        lambda: device.allocate(64),
        lambda: _native.Stream(device),
    )
    _print_from_a_fork(lambda: _refused(uses))


def _program(machine: EmulatedGpu) -> dict[str, Any]:
    """A device with one of everything, in use."""
    gpu = HipDevice(machine.gpu.device(0), cache=CodeCache(CACHE / "code"), host=HostDevice(threads=1))
    buffer, stream = gpu.allocate(256), gpu.open_stream()
    place, shape = (buffer.address, 256), Launch((1, 1, 1), (256, 1, 1))
    kernel, operands = "elementwise/elementwise:add<f32>", (place, place, (0, 0), place)
    table = gpu.make_table([ResolvedStep("n", StepKind.LAUNCH, kernel, operands, (1, 64), launch=shape)], stream)
    found = {"gpu": gpu, "buffer": buffer, "stream": stream, "table": table, "graph": table.capture()}
    return {**found, "window": buffer.window(stream)}


def exit_with_live_device(*first: str) -> None:
    """A device, its table, graph and pinned memory are alive when the interpreter ends; `first` are dropped last."""
    machine, _, _ = _opened()
    program = _program(machine)
    program["window"].upload(0, 256)
    program["table"].enqueue()
    program["graph"].enqueue()
    globals()["kept"] = [program.pop(name) for name in first] + list(program.values())
    print(len(globals()["kept"]))


def fork_with_a_device() -> None:
    """The child is told by whatever it uses."""
    machine, _, _ = _opened()
    program = _program(machine)
    uses: tuple[Callable[[], object], ...] = (
        program["table"].enqueue,
        program["table"].finish,
        program["graph"].enqueue,
        lambda: program["gpu"].allocate(64),
        lambda: program["buffer"].read(np.uint8, (1,)),
    )
    _print_from_a_fork(lambda: _refused(uses))


def operators() -> None:
    """Operators, their streams and a graph of them: a fork is told, the CPU's go on there, and everything is alive when the interpreter ends."""
    machine, _, _ = _opened()
    gpu = OnDevice(HipDevice(machine.gpu.device(0), cache=CodeCache(CACHE / "code"), host=HostDevice(threads=1)))
    ops.use(gpu.device)
    gpu.load("elementwise/elementwise")
    ones = np.ones(8, np.float32)
    x, y, stream = gpu.put(ones), gpu.empty(8), ost.Stream("hip:0")
    out = np.zeros_like(ones)

    def submit() -> None:
        ops.scale(x, factor=2.0, out=y, stream=stream)

    submit()
    graph = ost.hip.HipGraphExecutable.capture(stream.native, submit)
    ops.scale(ones, factor=2.0, out=out)
    uses = (submit, stream.synchronize, lambda: ops.check("hip:0"), lambda: ost.Stream("hip:0"))

    def answers() -> int:
        found = _refused(uses)
        ops.scale(ones, factor=3.0, out=out)
        return found if (out == 3).all() else 0

    _print_from_a_fork(answers)
    graph.launch(stream.native)
    globals()["kept"] = [graph, x, y, stream]


def open_folder(platform: str, folder: str) -> None:
    """What is said of the libraries of one folder alone."""
    gpu = _native.open_gpu(platform, [folder] if folder else [], sealed=True)
    for report in gpu.reports:
        print(report.role, report.name, report.finding, report.version or "-", report.problem)
    try:
        print(gpu.device_count)
    except OstinatoError as error:
        print(type(error).__name__, error)


def open_system(platform: str) -> None:
    """What is said of the libraries that the system's loader finds."""
    gpu = _native.open_gpu(platform, [])
    print(gpu.reports[0].finding, gpu.reports[0].version)
    try:
        print(gpu.device_count)
    except OstinatoError as error:
        print(type(error).__name__, error)


def compile_with_nvrtc(folder: str, architecture: str) -> None:
    gpu = _native.open_gpu("nvidia", [folder], sealed=True)
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
    print(gpu.compile(source, "twice.cu", [f"--gpu-architecture={architecture}"])[1:4].decode())


def open_without_libraries() -> None:
    """What is said on a machine whose libraries lie nowhere."""
    found = _native.open_gpu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "open_gpu", lambda platform, folders: found(platform, [], True))
        _open_first()


def _open_first() -> None:
    try:
        opening.open_hip()
    except OstinatoError as error:
        print(type(error).__name__, error)


def open_twice(folder: str) -> None:
    _native.open_gpu("amd", [folder], sealed=True)
    _native.open_gpu("amd", [folder], sealed=True)
    try:
        _native.open_gpu("amd", [])
    except LifecycleError as error:
        print(error)


def diagnostics() -> None:
    """The records of one run of a small step."""
    _, device, _ = _opened()
    _native.set_allocation_diagnostics(True)
    _native.set_copy_diagnostics(True)
    with _native.SourceScope("ffn"):
        for nbytes in (64, 64, 4096):
            device.free(device.allocate(nbytes))
        _native.note_strided_copy(4, (2, 3), (1, 2))
    print(_native.allocation_records(), _native.copy_records())


def choose_algorithms(folder: str) -> None:
    """The vendor's algorithms for two products, over a record in that folder."""
    _, device, _ = _opened()
    choices = VendorChoices(device, Path(folder))
    f32 = DType.F32.number
    params = GemmParams(8, 12, 16, 1, 1, 0, f32, f32, f32, f32, NO_BIAS, 16, 16, 8, 8, 0, 0, 0, 0, 1.0, 0.0)
    algorithms = [choices.gemm(params, budget).choice.algorithm for budget in (4096, 65536)]
    print(json.dumps({"algorithms": algorithms, "chosen": choices.counters.chosen}))


def count_allocations() -> None:
    """Allocations of native calls under the interposer, which leaves those of the emulated library out."""
    _, device, stream = _opened()
    counter = ctypes.CDLL(None)
    counter.counting_stop.restype = ctypes.c_long
    memory = Memory(device, np.zeros(8, np.float32))
    table = _native.GpuTable(device, stream, [add(memory, 1), fill(memory, 0), add(memory, 2)] * 10)
    status = _native.StatusBlock(device, stream)
    launch = _native.GpuLaunch(device, table_kernels(0).add, (1, 1, 1), (64, 1, 1), 0, 1, [8, 1.0], 0)
    operands = ((memory.address, 32),)

    def counted(run: Callable[[], object], repeats: int = 20) -> int:
        counts = []
        for _ in range(5):
            counter.counting_start()
            for _ in range(repeats):
                run()
            counts.append(int(counter.counting_stop()))
            stream.synchronize()
        return min(counts)

    def both() -> None:
        table.enqueue()
        table.finish()

    def neither() -> None:
        table.enqueue(0, 0)
        table.finish()

    gc.disable()
    nothing = counted(lambda: table.enqueue(0, 0))
    print("a call that allocates:", min(1, counted(lambda: bytes(4096)) // 20))
    print("enqueue:", counted(lambda: table.enqueue(0, -1)) - nothing)
    print("enqueue and finish:", counted(both) - counted(neither))
    print("launch:", counted(lambda: launch.run(operands, status, stream)) - nothing)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
