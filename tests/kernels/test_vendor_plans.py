"""Plans with steps by the vendor's GEMM: what their text, JSON and statistics say, and that a step which is not the row's is not proven."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.backend_hip.impls.hip.vendor import GemmParams
from ostinato.backend_hip.target import hip_target
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph
from ostinato.ir.step import WORKSPACE, ByteRange, Launch, Step, StepKind
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.plan_text import print_entry
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from tests.passes.graphs import Config, decoder

TARGET = hip_target("gfx942", 64)
WIDE = Config(layers=1, hidden=512, heads=8, kv_heads=8, width=64, ffn=64, batch=4, time=16, bias=True)
"""Sixty-four rows and matrices of 512 by 512: as large as products that get a workspace."""


@functools.cache
def lowered(target_has_vendor: bool = True) -> Graph:
    target = TARGET if target_has_vendor else hip_target("gfx942", 64, vendor=False)
    return run_pipeline(decoder(WIDE), target, PipelineOptions(disable=frozenset({"fuse_qkv"}))).graph


@functools.cache
def program() -> ProgramPlan:
    made = build_program({"step": (lowered(), plan_entry(lowered(), TARGET, name="step"))})
    check_program(made, {"step": lowered()}, TARGET)
    return made


def gemms(plan: ProgramPlan) -> list[Step]:
    return [step for step in plan.entries["step"].steps if step.kind is StepKind.GEMM]


def test_a_product_of_many_rows_is_a_step_of_the_vendor() -> None:
    entry, found = program().entries["step"], gemms(program())
    assert found
    assert all((step.kernel, step.launch, len(step.params)) == ("gemm", None, 21) for step in found)
    assert {step.workspace.size for step in found if step.workspace is not None} == {0, 4 << 20}
    assert entry.stats.steps == entry.stats.launches + entry.stats.copies + len(found)
    biased = next(step for step in found if step.operands[2] is not None)
    assert [None if o is None else o.value == WORKSPACE for o in biased.operands] == [
        False,
        False,
        False,
        None,
        False,
        True,
    ]
    assert GemmParams(*biased.params).n == 64  # type: ignore[arg-type]


def test_text_and_json_say_the_kind() -> None:
    entry = program().entries["step"]
    text = print_entry(entry)
    assert text.count(" gemm  ") == len(gemms(program()))
    loaded = program_from_json(program_to_json(program()))
    assert loaded == program()
    check_program(loaded, {"step": lowered()}, TARGET)


def test_a_target_without_the_vendor_s_library_launches_kernels() -> None:
    target = hip_target("gfx942", 64, vendor=False)
    made = build_program({"step": (lowered(False), plan_entry(lowered(False), target, name="step"))})
    check_program(made, {"step": lowered(False)}, target)
    assert not gemms(made)
    with pytest.raises(PlanError, match="is no row of target"):
        check_program(program(), {"step": lowered()}, target)


def _param(name: str, value: float) -> Callable[[Step], Step]:
    return lambda step: replace(
        step,
        params=tuple(GemmParams(*step.params)._replace(**{name: value})),  # type: ignore[arg-type]
    )


def _order(*order: int) -> Callable[[Step], Step]:
    return lambda step: replace(step, operands=tuple(step.operands[index] for index in order))


def _workspace(change: Callable[[ByteRange], ByteRange]) -> Callable[[Step], Step]:
    def mutate(step: Step) -> Step:
        work = step.operands[-1]
        assert work is not None
        return replace(step, operands=(*step.operands[:-1], replace(work, range=change(work.range))))

    return mutate


MUTANTS: dict[str, tuple[Callable[[Step], Step], str]] = {
    "a launch": (lambda step: replace(step, kind=StepKind.LAUNCH), "is a launch step, row .* says gemm"),
    "a fill": (lambda step: replace(step, kind=StepKind.FILL), "is a fill step, row .* says gemm"),
    "a collective": (lambda step: replace(step, kind=StepKind.COLLECTIVE), "is a collective step"),
    "another kernel": (lambda step: replace(step, kernel="linear/linear:linear<f32,f32,f32>"), "runs kernel"),
    "a shape of a launch": (lambda step: replace(step, launch=Launch((1, 1, 1), (64, 1, 1))), "is launched as"),
    "fewer rows": (_param("n", 32), "has parameters"),
    "another leading dimension": (_param("a_leading", 513), "has parameters"),
    "not transposed": (_param("transpose_a", 0), "has parameters"),
    "another dtype": (_param("d_type", 2), "has parameters"),
    "a scale": (_param("alpha", 2.0), "has parameters"),
    "sums up": (_param("beta", 1.0), "has parameters"),
    "an integer for a number": (_param("alpha", 1), "has parameters"),
    "no bias": (_param("bias_type", -1), "has parameters"),
    "x for weight": (_order(1, 0, 2, 3, 4, 5), "the row says"),
    "the result as a summand": (_order(0, 1, 2, 4, 4, 5), "operand 3 is .*, expected absent"),
    "no workspace": (_order(0, 1, 2, 3, 4), "has 5 operands, the row lists 6"),
    "a smaller workspace": (_workspace(lambda place: replace(place, size=4096)), "4096 bytes, expected 4194304"),
    "a workspace elsewhere": (_workspace(lambda place: replace(place, offset=place.offset + 256)), "workspace"),
    "two nodes": (lambda step: replace(step, node_count=2), "one node"),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_step_that_is_not_the_row_s_is_refused(what: str) -> None:
    mutate, reason = MUTANTS[what]
    entry = program().entries["step"]
    wanted = next(
        step for step in gemms(program()) if step.operands[2] is not None and step.workspace and step.workspace.size
    )
    steps = tuple(mutate(step) if step is wanted else step for step in entry.steps)
    wrong = program().model_copy(update={"entries": {"step": entry.model_copy(update={"steps": steps})}})
    with pytest.raises(PlanError, match=reason):
        check_program(wrong, {"step": lowered()}, TARGET)


def test_a_launch_that_becomes_a_product_is_refused() -> None:
    entry = program().entries["step"]
    launch = next(step for step in entry.steps if step.kind is StepKind.LAUNCH)
    steps = tuple(replace(step, kind=StepKind.GEMM) if step is launch else step for step in entry.steps)
    wrong = program().model_copy(update={"entries": {"step": entry.model_copy(update={"steps": steps})}})
    with pytest.raises(PlanError, match=r"is a gemm step, row .* says launch"):
        check_program(wrong, {"step": lowered()}, TARGET)
