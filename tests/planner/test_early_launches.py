"""Launches that start early: planned where nothing that the kernel reads ahead is written in the run, and refused by the checker anywhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import Launch, Step
from ostinato.ir.target import Target
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan_text import print_entry
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.bench_plans import Bench
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker

EARLY, LATE = Launch((2, 1, 1), (64, 1, 1), early=True), Launch((2, 1, 1), (64, 1, 1))


def target(*, ahead: tuple[str, ...] = ("b",), launch: Launch = EARLY) -> Target:
    """The fake rows as a GPU has them; `binary` reads `ahead` before it waits."""
    rows = (
        replace(row, launch=lambda site: launch, ahead=ahead if row.op == "binary" else ()) for row in FAKE_TARGET.rows
    )
    return replace(FAKE_TARGET, rows=tuple(rows))


def graph() -> Graph:
    """Products with a weight, with an input, with state, with a value of the run, with state that the run has changed, and with nothing."""
    make = GraphMaker("main")
    x, w, state = make.input("x", 16), make.weight("w", 16), make.input("s", 16, Role.STATE)
    a = make.binary("by_weight", x, w)
    b = make.binary("by_input", a, x)
    c = make.binary("by_state", b, state)
    d = make.binary("by_value", c, a)
    changed = make.update("changed", state, d)
    e = make.binary("by_changed", d, changed)
    return make.graph(make.binary("by_nothing", e, None))


def bench(settings: PlanSettings = PlanSettings(order="program"), *, where: Target | None = None) -> Bench:  # noqa: B008
    chosen, made = where or target(), graph()
    plan = plan_entry(made, chosen, name="main", settings=settings, ops=FAKE_OPS)
    return Bench(build_program({"main": (made, plan)}), {"main": made}, target=chosen)


def early(found: Bench) -> dict[str, bool]:
    launches = ((step.node, step.launch) for step in found.entry.steps)
    return {node: launch.early for node, launch in launches if launch is not None}


LAWFUL = {
    "by_weight": True,
    "by_input": True,
    "by_state": True,
    "by_value": False,
    "changed": True,
    "by_changed": False,
    "by_nothing": True,
}


def test_a_kernel_starts_early_where_what_it_reads_ahead_is_not_written_in_the_run() -> None:
    found = bench()
    found.check()
    assert early(found) == LAWFUL
    assert print_entry(found.entry).count("launch 2x1x1*64~") == 5


def test_a_kernel_that_reads_nothing_ahead_may_always_start_early() -> None:
    found = bench(where=target(ahead=()))
    found.check()
    assert all(early(found).values())


def test_a_kernel_that_does_not_wait_by_itself_starts_late() -> None:
    found = bench(where=target(launch=LATE))
    found.check()
    assert not any(early(found).values())


def test_early_starts_are_a_setting_of_the_plan() -> None:
    found = bench(PlanSettings(order="program", early=False))
    found.check()
    assert not any(early(found).values())
    assert "~" not in print_entry(found.entry)
    assert PlanSettings(early=False).printed() == {"early": "False"}


def relaunched(found: Bench, node: str, launch: Launch) -> Bench:
    steps: list[Step] = [
        replace(step, launch=launch) if step.node == node and step.launch is not None else step
        for step in found.entry.steps
    ]
    return found.with_steps(steps)


@pytest.mark.parametrize(("node", "value"), [("by_value", "by_weight"), ("by_changed", "changed")])
def test_an_early_start_that_may_read_too_soon_is_refused(node: str, value: str) -> None:
    wrong = relaunched(bench(), node, EARLY)
    with pytest.raises(
        PlanError, match=rf"\({node}: .*starts early and reads %{value} ahead, which a step of this run"
    ):
        wrong.check()
    with pytest.raises(PlanError, match=rf"reads %{value} early, but step \d writes"):
        wrong.with_operand(node, 1, early=True).check()


def test_a_late_start_is_always_lawful_and_an_early_one_only_by_the_row() -> None:
    relaunched(bench(), "by_weight", LATE).check()
    with pytest.raises(PlanError, match=r"is launched as 2x1x1\*64~, row binary@plain says 2x1x1\*64"):
        relaunched(bench(where=target(launch=LATE)), "by_weight", EARLY).check()
