"""Inputs that a node updates in place: planned where they lie, read by nobody after the update, and proven like state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, GraphInput, Role, Value
from ostinato.ir.step import Step, StepKind
from ostinato.planner.check import check_entry
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.saved import Purpose, program_to_json, read_plan
from ostinato.stages import Planned
from tests.frontend.small_families import small_model
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, vector

CARRIED = ("input_ids", "position", "length", "history", "history_length", "sample_index", "rotary_length")


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """A decode step whose rotary embedding depends on a length."""
    model = small_model("phi3", tmp_path_factory.mktemp("phi3"), 3, num_hidden_layers=1)
    traced = ost.trace(model, "decode", cache=ost.CacheShape(2, 4, 2))
    return traced.lower(dims={"R": 2}, name="decode").plan()


def refusal(decode: Planned, steps: Sequence[Step]) -> str:
    entry = decode.plan.model_copy(update={"steps": tuple(steps)})
    return _refusal(decode.graph, entry, decode)


def _refusal(graph: Graph, entry: EntryPlan, decode: Planned) -> str:
    program = decode.program.model_copy(update={"entries": {entry.name: entry}})
    with pytest.raises(PlanError) as caught:
        check_entry(graph, entry, program, decode.lowered.target)
    return str(caught.value)


def advance_at(entry: EntryPlan) -> int:
    return next(position for position, step in enumerate(entry.steps) if step.kernel == "advance")


def test_a_decode_step_is_proven_and_updates_its_inputs_where_they_lie(decode: Planned) -> None:
    decode.check()
    carried = [item.value.name for item in decode.graph.inputs if item.carried]
    assert sorted(carried) == sorted(CARRIED)
    ranges = {binding.name: binding.range for binding in decode.plan.inputs}
    operands = decode.plan.steps[advance_at(decode.plan)].operands
    written = {operand.value: operand.range for operand in operands if operand is not None and operand.writes}
    assert written == {name: ranges[name] for name in carried}


def test_no_reader_of_a_position_runs_behind_its_update(decode: Planned) -> None:
    """Each step that reads what the last one updates, put behind it, is refused by name of what it finds."""
    entry = decode.plan
    at = advance_at(entry)
    readers = [
        position
        for position, step in enumerate(entry.steps[:at])
        if any(operand is not None and operand.value in CARRIED for operand in step.operands)
    ]
    kernels = {entry.steps[position].kernel for position in readers}
    assert {"qkv_rope_store_f32", "attention_packed", "penalize", "sample"} < kernels
    for position in readers:
        steps = [*entry.steps[:position], *entry.steps[position + 1 : at + 1], entry.steps[position]]
        steps += entry.steps[at + 1 :]
        found = refusal(decode, steps)
        assert any(f"reads %{name} at" in found and f"of %{name}.next" in found for name in CARRIED), found


def test_an_update_that_is_left_out_or_lies_elsewhere_is_refused(decode: Planned) -> None:
    entry = decode.plan
    at = advance_at(entry)
    assert "node %input_ids.next has no step" in refusal(decode, [*entry.steps[:at], *entry.steps[at + 1 :]])
    step = entry.steps[at]
    moved = list(step.operands)
    position, other = moved[2], moved[3]
    assert position is not None
    assert other is not None
    moved[2] = replace(position, range=other.range)
    found = refusal(decode, [*entry.steps[:at], replace(step, operands=tuple(moved)), *entry.steps[at + 1 :]])
    assert "input %position" in found
    assert "is not intact at the end" in found


def test_an_input_that_is_not_carried_is_not_written(decode: Planned) -> None:
    """The same steps for a graph whose position is a plain input."""
    inputs = tuple(
        replace(item, carried=item.carried and item.value.name != "position") for item in decode.graph.inputs
    )
    graph = replace(decode.graph, inputs=inputs)
    found = _refusal(graph, decode.plan, decode)
    assert "writes %position to" in found
    assert "only its owner may change" in found
    with pytest.raises(PlanError, match=r"%position\.next: advance writes %position in place.*say that it is carried"):
        plan_entry(graph, decode.lowered.target, name="decode")


def test_an_update_is_returned_by_a_copy() -> None:
    """The bytes of an input stay where they are."""
    make = GraphMaker()
    make.input("s", 16, carried=True)
    make.input("x", 16)
    make.update("s1", "s", "x", "plain")
    graph = make.graph("s1")
    before = Graph(graph.name, graph.inputs, graph.nodes, ("s1", "s1"), graph.extents)
    for outputs, copies in ((graph, 1), (before, 2)):
        plan = plan_entry(outputs, FAKE_TARGET, name="e", ops=FAKE_OPS)
        assert [step.kind for step in plan.steps] == [StepKind.LAUNCH] + [StepKind.COPY] * copies
        program = build_program({"e": (outputs, plan)})
        check_entry(outputs, plan, program, FAKE_TARGET, ops=FAKE_OPS)


def test_a_saved_plan_is_for_the_graph_that_carries(decode: Planned, tmp_path: Path) -> None:
    decode.save(tmp_path / "plan.json")
    again = decode.lowered.load_plan(tmp_path / "plan.json")
    assert again.plan == decode.plan
    plain = replace(decode.graph, inputs=tuple(replace(item, carried=False) for item in decode.graph.inputs))
    text = program_to_json(decode.program)
    purpose = Purpose(plain, decode.lowered.dims, decode.plan.options)
    with pytest.raises(ost.StaleArtifact, match="graph"):
        read_plan(text, decode.lowered.target, {"decode": purpose})


def test_inputs_differ_by_what_is_carried() -> None:
    item = GraphInput(Value("x", vector(8)), Role.INPUT)
    assert item != replace(item, carried=True)
