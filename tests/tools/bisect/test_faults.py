"""Every planted fault is found and named on the host, and where it is one of the graph, reduced to a few nodes whose bundle shows it without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.graph import GraphInput
from ostinato.passes.rewrite import Names, fused_input
from ostinato.tools.bisect.decisions import Decisions
from ostinato.tools.bisect.report import BisectReport
from ostinato.tools.bisect.show import show_bisection
from ostinato.tools.bisect.steps import Seen
from ostinato.tools.compare.judgement import SENSITIVE, TOLERANCE
from ostinato.tools.compare.workload import make_workload
from ostinato.tools.console import output
from ostinato.tools.repro.run import repro
from tests.faults import FAULTS, Bench, Fault, Planted, found, nondeterminism, wrong_kernel
from tests.frontend.small_families import small_model

NOTHING = Decisions((), lambda kept: pytest.fail("there is nothing to make"), {})
FEW = {"row": 1, "nan": 1, "nondeterminism": 1, "pass": 1, "bytes": 6, "in_place": 4}
"""The most nodes of the bundle of a fault; the others are none of the graph."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(small_model("llama", tmp_path_factory.mktemp("llama"), 5), HostDevice(threads=1))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_named_and_reduced(
    fault: Fault, precision: str, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = replace(bench, options={"precision": precision})
    with fault.plant(bench) as planted:
        report = bench.bisect(planted, output=tmp_path / "bundle")
        said = found(report, planted)
        assert said, report
        assert not report.ok
        assert report.refused == 0
        show_bisection(report, output())
        shown = " ".join(capsys.readouterr().out.split())
        assert said in shown
        assert all(culprit.workaround in shown for culprit in report.culprits)
        if planted.kind not in FEW:
            assert (report.bundle, report.reduced) == (None, ())
            assert "cannot be cut out" in report.unreduced
            return
        assert 1 <= len(report.reduced) <= FEW[planted.kind]
        assert report.bundle is not None
        assert repro(report.bundle, device=bench.device).ok
    if planted.kind in ("bytes", "pass"):  # nothing of the user's is needed
        assert repro(report.bundle, device=bench.device).ok


