"""The address audit: every pointer and number by name, and each kind of binding that no longer holds, with old and new address and what prevents it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.binding import BoundExecutable
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import NoWeights, Program
from tests.runtime.test_plain_graphs import load
from tests.training.tiny import batch, checkpoint, make

ENTRY = "prefill[N=4,R=1]"


@pytest.fixture(scope="module")
def tiny(tiny_model: ost.Model) -> ost.TextExecutable:
    return ost.compile(tiny_model, buckets={"B": [1], "T": [4]}, context=16, threads=1)


def test_every_operand_of_every_step_is_in_the_report(tiny: ost.TextExecutable) -> None:
    report = tiny.audit(ENTRY)
    assert report.ok
    assert (report.entry, report.graphs) == (ENTRY, 0)
    plan, graph = tiny.entries[ENTRY], tiny.program.graphs[ENTRY]
    by_place = {(pointer.address, pointer.nbytes) for pointer in report.pointers}
    for position, step in enumerate(plan.steps):
        for operand in step.operands:
            if operand is not None and operand.range.size:
                place = tiny.regions.address(operand.range)
                assert place in by_place
                found = [
                    pointer
                    for pointer in report.pointers
                    if (pointer.address, pointer.nbytes, pointer.region) == (*place, str(operand.range.region))
                    and pointer.first <= position <= pointer.last
                ]
                assert any(step.node in pointer.reads for pointer in found) >= operand.reads
                assert any(step.node in pointer.writes for pointer in found) >= operand.writes
    (context,) = report.of("layers.0.ffn.activated")
    assert context.source == str(graph.producers["layers.0.ffn.activated"].location)
    assert context.owner == "this executable's arena"
    (weight,) = report.of("model.embed_tokens.weight")
    assert (weight.source, weight.owner) == ("model.embed_tokens.weight", "the weights, shared by clones")
    assert {slot.name for slot in report.slots} == {binding.name for binding in plan.inputs}
    assert "0 findings" in str(report)
    report.check()


def test_every_number_is_named_with_its_value_and_what_it_is_made_of(tiny: ost.TextExecutable) -> None:
    report, plan = tiny.audit(ENTRY), tiny.entries[ENTRY]
    assert [scalar.value for scalar in report.scalars] == [param for step in plan.steps for param in step.params]
    eps = [scalar for scalar in report.scalars if scalar.source.endswith("attribute eps")]
    assert 1e-5 in {scalar.value for scalar in eps}
    assert all(scalar.source.startswith("constant of the plan: ") for scalar in report.scalars)


def test_what_a_decode_step_carries_lies_in_device_slots(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1)
    name = next(name for name in llm.executable.entries if name.startswith("decode"))
    report = llm.executable.audit(name)
    carried = {slot.name for slot in report.slots if slot.carried}
    assert {"input_ids", "position", "length", "sample_index"} <= carried
    assert not {"block_table", "token_count"} & carried


def test_modes_that_place_each_value_anew_say_so(tiny: ost.TextExecutable) -> None:
    for mode in ("eager", "reference"):
        with pytest.raises(ost.ConfigError, match="no planned addresses"):
            tiny.clone(mode).audit(ENTRY)
    with pytest.raises(ost.ConfigError, match="no entry"):
        tiny.audit("nothing")


# bindings


class Changing:
    """An array whose owner may put another in its place."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Elsewhere(Changing):
    """The same on a device that is not here."""

    def __dlpack_device__(self) -> Any:
        return (10, 3)


@pytest.fixture
def bound(rng: np.random.Generator) -> tuple[Changing, Array, BoundExecutable]:
    """y = silu(x) over buffers of the caller's."""
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((4, 6), DType.F32))
    executable = load({"main": builder.finish([builder.apply("silu", (x,), name="y")])}, "planned")
    given, result = Changing(rng.standard_normal((4, 6), np.float32)), np.zeros((4, 6), np.float32)
    return given, result, executable.bind(inputs={"x": given}, outputs={"y": result})


def refused(bound: BoundExecutable, kind: str) -> ost.AddressChanged:
    """The error of a run, which the audit lists too."""
    with pytest.raises(ost.AddressChanged) as caught:
        bound.run()
    error = caught.value
    assert error.kind == kind
    assert error.hint
    assert f"bound at {error.old:#x}" in error.message
    (finding,) = bound.audit().findings
    assert (finding.kind, finding.message, finding.hint) == (kind, error.message, error.hint)
    with pytest.raises(ost.AddressChanged, match="1 findings of main"):
        bound.audit().check()
    return error


