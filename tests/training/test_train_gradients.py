"""Kept gradients: where they lie, in whose memory, who is told when one is complete, and what it costs to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato.ir.errors import (
    AddressChanged,
    ConfigError,
    DTypeError,
    InputError,
    LayoutError,
    LifecycleError,
    ShapeError,
)
from ostinato.ir.types import Array
from ostinato.planner.memory_report import memory_answer
from ostinato.runtime.program import Program
from ostinato.runtime.training.executable import TrainExecutable
from ostinato.runtime.training.gradients import GradientReady
from tests.training.steps import TENSORS, batch, forward_graph, make, program_of, state_of, step_graph

NAMES = ("embed", "gain", "up")


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of({"train": step_graph(), "forward": forward_graph()})


def gradients(exe: TrainExecutable) -> dict[str, Array]:
    return {name: exe.gradient(name) for name in exe.gradient_names}


def test_gradients_are_those_of_the_loss(program: Program) -> None:
    """Against differences of the forward pass; the tied matrix has contributions of both its uses."""
    exe = make(program=program)
    work = {**batch(4), "settings": np.zeros(9, np.float32)}

    def loss(name: str, value: Array) -> float:
        other = make("reference", program=program)
        other.write_state(name, value)
        return other.step(work).loss

    exe.step(work)
    rng = np.random.default_rng(8)
    for name, values in TENSORS.items():
        way = rng.standard_normal(values.shape, np.float32)
        step = np.float32(1e-2)
        slope = (loss(name, values + step * way) - loss(name, values - step * way)) / (2 * step)
        assert float((exe.gradient(name) * way).sum()) == pytest.approx(slope, rel=2e-2, abs=2e-3), name


def test_no_gradient_is_copied_and_all_lie_in_io(program: Program) -> None:
    plan = program.plan.entries["train"]
    assert (plan.stats.copies, plan.stats.strided_copies) == (0, 0)
    kept = {binding.name: binding.range for binding in plan.outputs if binding.name.startswith("grad.")}
    assert sorted(kept) == [f"grad.{name}" for name in NAMES]
    writers = {
        name: [s.node for s in plan.steps if any(o and o.writes and o.range == place for o in s.operands)]
        for name, place in kept.items()
    }
    assert len(writers["grad.embed"]) == 2, writers  # the head's contribution, and the embedding's on top of it
    assert writers["grad.up"] == ["grad.up"]


def test_the_tied_contribution_is_counted(program: Program) -> None:
    exe = make(program=program)
    assert (exe.accumulation.candidates, exe.accumulation.executed) == (0, 0)
    for seed in range(3):
        exe.step(batch(seed))
    assert (exe.accumulation.candidates, exe.accumulation.executed) == (3, 3)


def test_addresses_are_the_same_in_all_steps(program: Program) -> None:
    exe = make(program=program)
    tables = []
    for seed in range(4):
        exe.step(batch(seed))
        tables.append(exe.addresses())
    assert all(table == tables[0] for table in tables)
    regions = {row.name: row.region for row in tables[0]}
    assert regions["grad.embed"] == "io"
    assert regions["embed"] == regions["first.embed"] == "state"
    assert regions["logits"] == "arena"
    assert len({row.address for row in tables[0] if row.region == "state"}) == 3 * len(NAMES) + 1
    lines = str(tables[0]).splitlines()
    assert lines[0].split() == ["value", "region", "address", "bytes", "steps"]
    assert len(lines) == len(tables[0]) + 1
    assert tables[0].of("logits")[0].nbytes == 2 * 3 * 11 * 4
    for mode in ("eager", "reference"):
        with pytest.raises(ConfigError, match="no planned addresses"):
            make(mode, program=program).addresses()


@pytest.mark.parametrize("mode", ["planned", "eager", "guarded"])
def test_a_bound_buffer_is_the_gradient(mode: str, program: Program) -> None:
    exe, plain = make(mode, program=program), make(program=program)
    ids = {"input_ids": batch(7)["input_ids"]}
    exe.step(batch(0)), plain.step(batch(0))
    mine = {name: np.full(TENSORS[name].shape, 7, np.float32) for name in ("embed", "up")}
    for name, buffer in mine.items():
        exe.bind_grad_buffer(name, buffer)
        assert not buffer.any(), "zeroed when it is bound"
    for seed in (1, 2):
        assert exe.step(batch(seed)).loss == plain.step(batch(seed)).loss
        for name, array in gradients(plain).items():
            np.testing.assert_array_equal(exe.gradient(name), array, err_msg=name)
        for name, buffer in mine.items():
            np.testing.assert_array_equal(buffer, plain.gradient(name), err_msg=name)
    np.testing.assert_array_equal(exe.run("forward", ids)["logits"], plain.run("forward", ids)["logits"])
    assert state_of(exe) == state_of(plain)
    kept = mine["up"].copy()
    exe.zero_grad()
    assert not any(array.any() for array in gradients(exe).values())
    assert not mine["up"].any()
    exe.step(batch(3)), plain.step(batch(3))
    np.testing.assert_array_equal(mine["up"], plain.gradient("up"))
    assert not np.array_equal(mine["up"], kept)
    kept = mine["up"].copy()
    exe.unbind_grad_buffer("up")
    assert not exe.gradient("up").any()
    exe.step(batch(4)), plain.step(batch(4))
    np.testing.assert_array_equal(mine["up"], kept)
    np.testing.assert_array_equal(exe.gradient("up"), plain.gradient("up"))
    np.testing.assert_array_equal(mine["embed"], plain.gradient("embed"))


def test_the_addresses_of_bound_buffers_are_the_callers(program: Program) -> None:
    exe = make(program=program)
    buffer = np.ones((8, 8), np.float32)
    own = exe.addresses().of("grad.up")[0].address
    exe.bind_grad_buffer("up", buffer, zero=False)
    assert buffer.all(), "kept as it was"
    assert exe.addresses().of("grad.up")[0].address == buffer.ctypes.data
    exe.step(batch(0))
    exe.zero_grad()
    assert exe.addresses().of("grad.up")[0].address == buffer.ctypes.data
    exe.unbind_grad_buffer("up")
    assert exe.addresses().of("grad.up")[0].address == own


def test_buffers_that_cannot_be_bound(program: Program) -> None:
    exe = make(program=program)
    good = np.zeros((8, 8), np.float32)
    read_only = np.zeros((8, 8), np.float32)
    read_only.flags.writeable = False
    odd = np.zeros(8 * 8 * 4 + 32, np.uint8)
    at = (-odd.ctypes.data) % 16 + 4
    shifted = odd[at : at + 8 * 8 * 4].view(np.float32).reshape(8, 8)
    inside = exe.regions.io.view(np.float32, (8, 8))  # type: ignore[attr-defined]
    cases: list[tuple[str, object, type[Exception], str]] = [
        ("up", np.zeros((8, 4), np.float32), ShapeError, r"expected shape \[8, 8\]"),
        ("up", np.zeros((8, 8), np.float16), DTypeError, "a gradient is f32, found f16"),
        ("up", np.zeros((8, 16), np.float32)[:, ::2], LayoutError, "not contiguous"),
        ("up", read_only, LayoutError, "needs writable memory"),
        ("up", shifted, LayoutError, "no multiple of 16"),
        ("up", inside, LayoutError, "overlaps the executable's io"),
        ("logits", good, LifecycleError, "it is no leaf"),
        ("input_ids", good, LifecycleError, "its gradient is not kept"),
        ("nothing", good, InputError, "no parameter is called 'nothing'"),
    ]
    for name, buffer, error, words in cases:
        with pytest.raises(error, match=words):
            exe.bind_grad_buffer(name, buffer)
    exe.bind_grad_buffer("up", good)
    with pytest.raises(LifecycleError, match="a buffer is bound already"):
        exe.bind_grad_buffer("up", np.zeros((8, 8), np.float32))
    with pytest.raises(LayoutError, match="overlaps"):
        exe.bind_grad_buffer("gain", good[0])
    with pytest.raises(LifecycleError, match="no buffer is bound"):
        exe.unbind_grad_buffer("gain")
    with pytest.raises(ConfigError, match="memory of its own"):
        make("reference", program=program).bind_grad_buffer("up", good)
    unkept = make(program=program_of({"train": step_graph(keep=False)}))
    assert unkept.gradient_names == ()
    with pytest.raises(LifecycleError, match="its gradient is not kept"):
        unkept.bind_grad_buffer("up", good)


class _Moving:
    """An array whose memory is another one later."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_a_buffer_that_was_replaced_stops_the_step(program: Program) -> None:
    exe = make(program=program)
    moving = _Moving(np.zeros((8, 8), np.float32))
    exe.bind_grad_buffer("up", moving)
    exe.step(batch(0))
    before = state_of(exe)
    moving.array = np.zeros((8, 8), np.float32)
    with pytest.raises(AddressChanged, match="bound at"):
        exe.step(batch(1))
    assert (state_of(exe), exe.number) == (before, 1)


