"""What this machine can do at most, measured now: bytes a second, floating-point operations a second by dtypes, and the shortest step.

- Bytes: `bandwidth.py`, between the device and its memory. What lies in a cache may come faster.
- Operations: products by the row that the compiler chooses here, of growing size until one takes some milliseconds; the best of all sizes. It is the ceiling of
  the kernels that there are, not of the data sheet.
- The shortest step: a run of many steps of one element each, in the mode of the profile, over their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.evidence.first_use import lowered
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.device import Device, WeightSource
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.profile import Profile
from ostinato.runtime.program import Program
from ostinato.tools.profile.bandwidth import read_bandwidth

__all__ = ["Ceilings", "measure_ceilings"]

_SIZES = (64, 256, 1024, 4096, 8192)
"""Of a square product, in turn."""
_ENOUGH = 2e-3
"""Seconds of a product behind which no larger one is tried."""
_RUNS = 5
_CHAIN = 64
"""Steps of one element."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes a second, floating-point operations a second by dtypes of input and weight, and seconds of the shortest step."""

    bandwidth: float
    flops: Mapping[tuple[str, str], float]
    step_seconds: float

    def flops_of(self, dtypes: tuple[str, ...]) -> float:
        """The most operations a second of products whose inputs are of that dtype, whatever their weights; of all where the dtype was not measured."""
        wanted = dtypes[0] if dtypes else ""
        same = [found for (given, _), found in self.flops.items() if given == wanted]
        return max(same or self.flops.values())


def measure_ceilings(device: Device, mode: str, profiles: Iterable[Profile]) -> Ceilings:
    """The ceilings of a device for the dtypes that the steps of profiles have, f32 among them. It takes some seconds. Raises what compiling raises."""
    pairs = {("f32", "f32")}
    for profile in profiles:
        pairs |= {(step.dtypes[0], step.dtypes[1]) for step in profile.steps if _is_product(step.op, step.dtypes)}
        pairs |= {(step.dtypes[0], step.dtypes[0]) for step in profile.steps if _is_product(step.op, step.dtypes)}
    return Ceilings(
        read_bandwidth(device),
        {pair: _product_rate(device, mode, *map(DType, pair)) for pair in sorted(pairs)},
        _shortest_step(device, mode),
    )


def _is_product(op: str, dtypes: tuple[str, ...]) -> bool:
    return op.startswith(("linear", "qkv")) and len(dtypes) == 2 and not DType(dtypes[0]).is_block


def _product_rate(device: Device, mode: str, given: DType, weight: DType) -> float:
    best = 0.0
    for size in _SIZES:
        builder = GraphBuilder("product")
        x = builder.input("x", TensorType((size, size), given))
        w = builder.weight("w", TensorType((size, size), weight), (WeightPart("w", 0, size),))
        graph = builder.finish([builder.apply("linear", (x, w), name="y")])
        profile = _timed(device, mode, graph, _Ones(size, weight), _RUNS)
        step = next(step for step in profile.steps if step.flops)
        best = max(best, step.flops / max(step.best, profile.resolution_seconds))
        if step.best > _ENOUGH:
            break
    return best


def _shortest_step(device: Device, mode: str) -> float:
    builder = GraphBuilder("chain")
    value = builder.input("x", TensorType((1,), DType.F32))
    for _ in range(_CHAIN):
        value = builder.apply("silu", (value,))
    profile = _timed(device, mode, builder.finish([value]), None, _RUNS)
    return profile.whole_best / max(len(profile.steps), 1)


def _timed(device: Device, mode: str, graph: Graph, source: _Ones | None, runs: int) -> Profile:
    report, target, done = lowered(lambda target: run_pipeline(graph, target), device.target)
    plan = build_program({"main": (report.graph, plan_entry(report.graph, target, name="main"))})
    program = Program(plan, {"main": report.graph}, target, source or _Ones(0, DType.F32), validations=done)
    executable = load_program(program, Route(device, mode), kind=Executable)
    return executable.profile(inputs=_ones(executable), runs=runs)


def _ones(executable: Executable) -> dict[str, Array]:
    return {name: np.ones_like(array) for name, array in executable.example_inputs("main").items()}


@dataclass(frozen=True, slots=True)
class _Ones(WeightSource):
    """The source of one square weight: ones, or the bytes of 1 as blocks."""

    size: int
    kind: DType

    def dtype(self, tensor: str) -> DType:
        del tensor
        return self.kind

    def shape(self, tensor: str) -> tuple[int, ...]:
        del tensor
        return (self.size, self.size)

    def map(self, tensor: str) -> Array:
        del tensor
        nbytes = self.kind.nbytes(self.size * self.size)
        if self.kind.is_block:
            return np.ones(nbytes, np.uint8)
        return np.ones(self.size * self.size, self.kind.numpy).view(np.uint8)
