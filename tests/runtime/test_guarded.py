"""The guarded mode: bit-equal to planned, and a kernel that leaves its bytes, or a step that reads what is over, is found and named.

The faults are made by a device whose tables write a few bytes more after one step, as a kernel with a wrong bound would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice, HostTable
from ostinato.backend_hip.steps import NativeStep
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.errors import BackendError, BoundsError, ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.step import ByteRange, Step
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import GUARD_BYTES, PlanSettings
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.guarded import pattern
from ostinato.runtime.options import Route
from ostinato.runtime.program import NoWeights, Program

ROWS, COLUMNS = 5, 16
SIZE = 4 * ROWS * COLUMNS
GUARDED = PlanSettings(order="program", guard=GUARD_BYTES, in_place=False)


def chain() -> Graph:
    """Two values live side by side, one of them for longer, and a sum at the end."""
    builder = GraphBuilder("chain")
    x = builder.input("x", TensorType((ROWS, COLUMNS), DType.F32))
    a = builder.apply("silu", (x,), name="a")
    b = builder.apply("tanh", (a,), name="b")
    c = builder.apply("silu", (b,), name="c")
    d = builder.apply("tanh", (c,), name="d")
    y = builder.apply("add", (a, d), name="y")
    z = builder.apply("softmax", (y,), name="z")
    return builder.finish([builder.apply("reduce_sum", (z,), name="total"), z])


@dataclass(frozen=True)
class Fault:
    """`count` bytes of `value` written, after the step of that node, at an address that follows from its operands' (address, bytes)."""

    node: str
    address: Callable[[Sequence[tuple[int, int]]], int]
    count: int = 1
    value: int = 7


class FaultyTable:
    """A table in whose runs one step writes more than it should."""

    def __init__(self, table: HostTable, steps: Sequence[NativeStep], fault: Fault | None) -> None:
        self._table, self._steps, self._fault = table, steps, fault

    @property
    def status_bytes(self) -> int:
        return self._table.status_bytes

    def finish(self) -> None:
        self._table.finish()

    def run(self, first: int = 0, count: int = -1) -> None:
        self.enqueue(first, count)

    def capture(self, first: int = 0, count: int = -1) -> NoReturn:
        self._table.capture(first, count)

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        for position in range(first, len(self._steps) if count < 0 else first + count):
            self._table.run(position, 1)
            step = self._steps[position]
            if self._fault is not None and step.node == self._fault.node:
                ctypes.memset(self._fault.address(step.operands), self._fault.value, self._fault.count)


class FaultyDevice(HostDevice):
    fault: Fault | None = None

    def make_table(self, steps: Sequence[NativeStep], stream: object = None) -> FaultyTable:  # type: ignore[override]
        return FaultyTable(super().make_table(steps, stream), list(steps), self.fault)


def planned(settings: PlanSettings = GUARDED, change: Callable[[EntryPlan], EntryPlan] | None = None) -> Program:
    """The chain, planned, and proven unless it is changed."""
    target = host_target()
    graph = run_pipeline(chain(), target).graph
    entry = plan_entry(graph, target, name="main", settings=settings)
    if change is not None:
        entry = change(entry)
    plan = build_program({"main": (graph, entry)})
    if change is None:
        check_program(plan, {"main": graph}, target)
    return Program(plan, {"main": graph}, target, NoWeights())


def load(program: Program, mode: str = "guarded", fault: Fault | None = None) -> Executable:
    device = FaultyDevice(threads=1)
    device.fault = fault
    return load_program(program, Route(device, mode), kind=Executable)


@pytest.fixture
def x(rng: np.random.Generator) -> Array:
    return rng.standard_normal((ROWS, COLUMNS), np.float32)


# the pattern


@pytest.mark.parametrize("offset", [0, 2, 4, 8, 256, 1022])
def test_the_pattern_is_nan_in_every_float_type_and_negative_in_every_integer_type(offset: int) -> None:
    held = pattern(4096)[offset : offset + 2048]
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        assert np.isnan(held.view(dtype).astype(np.float64)).all(), dtype
    for dtype in (np.int64, np.int32):
        assert np.all(held.view(dtype).astype(np.int64) < 0), dtype


def test_the_pattern_differs_from_place_to_place() -> None:
    """Copied from one red zone into another it shows."""
    held = pattern(4096)
    for shift in (2, 4, 16, 64, 256, 1024):
        assert (held[shift:] != held[:-shift]).mean() > 0.4
    assert len(pattern(7)) == 7


# the plan with guards


