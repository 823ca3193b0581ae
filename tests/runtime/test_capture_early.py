"""Edges that start a node early, in a graph that was read back: where they may be, and what the rule about them finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.step import Launch, StepKind
from ostinato.planner.plan import Binding, Slot
from tests.runtime.capture_plans import Captured, Parts, at, capture_of, make_step, reads, vector, writes

EARLY = Launch((2, 1, 1), (64, 1, 1), 128, early=True)
A, B, G1, G2, C, Z, D = range(7)
"""Nodes of the plan: kernels, but for a product of two nodes and a fill."""


def plan(*, over: bool = False) -> Captured:
    """A kernel of the input, one that reads the input ahead, a vendor's product, a kernel behind it, a fill, a kernel behind that.

    `over`: what is read ahead lies where the first kernel writes, as memory may that a caller bound, of which the plan knows nothing.
    """
    x, y = at("io", 0, 64), at("io", 64, 64)
    slots = [at("arena", 64 * number, 64) for number in range(5)]
    ahead = replace(reads("x", slots[0] if over else x), early=True)
    steps = [
        make_step("a", StepKind.LAUNCH, reads("x", x), writes("a", slots[0])),
        make_step("b", StepKind.LAUNCH, reads("a", slots[0]), ahead, writes("b", slots[1])),
        make_step("g", StepKind.GEMM, reads("b", slots[1]), writes("g", slots[2])),
        make_step("c", StepKind.LAUNCH, reads("g", slots[2]), writes("c", slots[3])),
        make_step("z", StepKind.FILL, writes("z", slots[4]), params=(7,)),
        make_step("d", StepKind.LAUNCH, reads("c", slots[3]), reads("z", slots[4]), writes("d", y)),
    ]
    steps = [replace(step, launch=EARLY) if step.kind is StepKind.LAUNCH else step for step in steps]
    return capture_of(
        Parts(
            steps,
            [Slot(values=(name,), range=place, first=0, last=6) for name, place in zip("abgcz", slots, strict=True)],
            inputs=[Binding(name="x", type=vector(64), range=x)],
            outputs=[Binding(name="d", type=vector(64), range=y)],
        )
    )


GOOD = plan()


def with_early(*edges: tuple[int, int]) -> Captured:
    return replace(GOOD, early=edges)


def test_edges_between_kernels_that_wait_may_start_early() -> None:
    report = with_early((A, B)).examine()
    report.check()
    assert (report.dependencies, report.early) == (6, 1)
    assert GOOD.examine().early == 0


def test_what_the_vendor_does_with_its_own_kernels_is_its_own_affair() -> None:
    report = with_early((A, B), (B, G1), (G1, G2)).examine()
    report.check()
    assert report.early == 3


def late(good: Captured, number: int) -> Captured:
    """A step that does not wait by itself, in plan and table."""
    return good.with_step(number, launch=replace(EARLY, early=False))


WRONG: dict[str, tuple[Callable[[Captured], Captured], tuple[int, int], str]] = {
    "a kernel that does not wait": (lambda c: late(c, 1), (A, B), "step 1 .b.*waits for nothing by itself"),
    "behind the vendor's": (lambda c: c, (G2, C), "step 3 .c.*comes after a kernel of the vendor's"),
    "behind a fill": (lambda c: c, (Z, D), "step 5 .d.*comes after a fill"),
    "a fill": (lambda c: c, (C, Z), "step 4 .z.*waits for nothing by itself"),
    "what a step wrote": (lambda c: plan(over=True), (A, B), "step 1 .b.*may read .* before step 0 .a. has written"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_other_early_start_is_found(name: str) -> None:
    change, edge, words = WRONG[name]
    findings = replace(change(GOOD), early=(edge,)).examine().findings
    assert {finding.rule for finding in findings} == {12}
    with pytest.raises(Exception, match=f"rule 12, {words}"):
        replace(change(GOOD), early=(edge,)).examine().check()


def test_without_early_starts_what_lies_over_it_is_read_in_order() -> None:
    plan(over=True).examine().check()
