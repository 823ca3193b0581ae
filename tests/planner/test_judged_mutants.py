"""The checker against thousands of spoiled plans: it refuses exactly those that do harm or break a promise, as an executor on tagged bytes judges them.

Random graphs of the fake operators on one and two lanes and devices, some of gigabytes, and graphs of real models of every family. Each test says how many
mutants of each kind it ran and fails when there were too few; together they judge at least 10,000 harmful and 10,000 harmless ones. Every disagreement
of checker and judge fails, and a checker with any one of its parts taken out is caught.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.backend_hip.target import host_target
from ostinato.frontend.model import CacheShape
from ostinato.ir.ops import OP
from ostinato.ir.step import ByteRange
from ostinato.ir.text import parse_graph
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner import check, check_step, replay
from tests.frontend.small_families import SMALL_FAMILIES, small_model
from tests.planner import mutants_operands as operands
from tests.planner import mutants_order as order
from tests.planner import mutants_places as places
from tests.planner.mutation_cases import Case, Mutant, fake_case, plan_case, random_schedule
from tests.planner.mutation_run import Tally, spoil

Named = Iterator[tuple[str, random.Random, Case]]

STRIDED = """graph @strided {
  input %x: f32[N:5,C:24]
  %a: f32[N:5,C:24] = silu(%x)
  %left: f32[N:5,C:8] = slice(%a) {axis=1, start=0, stop=8}
  %right: f32[N:5,C:8] = slice(%a) {axis=1, start=16, stop=24}
  %third: f32[N:2,C:24] = slice(%a) {axis=0, start=0, stop=5, step=3}
  %turned: f32[C:8,N:5] = transpose(%right) {order=[1, 0]}
  %l: f32[N:5,C:8] = contiguous(%left)
  %r: f32[C:8,N:5] = contiguous(%turned)
  %t: f32[N:2,C:24] = contiguous(%third)
  %b: f32[N:5,C:24] = tanh(%a)
  %s: f32[N:5,C:8] = silu(%l)
  %u: f32[C:8,N:5] = silu(%r)
  %y: f32[N:5,C:24] = silu(%b)
  return %s, %u, %y, %t
}
"""


def report(tally: Tally, *, harmful: int, harmless: int) -> None:
    """Prints the counts; fails for a disagreement and for too few mutants."""
    print(tally)
    assert not tally.disagreements, "\n".join(tally.disagreements[:5])
    assert tally.total("harmful") >= harmful, f"{tally.total('harmful')} harmful mutants, {harmful} expected"
    assert tally.total("harmless") >= harmless, f"{tally.total('harmless')} harmless mutants, {harmless} expected"


def fake_cases(seed: int, count: int, **form: Any) -> Named:
    for number in range(count):
        rng = random.Random(f"{seed}.{number}")
        yield f"seed {seed}, case {number}, {form}", rng, fake_case(rng, **form)


def real_cases(seed: int, directory: Path) -> Named:
    """Every family's step and decode (an encoder's whole pass), fused and unfused, on one lane and on two; a dense pass; strided views."""
    target = host_target()
    unfused = ("fuse_qkv", "fuse_swiglu", "fuse_add_norm", "cse", "fold_constants")
    graphs = {"strided": run_pipeline(parse_graph(STRIDED), target, PipelineOptions()).graph}
    for name in SMALL_FAMILIES:
        model = small_model(name, directory / name, seed, num_hidden_layers=1)
        if name == "bert":
            traced, dims = ost.trace(model, "embed"), {"N": 5, "R": 2}
        else:
            traced, dims = ost.trace(model, "step", cache=CacheShape(2, 4, 2), sampling=True), {"N": 5, "R": 2}
            graphs[f"{name} dense"] = ost.trace(model, "forward").lower(dims={"B": 2, "T": 3}).graph
            graphs[f"{name} decode"] = ost.trace(model, "decode", cache=CacheShape(2, 4, 2)).lower(dims={"R": 2}).graph
        graphs[name] = traced.lower(dims=dims).graph
        graphs[f"{name} unfused"] = traced.lower(dims=dims, disable=unfused).graph
    for name, graph in graphs.items():
        for lanes in (1, 2):
            rng = random.Random(f"{seed}.{name}.{lanes}")
            schedule = random_schedule(rng, graph, OP, lanes=lanes) if lanes > 1 else None
            yield f"seed {seed}, {name} on {lanes} lanes", rng, plan_case(graph, target, OP, schedule)


@pytest.mark.slow
def test_one_lane(seed: int) -> None:
    tally = spoil(fake_cases(seed, 820), 30)
    report(tally, harmful=5500, harmless=4500)
    assert_both(
        tally,
        places.slot_one_unit_off,
        places.last_use_dropped,
        places.life_begins_late,
        places.life_one_step_off,
        places.size_shrunk,
        places.alias_broken,
        places.overlap_of_one_byte,
        operands.wrong_region,
        order.neighbours_exchanged,
        order.step_moved,
    )
    for kind in (places.result_onto_an_operand, places.workspace_onto_an_operand, operands.reads_exchanged):
        assert tally.of(kind, "harmful") >= 100, kind.__name__


@pytest.mark.slow
def test_two_lanes(seed: int) -> None:
    """In every interleaving that the waits allow."""
    tally = spoil(fake_cases(seed, 750, lanes=2), 30)
    report(tally, harmful=2700, harmless=4200)
    assert_both(tally, order.wait_dropped, order.signal_moved, order.step_on_another_lane, places.size_shrunk)
    assert tally.of(order.wait_added, "harmless") >= 100


def assert_both(tally: Tally, *kinds: Mutant, least: int = 25) -> None:
    """Of each kind there were some that do harm and some that do not: a checker that looks at the kind alone is found out."""
    for kind in kinds:
        assert min(tally.of(kind, "harmful"), tally.of(kind, "harmless")) >= least, kind.__name__


@pytest.mark.parametrize("lanes", [1, 2])
def test_two_devices(seed: int, lanes: int) -> None:
    """Two arenas, and copies between them."""
    report(spoil(fake_cases(seed, 60, lanes=lanes, devices=2), 30), harmful=250, harmless=300)


def test_offsets_beyond_32_bits(seed: int) -> None:
    """Values of gigabytes: what a 31 or 32 bit offset would keep of a place collides with what lies there."""
    tally = spoil(fake_cases(seed, 100, huge=1), 40)
    report(tally, harmful=900, harmless=600)
    assert_both(tally, places.slots_beyond_32_bits, places.overlap_of_one_byte, least=10)
    assert tally.of(places.offsets_cut_to_32_bits, "harmful") >= 25


@pytest.mark.slow
def test_real_graphs(seed: int, tmp_path: Path) -> None:
    report(spoil(real_cases(seed, tmp_path), 90), harmful=1500, harmless=900)


# the test itself: a checker that lacks one of its parts is caught


def _nothing(*arguments: Any, **named: Any) -> None:
    del arguments, named


def _always(*arguments: Any, **named: Any) -> bool:
    del arguments, named
    return True


def _cells_but_the_last(memory: replay.Memory, place: ByteRange) -> list[replay.Cell]:
    return _OVER(memory, place)[:-1] or _OVER(memory, place)


def _cells_of_all_but_one_byte(memory: replay.Memory, place: ByteRange) -> list[replay.Cell]:
    return _OVER(memory, replace(place, size=max(place.size - 1, 1)))


_OVER = replay.Memory.over
_WRITE = replay.Memory.write


def _write_in_32_bits(memory: replay.Memory, place: ByteRange, holds: tuple[str, int] | None, writer: int) -> None:
    _WRITE(memory, replace(place, offset=place.offset % 2**31), holds, writer)


WEAKER: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no races": (replay.Clocks, "before", _always),
    "no sharing within a step": (check_step.StepCheck, "sharing", _nothing),
    "any element order in place": (check_step.StepCheck, "_same_order", _always),
    "nothing overwritten": (replay.Memory, "write", _nothing),
    "outputs not looked at": (check._EntryChecker, "_check_outputs", _nothing),
    "state not looked at": (check._EntryChecker, "_check_updated", _nothing),
    "order of effects": (check._EntryChecker, "_check_order", _nothing),
    "calls not looked at": (check_step.StepCheck, "call", _nothing),
    "the last byte of a range": (replay.Memory, "over", _cells_of_all_but_one_byte),
    "the last cell of a range": (replay.Memory, "over", _cells_but_the_last),
    "offsets of 32 bits": (replay.Memory, "write", _write_in_32_bits),
}


@pytest.mark.parametrize("part", WEAKER)
def test_a_checker_that_lacks_a_part_is_caught(part: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, weaker = WEAKER[part]
    cases = fake_cases(seed, 400, lanes=2 if part == "no races" else 1)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, weaker)
        assert any(spoil([case], 40).disagreements for case in cases)
