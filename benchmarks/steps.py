"""Our side of a workload (`workloads.py`): planned with given options, loaded over weights that its variants share, ready to be run step by step."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np

from benchmarks.timing import Timed
from benchmarks.workloads import CACHE, CHAIN_NUMBERS, FILLED, Shape, Workload, cache_values, chain_values, tokens_of
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import emulated_gpu
from ostinato.backend_hip.open import open_hip
from ostinato.compiler import plan_text_program
from ostinato.frontend.model import CacheShape, Model
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.device import Buffer, Device
from ostinato.runtime.program import NoWeights, Program
from ostinato.runtime.regions import Regions, SharedRegions, allocate_regions
from ostinato.runtime.runners import EagerRunner, PlannedRunner
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.runtime.weights import load_shared
from ostinato.stages import Traced, open_device, trace

__all__ = ["Counted", "LoadedStep", "WeightPool", "open_benchmark_device", "plan_workload", "traced_workload"]


def open_benchmark_device(name: str, threads: int = 0) -> Device:
    """A device by name, a CPU with so many threads; "emulated" is the GPU of the tests, which shows that a benchmark runs and says nothing about time."""
    if name != "emulated":
        return open_device(name, threads if name == "cpu" else 0)
    folder = Path(tempfile.gettempdir()) / "ostinato-emulated-benchmarks"
    return open_hip(gpu=emulated_gpu(folder).gpu, cache=CodeCache(folder / "kernels"))


class Counted:
    """A device whose allocations are counted; all else is the device's own. `peak` is the most bytes that were there at once since `restart`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        self.allocations = self.live = self.peak = 0

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> Buffer:
        buffer = self._device.allocate(nbytes, alignment, zeroed=zeroed)
        self.allocations += 1
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        return cast(Buffer, _CountedBuffer(buffer, self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _CountedBuffer:
    def __init__(self, buffer: Buffer, device: Counted) -> None:
        self._buffer, self._counted = buffer, device

    def free(self) -> None:
        self._counted.live -= self._buffer.nbytes
        self._buffer.free()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)


def plan_workload(
    workload: Workload, model: Model | None, target: Target, options: PipelineOptions, settings: PlanSettings
) -> Program:
    """The proven program of one entry, named like the workload."""
    name = str(workload)
    if workload.kind == "c":
        graph = run_pipeline(_chain(workload.size), target, options).graph
        plan = build_program({name: (graph, plan_entry(graph, target, name=name, settings=settings))})
        check_program(plan, {name: graph}, target)
        return Program(plan, {name: graph}, target, NoWeights())
    assert model is not None
    traced, dims = traced_workload(workload, model, options.precision)
    return plan_text_program(traced.at({name: dims}), target, options, settings)


def traced_workload(
    workload: Workload, model: Model, precision: str | PrecisionPolicy
) -> tuple[Traced, dict[str, int]]:
    """The graph of a model's workload, and its dimensions there."""
    cache = CacheShape(workload.rows, CACHE, 1)
    decodes = workload.kind == "d"
    traced = trace(model, "decode" if decodes else "step", cache=cache, precision=precision)
    return traced, {"R": workload.rows} if decodes else {"N": workload.size, "R": 1}


def _chain(length: int) -> Any:
    """silu and tanh in turn: no pass joins them."""
    builder = GraphBuilder("chain")
    value = builder.input("x", TensorType((CHAIN_NUMBERS,), DType.F32))
    for number in range(length):
        value = builder.apply("tanh" if number % 2 else "silu", (value,), name=f"link.{number}")
    return builder.finish([value])


@dataclass
class WeightPool:
    """The weights and constants of one model on a device, one copy for all programs that lay them out alike. `seconds` is what loading took."""

    device: Device
    seconds: float = 0.0
    _held: list[tuple[ProgramPlan, SharedRegions]] = field(default_factory=list)

    def of(self, program: Program) -> SharedRegions:
        """The shared regions of a program, loaded where none are there."""
        mine = program.plan
        for plan, shared in self._held:
            if plan.weights == mine.weights and plan.constants == mine.constants:
                return shared
        begin = perf_counter()
        shared = load_shared(self.device, mine, program.source)
        self.seconds += perf_counter() - begin
        self._held.append((mine, shared))
        return shared


class LoadedStep:
    """A program's entry in a mode, with state and inputs of the workload.

    `mode`: "eager", "stepwise" (the planned steps, each submitted from Python), "planned" or "captured", of the steps that the patterns of `capture` name or
    of all. `regions`: where it lies, by default memory of its own.
    """

    def __init__(
        self,
        workload: Workload,
        program: Program,
        device: Device,
        shared: SharedRegions,
        mode: str,
        *,
        shape: Shape | None = None,
        capture: Sequence[str] | None = None,
        regions: Regions | None = None,
    ) -> None:
        (self.name,) = program.plan.entries
        self.workload, self.program, self.mode = workload, program, mode
        self.plan: EntryPlan = program.plan.entries[self.name]
        self.counted = Counted(device)
        self.regions = regions or allocate_regions(device, program.plan, shared)
        self._shape = shape
        begin = perf_counter()
        self.runner: EagerRunner | PlannedRunner
        if mode == "eager":
            self.runner = EagerRunner(program, self.name, cast(Device, self.counted), self.regions)
        elif mode == "captured":
            self.runner = CapturedRunner(program, self.name, device, self.regions, None, capture)
        else:
            self.runner = PlannedRunner(program, self.name, device, self.regions)
        self.load_seconds = perf_counter() - begin
        self.counted.restart()
        self._inputs = self._given()
        self.fill_state()
        self.rewind()

    def rewind(self) -> None:
        """Puts the inputs back: a decode step moves those that say where each row is."""
        for name, array in self._inputs.items():
            self.runner.inputs[name][...] = array

    def _given(self) -> dict[str, Array]:
        """What the workload gives the entry."""
        if self.workload.kind == "c":
            return {"x": chain_values()}
        assert self._shape is not None
        tokens = tokens_of(self.workload, self._shape.vocabulary)
        table = np.arange(self.workload.rows, dtype=np.int32).reshape(-1, 1)
        if self.workload.kind == "d":
            pieces = [Piece(row, tokens[row : row + 1], FILLED, True) for row in range(self.workload.rows)]
        else:
            pieces = [Piece(0, tokens, 0, True)]
        packed, _ = pack(self.plan, pieces, table)
        return {**packed, **sampling_inputs(self.plan, ())}

    def fill_state(self) -> None:
        """Keys and values of the tokens that a decode step finds; zeros behind them."""
        if self.workload.kind != "d":
            return
        assert self._shape is not None
        slots = {binding.name: binding for binding in self.program.plan.state}
        for layer in range(self._shape.layers):
            for values, name in zip(cache_values(self._shape, self.workload.rows, layer), ("k", "v"), strict=True):
                slot = slots[f"{name}_cache.{layer}"]
                held = np.zeros(slot.type.static_shape, slot.type.dtype.numpy)
                held[:, :, :FILLED] = values.transpose(0, 2, 1, 3).astype(held.dtype)
                self.regions.state.write(held, slot.range.offset)

    def outputs(self) -> dict[str, Array]:
        """The entry's outputs after one run from the start."""
        names = list(dict.fromkeys(self.program.graphs[self.name].outputs))
        self.rewind()
        return {name: np.array(array) for name, array in self.runner.run(names).items()}

    def digest(self) -> str:
        """A hash of outputs and state after one run."""
        found = hashlib.sha256()
        for name, array in sorted(self.outputs().items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(array).tobytes())
        state = self.regions.state
        found.update(state.read(np.uint8, (state.nbytes,)).tobytes())
        return found.hexdigest()

    @property
    def timed(self) -> Timed:
        """Steps in a row: a decode goes on by itself from the start that `reset` puts back. Eager gives the inputs of the host, and waits, in every step."""
        runner = self.runner
        if isinstance(runner, EagerRunner):
            return Timed(self.rewind, lambda: runner.run(()), _nothing)
        table, exchange = runner.loaded.table, runner.loaded.exchange
        step = self._stepwise if self.mode == "stepwise" else runner.enqueue

        def reset() -> None:
            self.rewind()
            exchange.give()

        return Timed(reset, step, table.finish)

    def _stepwise(self) -> None:
        assert isinstance(self.runner, PlannedRunner)
        table = self.runner.loaded.table
        for position in range(len(self.plan.steps)):
            table.enqueue(position, 1)

    @property
    def graphs(self) -> Iterator[Any]:
        """The segments that are graphs."""
        if isinstance(self.runner, CapturedRunner):
            yield from (segment for segment in self.runner.steps.segments if segment.graph is not None)

    @property
    def submissions(self) -> int:
        """What the host hands to the driver in a run: launches, copies and graphs."""
        if not isinstance(self.runner, CapturedRunner):
            return len(self.plan.steps)
        return sum(1 if segment.graph is not None else segment.count for segment in self.runner.steps.segments)


def _nothing() -> None:
    pass
