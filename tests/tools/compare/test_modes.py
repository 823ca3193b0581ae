"""`ostinato.compare`: good programs pass, and each kind of fault is found and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.differences import bits_equal, first_difference
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.variants import VARIANTS, in_variant
from ostinato.tools.compare.workload import make_workload


@pytest.fixture(scope="module")
def executable(tiny: Path) -> ost.TextExecutable:
    return ost.compile(str(tiny), buckets={"B": [2], "T": [8]}, context=32, threads=1)


def test_modes_of_a_good_program_keep_their_contracts(executable: ost.TextExecutable) -> None:
    report = compare(executable, replays=2, tokens=20)
    assert report.ok, str(report)
    verdicts = {(pair.left, pair.right): pair.verdict for pair in report.pairs}
    assert verdicts["eager", "planned"] == "bit-equal"
    assert verdicts["reference", "planned"] == "within contract"
    assert all(timing.repeats for timing in report.timings)
    assert "bit-equal" in str(report)


def test_guarded_and_no_reuse_are_compared_over_the_same_weights(executable: ost.TextExecutable) -> None:
    launches = executable.device.launches
    report = compare(executable, ("planned", "no-reuse", "guarded"), replays=2)
    assert report.ok, str(report)
    assert {pair.verdict for pair in report.pairs} == {"bit-equal"}
    assert executable.device.launches == launches  # nothing was packed again
    arenas = {mode: in_variant(executable, mode).memory.arena for mode in ("planned", "no-reuse", "guarded")}
    assert arenas["planned"] < min(arenas["no-reuse"], arenas["guarded"])


def test_bf16_agrees_within_its_own_tolerance(tiny: Path) -> None:
    report = compare(str(tiny), precision="bf16", replays=1, threads=1)
    assert report.ok, str(report)


def test_a_program_with_sampling_can_be_compared(tiny: Path) -> None:
    llm = ost.LLM(str(tiny), max_num_seqs=3, context=24, threads=1)
    report = compare(llm.executable, ("eager", "planned"), tokens=24, replays=2)
    assert report.ok, str(report)


def test_the_target_is_a_model_a_path_or_an_executable(tiny: Path, executable: ost.TextExecutable) -> None:
    assert compare(tiny, ("eager", "planned"), replays=1).model == str(tiny)
    loaded = ost.trace(str(tiny), "step").lower(dims={"N": 8, "R": 1}).plan().load()
    assert type(loaded) is ost.Executable
    assert compare(loaded, ("eager", "planned"), replays=1).ok
    dense = ost.trace(str(tiny), "forward").lower(dims={"B": 1, "T": 4}).plan().load()
    with pytest.raises(ost.ConfigError, match="not packed") as caught:
        compare(dense, ("eager", "planned"))
    assert caught.value.hint is not None
    strangers: tuple[Any, ...] = (executable.program, None, 3)
    for target in strangers:
        with pytest.raises(ost.ConfigError, match="cannot be compared"):
            compare(target)


@pytest.mark.parametrize(
    "options",
    [
        {"replays": 1.5},
        {"replays": True},
        {"poison": "x"},
        {"seed": -1},
        {"seed": "a"},
        {"tokens": 2.5},
        {"modes": "eager"},
        {"modes": 3},
        {"modes": [["eager"]]},
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused(executable: ost.TextExecutable, options: dict[str, Any]) -> None:
    with pytest.raises(ost.ConfigError, match=next(iter(options))):
        compare(executable, **options)


def test_two_oracles_part_at_a_node_too(tiny: Path) -> None:
    sides = ("reference", "dtype=bf16,mode=reference")
    report = compare(str(tiny), sides, tolerance=0.0, tokens=4, edges=False, operators=False, device="cpu")
    (pair,) = report.pairs
    assert (pair.verdict, pair.required) == ("mismatch", "within contract")
    assert pair.divergence is not None
    assert not report.causes
    assert compare(str(tiny), sides, tokens=4, edges=False, operators=False, device="cpu").ok


def test_roundings_that_are_not_allowed_are_no_other_graph(tiny: Path) -> None:
    sides = ("reference", "planned")
    report = compare(str(tiny), sides, tolerance=1e-9, tokens=4, edges=False, operators=False, device="cpu")
    (pair,) = report.pairs
    assert (pair.verdict, report.causes) == ("mismatch", ())
    assert "the graph is the same" in pair.note


def test_an_artifact_is_a_side_and_a_target(tiny: Path, tmp_path: Path) -> None:
    shape = {"B": [2], "T": [4]}
    file = tmp_path / "model.ost"
    ost.compile(str(tiny), buckets=shape, context=8, device="cpu").save(file)
    report = compare(str(tiny), ("planned", str(file)), buckets=shape, context=8, replays=1, device="cpu")
    assert report.ok, str(report)
    (pair,) = report.pairs
    assert pair.required == pair.verdict == "bit-equal", "the decisions are the same"
    again = compare(file, ("eager", "planned"), replays=1)
    assert again.ok, str(again)
    assert again.model == str(file)


def test_a_program_that_computes_values_again_is_bit_equal_to_one_that_keeps_them(tiny: Path) -> None:
    shape = {"B": [2], "T": [8]}
    plain = ost.compile(str(tiny), buckets=shape, context=8, device="cpu")
    limit = plain.memory.arena - 1
    sides = ("planned", f"memory_limit={limit}", f"memory_limit={limit},mode=no-reuse")
    report = compare(str(tiny), sides, buckets=shape, context=8, replays=1, device="cpu")
    assert report.ok, str(report)
    assert {pair.verdict for pair in report.pairs} == {"bit-equal"}
    steps = {side.name: side.counts.steps for side in report.sides if side.counts is not None}
    assert steps["planned"] < steps[f"memory_limit={limit}"] == steps[f"memory_limit={limit},mode=no-reuse"]


def test_the_public_name_is_the_same_function() -> None:
    assert ost.compare is compare


@pytest.mark.parametrize("modes", [(), ("eager", "eager"), ("captured",), ("fast",)])
def test_unusable_modes_are_refused(executable: ost.TextExecutable, modes: Sequence[str]) -> None:
    with pytest.raises(ost.ConfigError):
        compare(executable, modes)


def test_sizes_that_do_not_fit_are_refused(executable: ost.TextExecutable) -> None:
    for tokens in (0, 33):
        with pytest.raises(ost.ConfigError, match="tokens"):
            compare(executable, ("planned",), tokens=tokens)
    with pytest.raises(ost.ConfigError, match="replays"):
        compare(executable, ("planned",), replays=0)


class Faulty(ost.TextExecutable):
    """Changes the logits of one mode: `fault(mode, call number, logits)`."""

    calls = 0

    @staticmethod
    def fault(mode: str, call: int, logits: Array) -> None:
        raise AssertionError("replaced by each test")

    def run(
        self, entry: str | None, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        found = super().run(entry, inputs, outputs)
        Faulty.calls += 1
        self.fault(self.mode, Faulty.calls, found["logits"])
        return found


@pytest.fixture
def faulty(executable: ost.TextExecutable, monkeypatch: pytest.MonkeyPatch) -> type[Faulty]:
    monkeypatch.setattr(executable, "__class__", Faulty)
    monkeypatch.setattr(Faulty, "calls", 0)
    return Faulty


def test_one_flipped_bit_of_planned_is_a_mismatch(
    executable: ost.TextExecutable, faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip(mode: str, call: int, logits: Array) -> None:
        del call
        if mode == "planned":
            logits.view(np.uint32)[0, 3] ^= 1

    monkeypatch.setattr(faulty, "fault", staticmethod(flip))
    report = compare(executable, replays=1)
    pair = {(p.left, p.right): p for p in report.pairs}["eager", "planned"]
    assert not report.ok
    assert (pair.verdict, pair.required) == ("mismatch", "bit-equal")
    assert pair.worst is not None
    assert (pair.worst.step, pair.worst.index) == (0, (0, 3))
    assert {(p.left, p.right): p.ok for p in report.pairs}["reference", "planned"]


def test_a_large_error_breaks_the_contract_with_the_reference(
    executable: ost.TextExecutable, faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shift(mode: str, call: int, logits: Array) -> None:
        del call
        if mode != "reference":
            logits += 0.5

    monkeypatch.setattr(faulty, "fault", staticmethod(shift))
    verdicts = {(p.left, p.right): p.verdict for p in compare(executable, replays=1).pairs}
    assert verdicts == {
        ("reference", "eager"): "mismatch",
        ("reference", "planned"): "mismatch",
        ("eager", "planned"): "bit-equal",
    }


def test_nan_is_a_mismatch(
    executable: ost.TextExecutable, faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(mode: str, call: int, logits: Array) -> None:
        del call
        if mode == "planned":
            logits[0, 0] = np.nan

    monkeypatch.setattr(faulty, "fault", staticmethod(poison))
    assert not any(p.ok for p in compare(executable, ("reference", "planned"), replays=1).pairs)


def test_a_mode_that_does_not_repeat_itself_is_reported(
    executable: ost.TextExecutable, faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drift(mode: str, call: int, logits: Array) -> None:
        del mode
        if call > 6:
            logits.view(np.uint32)[0, 0] ^= 1

    monkeypatch.setattr(faulty, "fault", staticmethod(drift))
    report = compare(executable, ("planned",), replays=3)
    assert not report.ok
    assert not report.timings[0].repeats


def test_every_mode_can_be_observed_and_the_first_difference_is_named(executable: ost.TextExecutable) -> None:
    work = make_workload(executable, tokens=8, seed=3)
    probes = {mode: Probe(executable, mode) for mode in VARIANTS if mode != "captured"}
    for step in work:
        graph = executable.program.graphs[step.entry]
        counts = graph.counts(step.inputs)
        seen = {mode: probe.run(step.entry, step.inputs) for mode, probe in probes.items()}
        assert set(seen["planned"]) & set(seen["eager"]), "some values are observed in both"
        for mode in ("planned", "guarded", "no-reuse"):
            assert set(seen[mode]) == set(seen["planned"])
            assert first_difference(graph, seen["eager"], seen[mode], counts, 0.0) is None
        assert first_difference(graph, seen["reference"], seen["planned"], counts, 1e-3) is None
        name = next(value.name for node in graph.nodes[4:] for value in node.results if value.name in seen["planned"])
        seen["planned"][name] = seen["planned"][name].copy()
        seen["planned"][name].reshape(-1)[0] += 1
        found = first_difference(graph, seen["eager"], seen["planned"], counts, 0.0)
        assert found is not None
        assert (found.name, set(found.index)) == (name, {0})


def test_bits_are_compared_not_values() -> None:
    zero, nan = np.zeros(1, np.float32), np.full(1, np.nan, np.float32)
    assert not bits_equal(zero, -zero)
    assert bits_equal(nan, nan.copy())
    assert not bits_equal(zero, zero.astype(np.float64))
