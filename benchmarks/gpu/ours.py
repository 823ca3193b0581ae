"""Ostinato as a contender, in its own process.

    python -m benchmarks.gpu.ours MODEL WORKLOADS --folder CHECKPOINT --out DIR [--device hip] [--modes captured,planned,eager]

Every workload is a program of its own over one copy of the weights. Memory is what the device's counters say: the bytes of an executable must be the plan's.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import traceback
from pathlib import Path

import numpy as np

from benchmarks.gpu.records import Record, logits_error, time_record, write_record
from benchmarks.steps import LoadedStep, WeightPool, open_benchmark_device, plan_workload
from benchmarks.timing import Timed
from benchmarks.workloads import Shape, Workload
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.frontend.model import Model
from ostinato.ir.step import Region
from ostinato.passes.pipeline import PipelineOptions
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.device import Device
from ostinato.runtime.program import Program
from ostinato.runtime.regions import allocate_regions
from ostinato.stages import open_model

_REGIONS = ("arena", "io")


class Bytes:
    """Device memory since it was made: what was allocated through the device, and what the driver took besides."""

    def __init__(self, device: Device) -> None:
        self._native = device.native if isinstance(device, HipDevice) else None
        self._allocated, self._free = self._now()

    def _now(self) -> tuple[int, int]:
        if self._native is None:
            return 0, 0
        counters = self._native.counters
        return counters.current_bytes, self._native.memory_info[0]

    @property
    def allocated(self) -> int:
        return self._now()[0] - self._allocated

    @property
    def driver(self) -> int:
        allocated, free = self._now()
        return self._free - free - (allocated - self._allocated)


class Contender:
    def __init__(self, device: Device, model: Model | None, pool: WeightPool, name: str, out: Path) -> None:
        self._device, self._model, self._pool, self._name, self._out = device, model, pool, name, out
        self._shape = None if model is None else Shape.read(model.checkpoint.path)

    def run(self, workload: Workload, modes: list[str]) -> None:
        """A record for each mode."""
        chain = workload.kind == "c"
        begin = time.perf_counter()
        options = PipelineOptions("f32" if chain else "bf16")
        program = plan_workload(workload, None if chain else self._model, self._device.target, options, PlanSettings())
        planning = time.perf_counter() - begin
        pool = WeightPool(self._device) if chain else self._pool
        before = pool.seconds
        pool.of(program)
        loading = pool.seconds - before
        for mode in modes:
            record = Record("" if chain else self._name, f"ours {mode}", str(workload))
            record.detail = f"planned in {planning:.2f} s, weights loaded in {loading:.2f} s"
            compiled = self._compile_seconds
            try:
                self._measure(record, workload, program, pool, mode)
                record.detail += f", compilers busy for {self._compile_seconds - compiled:.2f} s"
            except Exception as error:  # a mode that fails costs itself alone
                traceback.print_exc()
                record.note = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            write_record(record, self._out / "records.jsonl")
            gc.collect()  # what the next one finds is not what this one left

    @property
    def _compile_seconds(self) -> float:
        return self._device.kernels.cache.counters.compile_seconds if isinstance(self._device, HipDevice) else 0.0

    def _measure(self, record: Record, workload: Workload, program: Program, pool: WeightPool, mode: str) -> None:
        used = Bytes(self._device)
        shape = None if workload.kind == "c" else self._shape
        begin = time.perf_counter()
        regions = allocate_regions(self._device, program.plan, pool.of(program))
        placed, allocating = used.allocated, time.perf_counter() - begin
        step = LoadedStep(workload, program, self._device, regions.shared, mode, shape=shape, regions=regions)
        begin = time.perf_counter()
        outputs = step.outputs()
        record.first_s = allocating + step.load_seconds + time.perf_counter() - begin
        sizes = {kind: program.plan.size_of(Region(self._device.name, kind)) for kind in (*_REGIONS, "state")}
        record.planned_bytes = sum(sizes[kind] for kind in _REGIONS)
        if isinstance(self._device, HipDevice):
            record.beyond_bytes = (
                step.counted.peak if mode == "eager" else placed - max(1, sizes["state"])
            )  # memory has a byte
            record.table_bytes = used.allocated - placed
            record.driver_bytes = used.driver
        if workload.kind != "c":
            logits_error(self._out, record, workload, outputs["logits"])
        else:
            assert all(np.isfinite(array).all() for array in outputs.values())
        record.launches, record.submissions = len(step.plan.steps), step.submissions
        graphs = list(step.graphs)
        if graphs:
            record.capture_ms = sum(segment.seconds for segment in graphs) * 1e3
            record.nodes = sum(segment.report.graph_nodes for segment in graphs)
            record.dependencies = sum(segment.report.dependencies for segment in graphs)
            fresh = LoadedStep(workload, program, self._device, pool.of(program), mode, shape=shape)
            record.table_ms = (fresh.load_seconds - sum(segment.seconds for segment in fresh.graphs)) * 1e3
            record.first_replay_ms = first_step_ms(fresh.timed)
        time_record(record, step.timed)


def first_step_ms(timed: Timed) -> float:
    """A step that never ran, its inputs there already."""
    timed.reset()
    timed.wait()
    begin = time.perf_counter()
    timed.step()
    timed.wait()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("workloads")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="hip")
    parser.add_argument("--modes", default="captured,planned,eager")
    options = parser.parse_args()
    device = open_benchmark_device(options.device)
    opened = time.perf_counter() - started
    record = Record(options.model, "ours", "open", detail=f"device opened in {opened:.2f} s by process {os.getpid()}")
    if isinstance(device, HipDevice):
        free, total = device.native.memory_info
        record.driver_bytes = total - free - device.native.counters.current_bytes
    write_record(record, options.out / "records.jsonl")
    contender = Contender(device, open_model(options.folder), WeightPool(device), options.model, options.out)
    for name in options.workloads.split(","):
        contender.run(Workload.parse(name), options.modes.split(","))


if __name__ == "__main__":
    main()
