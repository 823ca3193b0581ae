"""Graphs that are no language model: pass-through, views of inputs, shared constants, outputs that alias, in every mode and with bound buffers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import NoWeights, Program


def load(graphs: Mapping[str, Graph], mode: str) -> Executable:
    target = host_target()
    lowered = {name: run_pipeline(graph, target).graph for name, graph in graphs.items()}
    plan = build_program({name: (graph, plan_entry(graph, target, name=name)) for name, graph in lowered.items()})
    check_program(plan, lowered, target)
    return load_program(
        Program(plan, lowered, target, NoWeights()), Route(HostDevice(threads=1), mode), kind=Executable
    )


def pass_through() -> Graph:
    builder = GraphBuilder("pass_through")
    x = builder.input("x", TensorType((4, 6), DType.F32))
    flat = builder.apply("reshape", (x,), {"shape": (24,), "axes": "_"}, "flat")
    part = builder.apply("slice", (x,), {"axis": 0, "start": 1, "stop": 3, "step": 1}, "part")
    return builder.finish([x, flat, part + part, part, x])


def scaled(name: str, factors: Array) -> Graph:
    builder = GraphBuilder(name)
    x = builder.input("x", TensorType((3,), DType.F32))
    return builder.finish([x * builder.constant("factors", factors)])


def residual(depth: int) -> Graph:
    builder = GraphBuilder("residual")
    x = builder.input("x", TensorType((5, 7), DType.F32))
    y: Tensor = x
    for _ in range(depth):
        y = y + builder.apply("silu", (y,))
    return builder.finish([y])


MODES = ("reference", "eager", "planned")


@pytest.mark.parametrize("mode", MODES)
def test_inputs_and_views_of_inputs_can_be_outputs(mode: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 6), np.float32)
    executable = load({"main": pass_through()}, mode)
    plan = executable.entries["main"]
    found = executable.run(None, {"x": x})
    expected = dict(zip(pass_through().outputs, (x, x.reshape(-1), x[1:3] * 2, x[1:3], x), strict=True))
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name.partition("#")[0]], err_msg=name)
    assert len(plan.outputs) == 5 or mode == "reference"


def test_bound_pass_through_copies_between_the_callers_buffers(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 6), np.float32)
    executable = load({"main": pass_through()}, "planned")
    outputs = {b.name: np.zeros(b.type.static_shape, np.float32) for b in executable.entries["main"].outputs}
    executable.bind(inputs={"x": x}, outputs=outputs).run()
    for name, array in executable.run(None, {"x": x}).items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=name)
        assert array.any()


@pytest.mark.parametrize("mode", MODES)
def test_entries_share_equal_constants_and_keep_different_ones_apart(mode: str) -> None:
    one, two = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    executable = load({"a": scaled("a", one), "b": scaled("b", two), "c": scaled("c", one)}, mode)
    assert len(executable.program.plan.constants) == 2
    x = np.array([1, 10, 100], np.float32)
    for entry, factors in (("a", one), ("b", two), ("c", one)):
        np.testing.assert_array_equal(next(iter(executable.run(entry, {"x": x}).values())), x * factors)


@pytest.mark.parametrize("mode", MODES)
def test_the_sum_of_nothing_needs_no_workspace_and_is_zero(mode: str) -> None:
    builder = GraphBuilder("empty")
    x = builder.input("x", TensorType((0, 8), DType.F32))
    executable = load({"main": builder.finish([builder.apply("reduce_sum", (x,), name="y")])}, mode)
    assert executable.run(None, {"x": np.zeros((0, 8), np.float32)})["y"] == 0


def test_a_long_chain_runs_in_two_buffers_and_equals_eager(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 7), np.float32) / 100
    planned = load({"main": residual(300)}, "planned")
    assert planned.memory.arena <= 2 * 256
    expected = planned.clone("eager").run(None, {"x": x})
    actual = planned.run(None, {"x": x})
    assert {k: v.tobytes() for k, v in actual.items()} == {k: v.tobytes() for k, v in expected.items()}
