"""Records of a user's rows: they hold while row and operator do what they did, in any process, and for no longer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.first_use import lowered
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.user_code import code_text
from ostinato.backend_hip.impls.common import number, rows_and_width
from ostinato.backend_hip.target import host_rows_target
from ostinato.extending import Arrays, Site, Tolerance, cost_per_element, define, normal, valid
from ostinato.ir.decision import Decision
from ostinato.ir.opdef import OpDef, OperandSpec
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.runner import run_pipeline
from tests.passes.graphs import Builder

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 2.0


def operator(factor: float) -> OpDef:
    """x * factor, as its reference has it."""

    def infer(site: Site) -> tuple[TensorType, ...]:
        return (site.operand(0).with_layout(None),)

    def reference(call: Arrays) -> tuple[Array, ...]:
        return ((call.wide(0) * factor).astype(np.float32),)

    def samples(rng: np.random.Generator) -> Any:
        del rng
        yield valid(normal((5, 7)))

    operands, tolerance = (OperandSpec("x", frozenset({DType.F32})),), Tolerance(1e-6, 1e-5, "one rounding")
    cost = cost_per_element(1)
    return define("twice", "2 x.", operands, ("y",), infer, reference, samples, tolerance, cost=cost)


def row(factor: float) -> Impl:
    """Multiplies by another factor, with a kernel that is there."""

    def params(site: CallSite) -> tuple[int | float, ...]:
        return (*rows_and_width(site.operand(0)), factor, number(site.operand(0)))

    found = host_rows_target().row("scale", "host")
    assert found is not None
    return replace(found, op="twice", name="mine", params=params)


@pytest.fixture
def decide(tmp_path: Path) -> Callable[[float, float], tuple[Decision, int]]:
    """The decision for a call of the operator, given factors of the reference and of the row, and how many classes were validated for it."""
    device = HostDevice(threads=1, ledger=Ledger(tmp_path))

    def decision(reference: float, mine: float) -> tuple[Decision, int]:
        builder = Builder("g")
        with ost.extend(operators=[operator(reference)], rows=[row(mine)]):
            builder.value("x", (3, 8))
            builder.add("twice", ("x",), "y")
            report, _, done = lowered(partial(run_pipeline, builder.graph(("y",))), device.target)
        return report.decisions["y"], done.classes

    return decision


def test_a_record_counts_while_row_and_reference_do_what_they_did(
    decide: Callable[[float, float], tuple[Decision, int]],
) -> None:
    assert [(found.row, new) for found, new in (decide(2.0, 2.0), decide(2.0, 2.0))] == [("mine", 1), ("mine", 0)]


@pytest.mark.parametrize(("reference", "mine"), [(2.0, 2.5), (3.0, 2.0)], ids=["row", "reference"])
def test_a_record_of_what_was_changed_since_is_never_used(
    reference: float, mine: float, decide: Callable[[float, float], tuple[Decision, int]]
) -> None:
    assert decide(2.0, 2.0)[0].row == "mine"
    found, new = decide(reference, mine)
    assert (found.row, new) == ("reference", 1)
    again, new = decide(2.0, 2.0)
    assert (again.row, new) == ("mine", 1), "and what failed is no longer what it is"


def helper(value: float) -> float:
    return value * FACTOR


def uses(value: float) -> float:
    return helper(value) + 1


def test_helpers_and_values_of_a_module_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_text([uses])
    assert code_text([uses]) == before
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert code_text([uses]) != before
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "helper", lambda value: value)
    assert code_text([uses]) != before
    assert code_text([partial(uses, 1.0)]) != code_text([partial(uses, 2.0)])


def test_the_text_is_the_same_in_every_process() -> None:
    code = (
        "import sys; from tests.evidence.test_user_rows import *\n"
        "sys.stdout.write(code_text((operator(2.0), row(2.0), uses, {'b': {1, 'a'}})))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
    assert " at 0x" not in texts.pop()
