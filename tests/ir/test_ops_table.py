"""The two halves of the operator table fit together, and the generated page is current."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.target import host_rows_target
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP, OPS
from ostinato.ir.step import StepKind
from ostinato.ir.target import NATURAL, Impl, Level
from ostinato.tools.optable import PAGE, render

ALL = (*ROWS, *HIP_ROWS)
FOR_GPUS = {
    "linear_group",
    "rope_split_half_joint",
    "rope_split_half_joint_backward",
    "swiglu_joint_backward",
    "adamw_group",
}
"""What passes make for GPUs alone, where a launch less is worth it."""
by_row = pytest.mark.parametrize("row", ALL, ids=[row.identity for row in ALL])


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m ostinato.tools.optable"


def test_page_names_everything() -> None:
    page = render()
    assert all(f"## {op.name}\n" in page for op in OPS)
    assert all(f"`{row.name}`" in page for row in ALL)
    with pytest.raises(KeyError):
        render(OPS, [replace(ROWS[0], op="unknown")])


@by_row
def test_rows_fit_their_operator(row: Impl) -> None:
    op = OP[row.op]
    operands = [spec.name for spec in op.operands]
    results = list(op.results)
    if results[-1].endswith("*"):
        results = [*results[:-1], *(f"{results[-1][:-1]}{i}" for i in range(len(row.operands)))]
    for name in row.operands:
        assert name in {*operands, *results, "count", "workspace", "-"}, f"{row.identity} names operand {name}"
    assert all(name in operands for name in row.strided)
    assert all(name in {*operands, *results} for name, _ in row.layouts)
    names = [name for name, _ in row.layouts]
    assert len(set(names)) == len(names)
    for _, layouts in row.layouts:
        assert len(set(layouts)) == len(layouts)
        assert layouts != (NATURAL,), "a name that has its natural layout only is not listed"
        assert layouts
    assert all(result in results and operand in operands for result, operand in row.in_place)
    assert not op.is_view


def test_row_names_are_unique() -> None:
    identities = [row.identity for row in ALL]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_every_operator_runs_on_the_host(op: OpDef) -> None:
    """By kernels of its own, but for what a pass makes for GPUs alone: that has its reference."""
    levels = {row.level for row in host_rows_target().rows_for(op.name)}
    assert (Level.REFERENCE in levels) != op.is_view, "an operator has a row, a view needs none"
    assert len(levels) > 1 or op.is_view or op.name in FOR_GPUS


def test_every_operator_runs_on_every_gpu() -> None:
    """One test, not one an operator: an operator may begin on the host alone (docs/bring-your-operator.md), and is whole when this passes."""
    have = {row.op for row in HIP_ROWS if "hip" in row.architectures}
    assert {op.name for op in OPS if not op.is_view} == have


def test_rows_of_gpus_have_a_launch_and_rows_of_the_host_have_none() -> None:
    assert all((row.launch is None) is (row.kind is StepKind.GEMM) for row in HIP_ROWS)
    assert all(row.launch is None for row in ROWS)