@pytest.mark.parametrize("seen", [True, False])
def test_a_row_is_named_in_every_mode(seen: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because a walk over the steps sees it, or, where nothing was seen, by leaving out halves of the rows."""
    if not seen:
        monkeypatch.setattr("ostinato.tools.bisect.culprits.walked", lambda *executable: Seen("", 0))
        monkeypatch.setattr("ostinato.tools.bisect.culprits.first_step", lambda *sides: None)
        monkeypatch.setattr("ostinato.tools.bisect.without.passes_of", lambda side: (NOTHING, (), lambda count: side))
    with wrong_kernel(bench) as planted:
        report = bench.bisect(replace(planted, right=bench.side("eager", mode="eager")))
        assert found(report, planted), report
        assert (report.trials > 6) == (not seen)
        assert report.culprits[0].evidence[0].startswith("with the plainest row")


def test_sides_that_agree_are_said_to(bench: Bench) -> None:
    for left, right in (("eager", "planned"), ("reference", "planned"), ("planned", "guarded")):
        side = bench.side(right, mode=right)
        report = ost.bisect(bench.model, bench.side(left, mode=left), side, tokens=8)
        assert (report.ok, report.verdict, report.culprits, report.trials) == (True, "agree", (), 0)
        assert (report.absolute == 0) == (left != "reference")


def test_few_rows_may_be_sensitive_as_they_may_to_compare(bench: Bench) -> None:
    """A quarter of the rows of outputs may be off by more than usual, unless a tolerance is given."""
    shape: dict[str, Any] = {"buckets": {"B": [4], "T": [8]}, "context": 16}
    every = bench.compiled(mode="eager", logits="all", **shape)
    planned = bench.side("planned", mode="planned")
    usual = bench.bisect(Planted(bench.model, "reference", planned, "", ()), **shape).absolute / SENSITIVE
    rows = sum(step.valid_rows for step in make_workload(bench.compiled(**shape), tokens=bench.tokens, seed=0))
    assert rows >= 8

    def report(times: float, few: int, tolerance: float | None = None) -> BisectReport:
        """Beside a function whose last row of so many sequences is off by `times` of what is usual."""
        asked: list[bytes] = []

        def left(ids: np.ndarray) -> np.ndarray:
            asked.extend([ids.tobytes()] if ids.tobytes() not in asked else [])
            found: np.ndarray = every([ids.tolist()])["logits"][0].copy()
            found[-1, 3] += times * usual if asked.index(ids.tobytes()) < few else 0.0
            return found

        return ost.bisect(bench.model, left, planned, tolerance=tolerance, tokens=bench.tokens, **shape)

    assert report(0.9, 4).ok
    assert report(4.0, rows // 4).ok
    assert not report(4.0, rows // 4 + 1).ok
    assert not report(4.0, 1, TOLERANCE["f32"]).ok
    assert report(4.0, 4, 5 * TOLERANCE["f32"]).ok


def test_a_tolerance_decides_what_a_difference_is(bench: Bench) -> None:
    sides = bench.side("reference", mode="reference"), bench.side("planned", mode="planned")
    report = ost.bisect(bench.model, *sides, tokens=8, tolerance=0)
    assert (report.ok, report.verdict, report.absolute) == (False, "mismatch", 0.0)
    assert report.first_step
    with wrong_kernel(bench) as planted:
        assert bench.bisect(planted, tolerance=100.0).ok
    with pytest.raises(ost.ConfigError, match="tolerance is -1"):
        ost.bisect(bench.model, tolerance=-1)


def test_without_a_culprit_it_is_said_that_there_is_no_bundle(bench: Bench, tmp_path: Path) -> None:
    sides = bench.side("eager", mode="eager"), bench.side("strict", mode="planned", policy="strict")
    report = ost.bisect(bench.model, *sides, tokens=8, tolerance=0, output=tmp_path / "bundle")
    assert not report.ok
    assert (report.culprits, report.bundle) == ((), None)
    assert "no culprit" in report.unreduced
    assert not (tmp_path / "bundle").exists()


def test_a_function_of_the_users_is_a_left_side(bench: Bench) -> None:
    plain = bench.compiled(mode="eager")

    def right_one(ids: np.ndarray) -> np.ndarray:
        found: np.ndarray = plain(ids[None])["logits"][0]
        return found

    def wrong_one(ids: np.ndarray) -> np.ndarray:
        return np.roll(right_one(ids), 1)

    planned = bench.side("planned", mode="planned")
    assert ost.bisect(bench.model, right_one, planned, tokens=8).ok
    report = ost.bisect(bench.model, wrong_one, planned, tokens=8)
    assert (report.ok, report.verdict, report.left) == (False, "mismatch", "wrong_one")
    with pytest.raises(ost.ConfigError, match="nothing can be looked for"):
        ost.bisect(bench.model, planned, right_one, tokens=8)  # type: ignore[arg-type]


def test_an_optional_pass_of_ours_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fuses wrongly: gate and up the wrong way round."""

    def wrong(weights: Sequence[GraphInput], names: Names) -> GraphInput:
        return fused_input(tuple(reversed(weights)), names)

    monkeypatch.setattr("ostinato.passes.fuse_swiglu.fused_input", wrong)
    report = ost.bisect(
        bench.model,
        bench.side("apart", mode="planned", disable=("fuse_swiglu",)),
        bench.side("fused", mode="planned"),
        tokens=8,
    )
    first = report.culprits[0]
    assert (first.kind, first.names, first.op) == ("pass", ("fuse_swiglu",), "linear_swiglu")
    assert first.workaround == "disable=['fuse_swiglu']"


def test_a_side_that_is_refused_is_the_culprit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = bench.compiled()

    def refuse(*arguments: object) -> None:
        raise ost.AddressChanged("the buffer moved from 0x10 to 0x20", node="input_ids", hint="bind it again")

    left = executable.clone("eager")
    monkeypatch.setattr(executable, "run", refuse)
    report = ost.bisect(executable, left, executable)
    assert (report.verdict, report.culprits[0].kind, report.culprits[0].names) == ("error", "error", ("input_ids",))
    assert report.culprits[0].workaround == "bind it again"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 1}, "runs"),
        ({"seed": -1}, "seed"),
        ({"tokens": 0}, "tokens"),
        ({"left": 3}, "names no function|is no function"),
        ({"right": 3}, "right is 3"),
        ({"right": "fast"}, "no side"),
        ({"right": "levels.linear=nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, object], message: str, bench: Bench) -> None:
    with pytest.raises(ost.ConfigError, match=message):
        ost.bisect(bench.model, **{"right": "planned", **options})  # type: ignore[arg-type]


def test_a_target_that_has_no_sides_is_refused(bench: Bench) -> None:
    strangers: tuple[Any, ...] = (3, None, bench.plain.program)
    for target in strangers:
        with pytest.raises(ost.ConfigError, match="has no sides"):
            ost.bisect(target)


def test_an_artifact_is_a_target_and_a_side(bench: Bench, tmp_path: Path) -> None:
    bench.plain.save(tmp_path / "model.ost")
    saved = str(tmp_path / "model.ost")
    base = bench.side("base")
    shapes: dict[str, Any] = {"buckets": {"B": [1], "T": [8]}, "context": 16}
    beside = ost.bisect(bench.model, bench.side("eager", mode="eager"), saved, base=base, tokens=8, **shapes)
    for report in (ost.bisect(saved, "eager", "planned", base=base, tokens=8), beside):
        assert (report.ok, report.absolute) == (True, 0)
    with pytest.raises(ost.ConfigError, match="what is compiled has its precision"):
        ost.bisect(saved, "eager", "planned", base=base, **shapes)


def test_a_folder_that_is_there_is_refused_before_anything_runs(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    with pytest.raises(ost.ConfigError, match="is there already"):
        ost.bisect("no such model", output=tmp_path)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "mine"


def test_no_plainer_row_is_offered_where_there_is_none(bench: Bench) -> None:
    with nondeterminism(bench) as planted:
        (culprit,) = bench.bisect(planted).culprits
    assert culprit.row == "wobble@reference"
    assert culprit.workaround == "mend the row: there is no plainer one"