def apart(entry: EntryPlan) -> Iterator[int]:
    """Bytes between slots that live together, before the first and behind the last."""
    for index, slot in enumerate(entry.slots):
        yield slot.range.offset
        yield entry.stats.arena_bytes - slot.range.end
        for other in entry.slots[:index]:
            if slot.first < other.last and other.first < slot.last:
                yield max(slot.range.offset - other.range.end, other.range.offset - slot.range.end)


@pytest.mark.parametrize("guard", [1, 64, GUARD_BYTES, 1000])
@pytest.mark.parametrize("reuse", [True, False])
def test_slots_that_live_together_have_their_guards_between_them(guard: int, reuse: bool) -> None:
    entry = planned(PlanSettings(guard=guard, reuse=reuse)).plan.entries["main"]
    assert min(apart(entry)) >= guard
    assert min(apart(planned(PlanSettings(reuse=reuse)).plan.entries["main"])) == 0
    assert entry.options["guard"] == str(guard)


def test_guards_are_no_negative_number() -> None:
    with pytest.raises(ConfigError, match="guard is -1, expected an integer of 0 or more"):
        PlanSettings(guard=-1)


# right programs


@pytest.mark.parametrize("settings", [GUARDED, PlanSettings(), PlanSettings(guard=64, reuse=False)])
def test_it_gives_the_bits_of_planned_again_and_again(settings: PlanSettings, rng: np.random.Generator) -> None:
    program = planned(settings)
    expected, found = load(planned(PlanSettings()), "planned"), load(program)
    for _ in range(3):
        given = {"x": rng.standard_normal((ROWS, COLUMNS), np.float32)}
        a, b = expected.run(None, given), found.run(None, given)
        assert {name: array.tobytes() for name, array in a.items()} == {name: b[name].tobytes() for name in a}


def test_nothing_is_left_in_the_arena(x: Array) -> None:
    executable = load(planned())
    executable.run(None, {"x": x})
    arena = executable.regions.arena
    np.testing.assert_array_equal(arena.read(np.uint8, (arena.nbytes,)), pattern(arena.nbytes))


def test_an_observer_sees_every_result_before_it_is_over(x: Array) -> None:
    seen: dict[str, Array] = {}
    executable = load(planned()).clone(observer=lambda name, values: seen.update({name: np.array(values)}))
    executable.run(None, {"x": x})
    eager: dict[str, Array] = {}
    executable.clone("eager", lambda name, values: eager.update({name: np.array(values)})).run(None, {"x": x})
    assert set(seen) == set(eager)
    for name, values in eager.items():
        np.testing.assert_array_equal(seen[name], values, err_msg=name)


# kernels that leave their bytes


def behind(operands: Sequence[tuple[int, int]]) -> int:
    address, size = operands[-1]
    return address + size


def before(operands: Sequence[tuple[int, int]]) -> int:
    return operands[-1][0] - 1


def into_its_operand(operands: Sequence[tuple[int, int]]) -> int:
    return operands[0][0] + 3


def far_behind(operands: Sequence[tuple[int, int]]) -> int:
    return operands[-1][0] + operands[-1][1] + GUARD_BYTES - 1


def result_of(entry: EntryPlan, node: str) -> int:
    """Which operand of a node's step is its result, from the back: kernels take spare operands too."""
    step = next(step for step in entry.steps if step.node == node)
    found = [index for index, o in enumerate(step.operands) if o is not None and o.value == node]
    return found[-1] - len(step.operands)


