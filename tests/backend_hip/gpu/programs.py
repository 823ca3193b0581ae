"""A planned decoder on a device, by tables and graphs, for the emulated machine and for a card."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_memory import HipBuffer
from ostinato.ir.step import Region, StepOperand
from ostinato.ir.types import Array
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.test_impls import stored
from tests.passes.graphs import Config, decoder, input_values, run, tensors

__all__ = ["Outcome", "decoder_on"]


@dataclass(frozen=True)
class Outcome:
    """Logits of one step of a decoder: by the interpreter, by the steps of a table, by replays of its graphs."""

    expected: Array
    planned: Array
    replayed: Array


def decoder_on(gpu: HipDevice, config: Config, rng: np.random.Generator) -> Outcome:
    """Lowers, plans and proves a decoder for the device and runs it there in both ways, from the same state."""
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    chosen = run_pipeline(graph, gpu.target, PipelineOptions()).graph
    program = build_program({"step": (chosen, plan_entry(chosen, gpu.target, name="step"))})
    check_program(program, {"step": chosen}, gpu.target)
    entry, given = program.entries["step"], {**values, **stored(chosen, checkpoint)}
    regions = {item.region: gpu.allocate(item.bytes) for item in program.regions}

    def fill() -> None:
        places = {slot.name: slot.range for slot in program.weights}
        places |= {binding.name: binding.range for binding in (*program.state, *entry.inputs)}
        for name, place in places.items():
            regions[place.region].write(given[name], place.offset)
        for constant in program.constants:
            regions[constant.range.region].write(np.frombuffer(constant.data, np.uint8), constant.range.offset)

    def logits() -> Array:
        place = next(binding.range for binding in entry.outputs if binding.name == "logits")
        kind = chosen.types["logits"]
        return regions[place.region].read(kind.dtype.numpy, kind.static_shape, place.offset)

    steps = [
        ResolvedStep(
            step.node,
            step.kind,
            step.kernel,
            tuple(_address(regions, operand) for operand in step.operands),
            step.params,
            launch=step.launch,
        )
        for step in entry.steps
    ]
    table = gpu.make_table(steps, gpu.open_stream())
    graphs = [table.capture(0, len(steps) // 2), table.capture(len(steps) // 2)]
    fill()
    table.run()
    planned = logits()
    fill()
    for part in graphs:
        part.enqueue()
    table.finish()
    return Outcome(run(graph, values, checkpoint).outputs["logits"], planned, logits())


def _address(regions: dict[Region, HipBuffer], operand: StepOperand | None) -> tuple[int, int]:
    if operand is None:
        return (0, 0)
    place = operand.range
    return regions[place.region].address + place.offset, place.size