def test_buffers_of_the_caller_are_theirs_in_the_report(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, result, executable = bound
    report = executable.audit()
    assert report.ok
    assert [pointer.owner for pointer in report.of("x")] == ["the caller's buffer bound to %x"]
    (out,) = report.of("y")
    assert (out.address, out.owner) == (result.ctypes.data, "the caller's buffer bound to %y")
    executable.run()
    assert result.any()
    assert given.array.any()


def test_a_moved_buffer(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, result, executable = bound
    old = given.array
    given.array = old.copy()
    error = refused(executable, "moved")
    assert (error.old, error.new) == (old.ctypes.data, given.array.ctypes.data)
    assert f"now at {error.new:#x}" in error.message
    assert "write into the bound buffer" in (error.hint or "")
    assert not result.any()
    given.array = old  # where it was
    executable.run()
    assert result.any()


def test_a_buffer_that_is_too_small_now(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, _, executable = bound
    given.array = given.array[:2]
    assert "now at" in refused(executable, "too small").message


def test_a_buffer_of_another_dtype_now(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, _, executable = bound
    given.array = given.array.view(np.int32)
    assert "i32[4,6], bound as f32[4,6]" in refused(executable, "changed").message


def test_a_misaligned_buffer(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, _, executable = bound
    raw = np.zeros(4 * 24 + 1, np.uint8)
    given.array = raw[1:].view(np.float32).reshape(4, 6)
    assert "not aligned" in refused(executable, "changed").message


def test_a_buffer_on_another_device_now(bound: tuple[Changing, Array, BoundExecutable]) -> None:
    given, _, executable = bound
    given.__class__ = Elsewhere
    assert refused(executable, "wrong device").new is None


def test_a_freed_buffer() -> None:
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((4, 6), DType.F32))
    executable = load({"main": builder.finish([builder.apply("silu", (x,), name="y")])}, "planned")
    memory = HostDevice(threads=1).allocate(96)
    view = ost.TensorView(memory.address, 96, (4, 6), None, "f32", "cpu", memory)
    made = executable.bind(inputs={"x": view})
    made.run()
    memory.free()
    assert "the owner of the memory freed it" in refused(made, "freed").message


def test_memory_of_the_executables_own_that_was_freed(tiny: ost.TextExecutable) -> None:
    tiny = tiny.clone()
    made = tiny.bind(entry=ENTRY)
    made.run()
    tiny.regions.arena.free()
    with pytest.raises(ost.AddressChanged, match="was freed") as caught:
        made.run()
    assert (caught.value.kind, caught.value.node) == ("freed", "host:0/arena")
    assert [finding.kind for finding in tiny.audit(ENTRY).findings] == ["freed"]


def test_a_plan_that_is_larger_than_its_memory(tiny: ost.TextExecutable) -> None:
    tiny = tiny.clone()
    tiny.runners.own(ENTRY)
    tiny.runners.regions = replace(tiny.regions, arena=tiny.device.allocate(256))
    kinds = {finding.kind for finding in tiny.audit(ENTRY).findings}
    assert kinds == {"moved", "too small"}


def test_gradients_that_the_caller_holds(tmp_path: Path) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), keep_gradients=True)
    name = step.gradient_names[0]
    held = Changing(np.zeros(step.gradient(name).shape, np.float32))
    step.bind_grad_buffer(name, held)
    step(*batch(0))
    assert step.audit().ok
    owners = {pointer.owner for pointer in step.audit().pointers}
    assert f"the caller's buffer bound to %{name}" in owners
    held.array = held.array.copy()
    (finding,) = step.audit().findings
    assert (finding.kind, finding.name) == ("moved", name)


# numbers


def test_a_row_whose_numbers_come_from_something_that_changes() -> None:
    """A learning rate that a row reads from a variable is frozen by the plan, and by every capture of it."""
    settings = {"rate": 0.5}
    target = host_target()
    row = target.row("scale", "host")
    assert row is not None
    drifting = replace(row, params=lambda site: (*row.params(site)[:-1], settings["rate"]))
    rows = tuple(drifting if each is row else each for each in target.rows)
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((4, 6), DType.F32))
    graph = builder.finish([builder.apply("scale", (x,), {"factor": 0.5}, "y")])
    lowered = run_pipeline(graph, replace(target, rows=rows)).graph
    plan = build_program({"main": (lowered, plan_entry(lowered, replace(target, rows=rows), name="main"))})
    program = Program(plan, {"main": lowered}, replace(target, rows=rows), NoWeights())
    executable: Executable = load_program(program, Route(HostDevice(threads=1), "planned"), kind=Executable)
    assert executable.audit().ok
    settings["rate"] = 0.25
    (finding,) = executable.audit().findings
    assert (finding.kind, finding.name) == ("frozen scalar", "y")
    assert "0.5" in finding.message
    assert "0.25" in finding.message
    assert "device memory" in finding.hint