@pytest.mark.parametrize("mode", ["planned", "eager"])
def test_a_hook_is_called_once_a_step_when_the_gradient_is_complete(mode: str, program: Program) -> None:
    exe, plain = make(mode, program=program), make(program=program)
    seen: list[tuple[str, int, Array]] = []

    def note(ready: GradientReady) -> None:
        seen.append((ready.name, ready.step, ready.values()))

    remove = [exe.on_gradient_ready(name, note) for name in NAMES]
    for seed in range(3):
        assert exe.step(batch(seed)).loss == plain.step(batch(seed)).loss
        told = {name: array for name, step, array in seen if step == seed + 1}
        assert len(seen) == 3 * (seed + 1)
        for name in NAMES:
            np.testing.assert_array_equal(told[name], plain.gradient(name), err_msg=name)
    assert exe.gradient_marks == 9
    assert state_of(exe) == state_of(plain)
    for take_back in remove:
        take_back()
    exe.step(batch(5))
    assert (len(seen), exe.gradient_marks) == (9, 9)


def test_a_hook_costs_one_submission_and_none_costs_nothing(program: Program) -> None:
    exe = make(program=program)
    assert (exe.submissions, exe.gradient_marks) == (1, 0)
    exe.step(batch(0))
    assert exe.gradient_marks == 0
    take_back: Callable[[], None] = exe.on_gradient_ready("up", lambda ready: None)
    assert exe.submissions == 2
    event = exe.gradient_event("embed")
    assert exe.submissions == 3
    exe.step(batch(1))
    assert exe.gradient_marks == 2
    assert event.recorded == 1
    event.wait()
    take_back()
    exe.drop_gradient_event("embed")
    assert exe.submissions == 1


