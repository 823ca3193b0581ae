"""Targets of GPUs: which rows they have, and decoders planned for them, proven, and run step by step on the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import STATUS_BYTES, KernelName, instance_of, modules
from ostinato.backend_hip.target import hip_target
from ostinato.ir.errors import ConfigError, PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import Launch, Region, StepKind
from ostinato.ir.types import Array, DType
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.plan_text import print_entry
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from tests.backend_hip.test_impls import stored
from tests.kernels.emulated import compiled
from tests.kernels.gemm import multiply
from tests.passes.graphs import Config, decoder, input_values, run, tensors

TARGETS = {"gfx942": 64, "gfx1100": 32}
CONFIGS = {
    "dense": Config(),
    "packed": Config(packed=True),
    "blocks": Config(matrix=DType.Q8_0, layers=1, width=16, heads=2, kv_heads=1, ffn=64),
}


def planned(graph: Graph, architecture: str) -> ProgramPlan:
    """A proven program of one entry."""
    target = hip_target(architecture, TARGETS[architecture])
    program = build_program({"step": (graph, plan_entry(graph, target, name="step"))})
    check_program(program, {"step": graph}, target)
    return program


def lowered(config: Config, architecture: str) -> Graph:
    target = hip_target(architecture, TARGETS[architecture])
    return run_pipeline(decoder(config), target, PipelineOptions()).graph


class Memory:
    """Every region of a program in this process, poisoned, with its weights, constants, states and inputs in place."""

    def __init__(self, program: ProgramPlan, graph: Graph, values: dict[str, Array]) -> None:
        self.regions = {item.region: np.full(item.bytes + 256, 0xFF, np.uint8) for item in program.regions}
        entry = program.entries["step"]
        places = {slot.name: slot.range for slot in program.weights}
        places |= {binding.name: binding.range for binding in (*program.state, *entry.inputs)}
        for name, place in places.items():
            data = np.ascontiguousarray(values[name]).reshape(-1).view(np.uint8)
            self.bytes(place.region, place.offset, place.size)[:] = data
        for constant in program.constants:
            place = constant.range
            self.bytes(place.region, place.offset, place.size)[:] = np.frombuffer(constant.data, np.uint8)

    def bytes(self, region: Region, offset: int, size: int) -> Array:
        memory = self.regions[region]
        start = -memory.ctypes.data % 256 + offset
        return memory[start : start + size]


def run_plan(program: ProgramPlan, graph: Graph, wave: int, values: dict[str, Array]) -> dict[str, Array]:
    """Outputs and states after the steps ran one after the other."""
    entry, memory, status = (
        program.entries["step"],
        Memory(program, graph, values),
        np.zeros(STATUS_BYTES // 4, np.uint32),
    )
    launched = [(step, step.launch) for step in entry.steps if step.launch is not None]
    made = compiled(modules(instance_of(s.kernel, len(s.operands), s.params, launch) for s, launch in launched), wave)
    for number, step in enumerate(entry.steps):
        places = [None if operand is None else operand.range for operand in step.operands]
        if step.kind is StepKind.COPY:
            source, target = (memory.bytes(p.region, p.offset, p.size) for p in places if p is not None)
            target[:] = source
            continue
        if step.kind is StepKind.GEMM:
            multiply(step.params, [None if p is None else memory.bytes(p.region, p.offset, p.size) for p in places])
            continue
        assert step.launch is not None
        addresses = [0 if p is None else memory.bytes(p.region, p.offset, p.size).ctypes.data for p in places]
        name = KernelName.parse(step.kernel)
        made[name.file].launch(
            name.symbol, step.launch, addresses, step.params, status=status.ctypes.data, step=number, seed=number
        )
    assert status[0] == 0
    found = {}
    for binding in (*entry.outputs, *program.state):
        raw = memory.bytes(binding.range.region, binding.range.offset, binding.range.size)
        found[binding.name] = raw.view(binding.type.dtype.numpy).reshape(binding.type.static_shape).copy()
    return found


@pytest.mark.parametrize("architecture", TARGETS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_planned_decoder_equals_the_interpreter(name: str, architecture: str, rng: np.random.Generator) -> None:
    config = CONFIGS[name]
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    chosen = lowered(config, architecture)
    expected = run(graph, values, checkpoint)
    weights = stored(chosen, checkpoint)
    actual = run_plan(planned(chosen, architecture), chosen, TARGETS[architecture], {**values, **weights})
    spread = float(np.std(expected.outputs["logits"]))
    np.testing.assert_allclose(actual["logits"], expected.outputs["logits"], rtol=0, atol=1e-4 * spread)
    for cache_name, array in expected.state.items():
        np.testing.assert_allclose(actual[cache_name], array, rtol=0, atol=1e-4)


def test_weights_keep_the_layout_of_the_checkpoint() -> None:
    graph = lowered(CONFIGS["blocks"], "gfx942")
    assert all(item.value.type.is_natural for item in graph.with_role(Role.WEIGHT))


def test_a_plan_for_a_gpu_says_its_launches_and_is_saved_with_them() -> None:
    program = planned(lowered(CONFIGS["packed"], "gfx1100"), "gfx1100")
    entry = program.entries["step"]
    launches = [step for step in entry.steps if step.kind is StepKind.LAUNCH]
    assert launches
    assert all(step.launch is not None and step.device == "hip:0" for step in launches)
    norm = next(step for step in launches if step.kernel.startswith("norm/norm:rms_norm"))
    assert norm.launch == Launch((7, 1, 1), (256, 1, 1), early=True)
    assert f"{norm.kernel}" in print_entry(entry)
    assert "launch 7x1x1*256~" in print_entry(entry)
    assert program_from_json(program_to_json(program)) == program


def test_a_launch_that_is_not_the_rows_is_refused() -> None:
    graph = lowered(CONFIGS["dense"], "gfx942")
    program, target = planned(graph, "gfx942"), hip_target("gfx942", 64)
    entry = program.entries["step"]
    for launch in (None, Launch((1, 1, 1), (64, 1, 1))):
        steps = (replace(entry.steps[0], launch=launch), *entry.steps[1:])
        wrong = program.model_copy(update={"entries": {"step": entry.model_copy(update={"steps": steps})}})
        with pytest.raises(PlanError, match=f"is launched as {launch or 'None'}".replace("*", r"\*")):
            check_program(wrong, {"step": graph}, target)


def test_a_target_has_the_rows_for_every_gpu_for_its_wave_and_for_itself() -> None:
    for architecture, wave in TARGETS.items():
        target = hip_target(architecture, wave)
        assert (target.name, target.device) == (architecture, "hip:0")
        assert {row.op for row in target.rows} == {row.op for row in HIP_ROWS}
        assert all({"hip", f"wave{wave}", architecture}.intersection(row.architectures) for row in target.rows)
    for wrong in ("host", "gfx", "sm90", "gfx942:xnack-"):
        with pytest.raises(ConfigError, match="the architecture of a GPU"):
            hip_target(wrong, 64)
    with pytest.raises(ConfigError, match="32 or 64"):
        hip_target("gfx942", 16)


def test_a_launch_has_no_empty_extent() -> None:
    assert str(Launch((2, 3, 1), (64, 1, 1), 1024)) == "2x3x1*64+1024"
    for grid, block, shared in (((0, 1, 1), (64, 1, 1), 0), ((1, 1, 1), (0, 1, 1), 0), ((1, 1, 1), (64, 1, 1), -1)):
        with pytest.raises(PlanError, match="extents of 1 or more"):
            Launch(grid, block, shared)