FAULTS: dict[str, tuple[str, Callable[[Sequence[tuple[int, int]]], int], str]] = {
    "behind its result": ("b", behind, r"byte 1 behind the end of %b \(host:0/arena\[\d+:\d+\]\)"),
    "before its result": ("b", before, r"byte 1 before %b "),
    "at the end of the red zone": ("b", far_behind, rf"byte {GUARD_BYTES} behind the end of %b "),
    "in a live slot": ("b", into_its_operand, r"byte 3 of %a\n"),
    "in an input": ("a", into_its_operand, r"byte 3 of input %x\n"),
    "behind an output": ("z", behind, r"byte 1 behind the end of %z \(host:0/io\[\d+:\d+\]\)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_writes_beside_its_results_is_named(fault: str, x: Array) -> None:
    node, address, words = FAULTS[fault]
    program = planned()
    number = result_of(program.plan.entries["main"], node)
    executable = load(program, fault=Fault(node, lambda operands: address([operands[0], operands[number]])))
    with pytest.raises(BackendError, match=words) as caught:
        executable.run(None, {"x": x})
    message, steps = caught.value.message, [step.node for step in program.plan.entries["main"].steps]
    assert f"step {steps.index(node)} (" in message
    assert "test_guarded.py:" in message
    assert "changed a byte that is not its own at host:0/" in message
    assert caught.value.node == node
    assert caught.value.hint is not None


def test_several_bytes_are_counted_and_the_next_run_starts_clean(x: Array) -> None:
    program = planned()
    number = result_of(program.plan.entries["main"], "c")
    executable = load(program, fault=Fault("c", lambda operands: behind([operands[number]]), count=5))
    for _ in range(2):
        with pytest.raises(BackendError, match=r"changed 5 bytes that are not its own, the first at .*byte 1 behind"):
            executable.run(None, {"x": x})


def test_without_guards_a_write_into_a_neighbour_is_found_all_the_same(x: Array) -> None:
    program = planned(PlanSettings(order="program", in_place=False))
    number = result_of(program.plan.entries["main"], "b")
    executable = load(program, fault=Fault("b", lambda operands: behind([operands[number]])))
    with pytest.raises(BackendError, match="changed a byte that is not its own"):
        executable.run(None, {"x": x})


# steps that read what is over, or not there yet


def reading(node: str, from_slot_of: str) -> Callable[[EntryPlan], EntryPlan]:
    """The first operand of one step is read where another value lies."""

    def change(entry: EntryPlan) -> EntryPlan:
        place = next(slot.range for slot in entry.slots if from_slot_of in slot.values)

        def changed(step: Step) -> Step:
            first = step.operands[0]
            assert first is not None
            moved = replace(first, range=ByteRange(place.region, place.offset, first.range.size))
            return replace(step, operands=(moved, *step.operands[1:])) if step.node == node else step

        return entry.model_copy(update={"steps": tuple(map(changed, entry.steps))})

    return change


@pytest.mark.parametrize(("node", "other"), [("d", "b"), ("b", "d")], ids=["after its end", "before its begin"])
def test_a_read_of_dead_bytes_is_nan(node: str, other: str, x: Array) -> None:
    """Planned gives numbers, which look right."""
    spoiled = planned(replace(GUARDED, reuse=False), reading(node, other))
    ordinary = load(spoiled, "planned").run(None, {"x": x})["z"]
    assert np.isfinite(ordinary).all()
    assert np.isnan(load(spoiled).run(None, {"x": x})["z"]).all()


def test_an_index_that_nobody_wrote_is_out_of_range() -> None:
    builder = GraphBuilder("gather")
    table = builder.input("table", TensorType((8, 4), DType.F32))
    scores = builder.input("scores", TensorType((3, 8), DType.F32))
    rows = builder.apply("argmax", (scores,), name="rows")
    target = host_target()
    graph = run_pipeline(builder.finish([builder.apply("gather_rows", (table, rows), name="y")]), target).graph
    entry = plan_entry(graph, target, name="main", settings=GUARDED)
    program = Program(build_program({"main": (graph, entry)}), {"main": graph}, target, NoWeights())
    given = {"table": np.ones((8, 4), np.float32), "scores": np.ones((3, 8), np.float32)}
    load(program).run(None, given)
    late = entry.model_copy(update={"steps": entry.steps[::-1]})
    spoiled = replace(program, plan=build_program({"main": (graph, late)}))
    load(spoiled, "planned").run(None, given)  # reads the zeros of a new arena, as if they were rows
    with pytest.raises(BoundsError):
        load(spoiled).run(None, given)


# models


def test_a_model_compiled_for_it_says_so_and_cannot_be_bound(tiny_model: ost.Model) -> None:
    options: dict[str, Any] = {"buckets": {"B": [1], "T": [4]}, "context": 16, "threads": 1}
    guarded = ost.compile(tiny_model, mode="guarded", **options)
    ordinary = ost.compile(tiny_model, **options)
    assert guarded.mode == "guarded"
    assert guarded.reason == ""
    assert guarded.memory.arena > ordinary.memory.arena
    assert guarded.memory.weights == ordinary.memory.weights
    for executable in (guarded, ordinary.clone("guarded")):
        found = executable(input_ids=[[1, 2, 3]])["logits"]
        np.testing.assert_array_equal(found, ordinary(input_ids=[[1, 2, 3]])["logits"])
    with pytest.raises(ConfigError, match="runs in mode guarded"):
        guarded.bind()


def test_generation_runs_guarded_and_without_reuse(tiny_model: ost.Model) -> None:
    params = ost.SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False)
    variants: tuple[dict[str, Any], ...] = ({}, {"mode": "guarded"}, {"reuse": False})
    answers = [
        ost.LLM(tiny_model, max_num_seqs=2, context=16, threads=1, **options).generate([[1, 2, 3]], params)[0]
        for options in variants
    ]
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