def test_a_hook_that_fails_is_raised_behind_the_whole_step(program: Program) -> None:
    exe, plain = make(program=program), make(program=program)

    def fail(ready: GradientReady) -> None:
        raise ZeroDivisionError(ready.name)

    exe.on_gradient_ready("up", fail)
    with pytest.raises(ZeroDivisionError, match="up"):
        exe.step(batch(0))
    plain.step(batch(0))
    assert state_of(exe) == state_of(plain)
    assert exe.number == 1


def test_hooks_and_events_that_cannot_be(program: Program) -> None:
    for mode in ("reference", "guarded"):
        exe = make(mode, program=program)
        with pytest.raises(ConfigError, match="calls nobody within a step"):
            exe.on_gradient_ready("up", lambda ready: None)
        with pytest.raises(ConfigError, match="records no events"):
            exe.gradient_event("up")
    exe = make(program=program)
    with pytest.raises(LifecycleError, match="no leaf"):
        exe.on_gradient_ready("logits", lambda ready: None)
    with pytest.raises(ConfigError, match="a hook is called, found int"):
        exe.on_gradient_ready("up", 3)  # type: ignore[arg-type]
    with pytest.raises(LifecycleError, match="no step has recorded"):
        exe.gradient_event("up").wait()


def test_the_memory_of_a_step_is_known_from_its_plan(program: Program) -> None:
    answer = memory_answer(program.plan, program.graphs["train"])
    exe = make(program=program)
    assert answer.total == exe.memory.total
    assert answer.parameters == sum(array.nbytes for array in TENSORS.values()) == exe.memory.parameters
    assert answer.gradients == answer.gradients_kept == answer.parameters
    assert (answer.gradients_live, answer.mirrors) == (0, 0)
    assert answer.arena == exe.memory.arena
    assert 0 < answer.saved <= answer.lower_bound <= answer.arena
    assert answer.verdict == f"{answer.total} bytes"
    assert answer.within(answer.total).verdict == f"fits: {answer.total} of {answer.total} bytes"
    short = answer.within(answer.total - 1)
    assert (short.fits, short.missing) == (False, 1)
    assert short.verdict.startswith(f"1 bytes short of {answer.total}; the most is held by %")
    assert short.verdict.count("tests/training/steps.py:") == 5
    assert type(answer).model_validate_json(short.model_dump_json()) == short
    sizes = [tenant.bytes for tenant in answer.peak]
    assert sizes == sorted(sizes, reverse=True)
    live = exe.plan.usage()[answer.peak_step].live
    assert sum(sizes) == live


def test_gradients_that_are_not_kept_lie_in_the_arena() -> None:
    program = program_of({"train": step_graph(keep=False)})
    answer = memory_answer(program.plan, program.graphs["train"], limit="1GiB")
    assert (answer.gradients_kept, answer.gradients) == (0, answer.parameters)
    assert 0 < answer.gradients_live <= answer.gradients
    assert answer.fits
    assert "saved for backward" in str(answer)
