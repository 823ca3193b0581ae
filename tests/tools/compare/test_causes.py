"""Planted faults are named: the node, its row, the operand that was written over, the number that changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.examine import examine
from ostinato.tools.compare.report import CompareReport
from ostinato.tools.compare.sides import Side
from ostinato.tools.compare.variants import in_variant
from ostinato.tools.compare.workload import make_workload
from tests.faults import FAULTS, Bench, Fault, Planted


def compared(bench: Bench, planted: Planted, edges: bool = True) -> CompareReport:
    """The two sides of a planted fault, compared."""
    opened = isinstance(planted.target, Executable)
    sides = [
        Side(name, executable=side) if isinstance(side, Executable) else side
        for name, side in (("left", planted.left), ("right", planted.right))
    ]
    buckets, context = (None, None) if opened else ({"B": [1], "T": [bench.tokens]}, 2 * bench.tokens)
    return compare(planted.target, sides, replays=2, operators=False, edges=edges, buckets=buckets, context=context)


def kernel(report: CompareReport, planted: Planted) -> bool:
    return any(
        f"{cause.place.op}@{cause.place.row}" in planted.names for cause in report.causes if cause.kind == "kernel"
    )


def fusion(report: CompareReport, planted: Planted) -> bool:
    del planted
    (pair,) = report.pairs
    return (
        not report.causes
        and pair.divergence is not None
        and pair.divergence.value == "layers.0.ffn.activated"
        and "compute different" in pair.note
    )


def lifetime(report: CompareReport, planted: Planted) -> bool:
    return any(
        {cause.writer, cause.place.value} & set(planted.names) for cause in report.causes if cause.kind == "overwritten"
    )


def in_place(report: CompareReport, planted: Planted) -> bool:
    return kernel(report, planted) and all(cause.in_place is not None for cause in report.causes)


def scalar(report: CompareReport, planted: Planted) -> bool:
    return any(item.kind == "frozen scalar" and planted.names[0] in item.message for item in report.addresses)


def moved(report: CompareReport, planted: Planted) -> bool:
    return any((item.kind, item.name) == ("moved", planted.names[0]) for item in report.addresses)


def not_finite(report: CompareReport, planted: Planted) -> bool:
    (origin,) = report.non_finite
    return f"{origin.place.op}@{origin.place.row}" in planted.names and (origin.found, origin.reference) == (
        "NaN",
        "finite",
    )


def unrepeatable(report: CompareReport, planted: Planted) -> bool:
    return any(cause.place.node in planted.names for cause in report.causes if cause.kind == "unrepeatable")


NAMED: dict[str, Callable[[CompareReport, Planted], bool]] = {
    "wrong kernel at one shape": kernel,
    "wrong fusion": fusion,
    "wrong lifetime": lifetime,
    "wrong in-place": in_place,
    "host scalar frozen in a capture": scalar,
    "moved buffer": moved,
    "NaN source": not_finite,
    "nondeterministic kernel": unrepeatable,
}


@pytest.fixture(scope="module")
def bench(tiny: Path) -> Bench:
    return Bench(ost.load(str(tiny)), HostDevice(threads=1))


def test_every_planted_fault_is_known_here() -> None:
    assert {fault.name for fault in FAULTS} == set(NAMED)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named(fault: Fault, precision: str, bench: Bench) -> None:
    bench = replace(bench, options={"precision": precision})
    with fault.plant(bench) as planted:
        report = compared(bench, planted)
    assert not report.ok
    assert NAMED[fault.name](report, planted), str(report)
    written = report.model_dump_json()
    assert CompareReport.model_validate_json(written, strict=True).model_dump_json() == written


def test_a_weight_that_is_not_finite_is_named(tiny: Path) -> None:
    executable = ost.compile(str(tiny), buckets={"B": [1], "T": [8]}, context=16, threads=1)
    name = "model.layers.1.mlp.down_proj.weight"
    shape = executable.program.source.shape(name)
    values = np.full(shape, 0.01, np.float32)
    values[3, 5] = np.nan
    executable.replace_weights({name: values})
    report = compare(executable, ("eager", "planned"), replays=1, operators=False)
    assert report.ok, "both say NaN"
    (origin,) = report.non_finite
    assert origin.weight is not None
    assert "down" in origin.weight
    assert (origin.found, origin.reference) == ("NaN", "NaN")
    assert "which is not finite itself" in str(report)


def test_a_good_program_has_no_cause(tiny: Path) -> None:
    executable = ost.compile(str(tiny), buckets={"B": [2], "T": [8]}, context=16, threads=1)
    work = make_workload(executable, tokens=16, seed=1)
    for variant in ("planned", "no-reuse"):
        found = examine(in_variant(executable, variant), variant, work)
        assert (found.cause, found.non_finite) == (None, None)
        assert {row.op for row in found.operators} >= {"embedding", "linear", "attention_packed"}
        assert all(row.worst_ratio <= 1 and not row.outside for row in found.operators)
        assert any(row.max > 0 for row in found.operators), "kernels do not add up as the reference does"


def test_a_difference_that_no_node_shows_is_said_to_be_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = bench.compiled()
    original = ost.TextExecutable.run

    def run(self: ost.TextExecutable, entry: str | None, *rest: Any) -> dict[str, Array]:
        found = original(self, entry, *rest)
        if self.mode == "eager" and "logits" in found:
            found["logits"] += 1
        return found

    monkeypatch.setattr(ost.TextExecutable, "run", run)
    report = compare(executable, ("eager", "planned"), replays=1, operators=False)
    assert not report.ok
    assert not report.causes
    assert report.pairs[0].note == "no result of a node differs when nodes are observed"
