"""What sides are to a bisection: several causes at once, a left side that does not repeat itself, sides that may differ, and what cannot be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.tools.bisect.subject import Subject, same_program
from ostinato.tools.compare.workload import WorkStep, make_workload
from ostinato.tools.repro.run import repro, worst_of
from tests.fault_parts import WOBBLE, WOBBLE_ON_GPUS, WOBBLE_SOURCE, SwapGate, WobbleLogits
from tests.faults import Bench, wrong_kernel, wrong_lifetime
from tests.frontend.small_families import small_model


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(small_model("llama", tmp_path_factory.mktemp("llama"), 5), HostDevice(threads=1))


def test_of_two_causes_the_row_is_named_that_is_wrong_by_itself(bench: Bench) -> None:
    """Nothing that is left out alone ends the difference."""
    with wrong_kernel(bench) as planted:
        mine = bench.side("mine", mode="planned", passes=(("cse", SwapGate()),))
        report = bench.bisect(replace(planted, right=mine))
    first = report.culprits[0]
    assert (first.kind, first.row) == ("row", planted.names[0])
    assert "another cause" in first.evidence[0]
    assert report.reduced == (first.node,)


def test_of_two_causes_the_bytes_are_named_that_were_written_over(bench: Bench) -> None:
    with wrong_lifetime(bench) as planted:
        wrong = planted.right

        def left(ids: np.ndarray) -> np.ndarray:
            return np.ones(bench.plain.vocab_size, np.float32) * len(ids)

        report = ost.bisect(planted.target, left, wrong, tokens=bench.tokens)
    first = report.culprits[0]
    assert first.kind == "bytes"
    assert set(planted.names) & set(first.names)
    assert "another cause" in first.evidence[-1]


def test_a_left_side_that_does_not_repeat_itself_is_named_and_reduced(bench: Bench, tmp_path: Path) -> None:
    with ost.extend(operators=[WOBBLE], rows=[WOBBLE_ON_GPUS], kernels={"faults/wobble": WOBBLE_SOURCE}):
        mine = bench.side("mine", mode="planned", passes=(("cse", WobbleLogits()),))
        plain = bench.side("plain", mode="planned")
        report = ost.bisect(bench.model, mine, plain, tokens=8, output=tmp_path / "bundle")
        assert (report.verdict, report.culprits[0].node, report.reduced) == ("not repeated", "logits", ("logits",))
        assert report.culprits[0].evidence == ("in mine",)
        assert repro(tmp_path / "bundle", device=bench.device).ok


def test_programs_of_other_kernel_units_may_round_otherwise(bench: Bench) -> None:
    """They have the same graph, rows and mode, and are held to what other programs are."""
    sides = [Subject(isa, Bench(bench.model, HostDevice(threads=1, isa=isa)).plain) for isa in ("portable", "auto")]
    alike = sides[0].executable.device.isa == sides[1].executable.device.isa
    assert same_program(*sides) == alike
    assert same_program(sides[0], sides[0])
    report = ost.bisect(bench.model, sides[0].executable, sides[1].executable, tokens=8)
    assert (report.ok, report.absolute > 0) == (True, not alike)


def test_bits_alone_are_shown_where_they_differ() -> None:
    left = np.array([[1.0, 2.0, 0.0], [4.0, 5.0, 6.0]], np.float32)
    right = left.copy()
    right[0, 2] = -0.0
    worst = worst_of({"y": left}, {"y": right}, 0.0, 0.0)
    assert worst is not None
    assert (worst.index, worst.difference) == ((0, 2), 0.0)
    assert worst_of({"y": left}, {"y": right}, 1e-9, 0.0) is None


def steps_with(**changes: Any) -> Callable[[WorkStep], Any]:
    return lambda step: [replace(step, **changes)]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda step: (), "no rows that are looked at"),
        (steps_with(valid_rows=0), "no rows that are looked at"),
        (steps_with(valid_rows=-1), "valid_rows is -1"),
        (lambda step: "steps", "expected a list of WorkStep"),
        (lambda step: 3, "expected a list of WorkStep"),
        (steps_with(entry="nothing"), "no entry 'nothing'"),
    ],
)
def test_work_of_which_nothing_is_looked_at_is_refused(
    work: Callable[[WorkStep], Any], message: str, bench: Bench
) -> None:
    (step, *_) = make_workload(bench.plain, tokens=8, seed=0)
    with pytest.raises(ost.ConfigError, match=message):
        ost.bisect(bench.plain, "eager", "planned", work=work(step))


def test_sides_that_cannot_be_given_the_same_work_are_refused(bench: Bench) -> None:
    for others in ({"buckets": {"B": [1], "T": [4]}}, {"logits": "all"}):
        with pytest.raises(ost.ConfigError, match="with the inputs that it has in right"):
            ost.bisect(bench.model, bench.compiled(**others), bench.plain, tokens=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "eager"}, "base is 'eager'"),
        ({"output": 3}, "the path is 3"),
        ({"output": ""}, "the path is ''"),
        ({"context": 0}, "context 0"),
        ({"buckets": {}}, "buckets"),
    ],
)
def test_options_are_read_as_they_are(options: dict[str, Any], message: str, bench: Bench) -> None:
    with pytest.raises(ost.ConfigError, match=message):
        ost.bisect(bench.model, "eager", "planned", **options)


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(ost.ConfigError, match="file is no writable folder"):
        ost.bisect("no such model", output=tmp_path / "file" / "deep" / "bundle")
