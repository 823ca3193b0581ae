"""`ostinato profile` and `ostinato breakeven`: reports, tables and traces of a tiny model, the roofline and the break-even worked out by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime.profile import Profile, StepTime
from ostinato.runtime.trace_events import trace_problems
from ostinato.tools.profile import breakeven as breaking
from ostinato.tools.profile.breakeven import NO_GAIN, median_interval
from ostinato.tools.profile.ceilings import Ceilings, measure_ceilings
from ostinato.tools.profile.measure import needed_context, step_inputs
from ostinato.tools.profile.report import BreakevenReport, ProfileReport
from ostinato.tools.profile.roofline import roofline, totals
from tests.runtime.trace_reader import read_trace
from tests.tools.conftest import Run
from tests.training.tiny import checkpoint, make

SHAPES = ("--shapes", "B=1,T=1,4", "--context", "16", "--threads", "1")


TRAINING = """
[data]
text = "none.txt"
batch = 2
sequence = 4

[train]
folder = "run"
steps = 1
device = "cpu"
threads = 1
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of the machine, at sizes that take no time."""
    monkeypatch.setattr("ostinato.tools.profile.bandwidth.READ_BYTES", 1 << 20)
    monkeypatch.setattr("ostinato.tools.profile.bandwidth.READ_RUNS", 1)
    monkeypatch.setattr("ostinato.tools.profile.ceilings._SIZES", (64,))


@pytest.fixture(scope="module")
def executable(tiny: Path) -> ost.TextExecutable:
    return ost.compile(str(tiny), buckets={"B": [1, 2], "T": [1, 4]}, context=16, threads=1)


def test_profile_as_json_and_as_a_trace(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    result = ostinato("profile", tiny, *SHAPES, "--runs", "2", "--output", path, "--json")
    report = cast(ProfileReport, result.report())
    assert result.code == 0
    assert report.files == (str(path),)
    assert (report.mode, report.device, report.runs, report.threads) == ("planned", "host:0", 2, 1)
    assert [entry.entry for entry in report.entries] == ["prefill[N=1,R=1]", "prefill[N=4,R=1]"]
    assert {("f32", "f32")} <= {(one.input, one.weight) for one in report.ceilings}
    for entry in report.entries:
        for groups in (entry.operators, entry.layers):
            assert sum(group.steps for group in groups) == len(entry.steps)
            assert sum(group.nbytes for group in groups) == sum(s.bytes_read + s.bytes_written for s in entry.steps)
        assert entry.sum_seconds == pytest.approx(sum(step.seconds for step in entry.steps))
        assert all(step.share >= 0 for step in entry.steps)
    text = path.read_text(encoding="utf-8")
    assert trace_problems(text) == []
    trace = read_trace(text)
    for number, entry in enumerate(report.entries, 1):
        assert [span.name for span in trace.on(number, 1)] == [step.node for step in entry.steps]


@pytest.mark.parametrize(("by", "shown"), [("operator", "linear"), ("layer", "layers.1"), ("step", "(linear")])
def test_profile_for_people(by: str, shown: str, ostinato: Run, tiny: Path) -> None:
    result = ostinato("profile", tiny, *SHAPES, "--runs", "1", "--entry", "prefill[N=4,R=1]", "--by", by, "--top", "30")
    assert result.code == 0
    assert shown in result.out
    for text in (f"by {by}", "one by one", "undisturbed", "ceilings measured here", "host's clock", "bound by"):
        assert text in result.out, text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "node"), "--by node"),
        (("--mode", "eager"), "no planned steps"),
        (("--entry", "decode"), "no entry"),
        (("--cached", "16"), "do not fit"),
        (("--output", "/dev/null/trace.json"), "cannot be written"),
    ],
)
def test_profiles_that_make_no_sense_are_usage_errors(
    options: tuple[str, ...], message: str, ostinato: Run, tiny: Path
) -> None:
    result = ostinato("profile", tiny, *SHAPES, "--runs", "1", *options)
    assert result.code == 2
    assert message in result.err
    assert "hint" in result.err


def test_breakeven_as_json_and_for_people(ostinato: Run, tiny: Path) -> None:
    result = ostinato("breakeven", tiny, *SHAPES, "--runs", "8", "--json")
    report = cast(BreakevenReport, result.report())
    assert result.code == 0
    assert (report.model, report.device, report.runs) == (str(tiny), "host:0", 8)
    for entry in report.entries:
        assert [mode.mode for mode in entry.modes] == ["eager", "planned"]
        assert [set(mode.parts) for mode in entry.modes] == [{"prepare"}, {"plan", "table"}]
        (step,) = entry.steps
        assert (step.mode, step.against) == ("planned", "eager")
        assert step.once_seconds == entry.modes[1].once_seconds - entry.modes[0].once_seconds
        assert step.gain_low_seconds <= step.gain_seconds <= step.gain_high_seconds
        assert (step.replays is None) == step.verdict.startswith(NO_GAIN)
    shown = ostinato("breakeven", tiny, *SHAPES, "--runs", "8", "--entry", "prefill[N=1,R=1]")
    assert shown.code == 0
    assert "8 runs of each mode in turn" in shown.out
    assert shown.out.count("planned") >= 2


def test_artifacts_and_training_runs_are_profiled_too(
    ostinato: Run, tiny: Path, executable: ost.TextExecutable, tmp_path: Path
) -> None:
    saved = tmp_path / "tiny.ost"
    executable.save(saved)
    run = tmp_path / "run.toml"
    run.write_text(f'[model]\npath = "{tiny}"\n{TRAINING}', encoding="utf-8")
    for name, entries in ((saved, list(executable.entries)), (run, ["train"])):
        report = cast(ProfileReport, ostinato("profile", name, "--runs", "1", "--json").report())
        assert [entry.entry for entry in report.entries] == entries
        pays = cast(BreakevenReport, ostinato("breakeven", name, "--runs", "8", "--json").report())
        assert [entry.entry for entry in pays.entries] == entries
        refused = ostinato("profile", name, "--policy", "fast")
        assert refused.code == 2
        assert "does not take --policy" in refused.err


def test_breakeven_leaves_the_executable_as_it_was(executable: ost.TextExecutable) -> None:
    ids = np.array([[5, 9, 2]], np.int32)
    expected = executable(ids)["logits"].tobytes()
    kept = [
        region.read(np.uint8, (region.nbytes,)).tobytes()
        for region in (executable.regions.state, executable.regions.io)
    ]
    report = ost.breakeven(executable, "prefill[N=4,R=1]", runs=8)
    found = [
        region.read(np.uint8, (region.nbytes,)).tobytes()
        for region in (executable.regions.state, executable.regions.io)
    ]
    assert found == kept
    assert str(report) == f"prefill[N=4,R=1]: {report.entries[0].verdict}"
    assert executable(ids)["logits"].tobytes() == expected


def test_breakeven_of_a_training_step(tmp_path: Path) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), keep_gradients=True)
    before = {name: step.read_state(name).tobytes() for name in step.state_names}
    (entry,) = ost.breakeven(step, runs=8).entries
    assert entry.entry == "train"
    assert {name: step.read_state(name).tobytes() for name in step.state_names} == before


def test_breakeven_of_what_is_no_executable_and_of_too_few_runs(executable: ost.TextExecutable) -> None:
    with pytest.raises(ost.ConfigError, match=r"found str"):
        ost.breakeven("smollm2")  # type: ignore[arg-type]
    with pytest.raises(ost.ConfigError, match="runs is 7"):
        ost.breakeven(executable, runs=7)
    with pytest.raises(ost.ConfigError, match="no entry"):
        ost.breakeven(executable, inputs={})
    with pytest.raises(ost.ConfigError, match="no entry 'x'"):
        ost.breakeven(executable, "x")
    with ost.TraceSession(executable, "layers.0"), pytest.raises(ost.LifecycleError, match="being traced"):
        ost.breakeven(executable)


ONCE = (0.5, 1.5, 1.0)
"""Seconds of each mode's own parts."""


def modes(*seconds: list[float]) -> Any:
    names = ("eager", "planned", "captured")
    return [
        breaking._Mode(name, {"once": once}, lambda: 0.0, list(runs))
        for name, once, runs in zip(names, ONCE, seconds, strict=False)
    ]


RUNS = [0.30, 0.31, 0.29, 0.30, 0.32, 0.28, 0.30, 0.30, 0.31, 0.30]


@pytest.mark.parametrize(
    ("planned", "replays", "verdict"),
    [
        (
            [run - 0.1 for run in RUNS],
            10,
            "planned pays from run 10 on: 1.00 s more once, 100 ms less a run than eager",
        ),
        ([run - 5.0 for run in RUNS], 1, "planned pays from run 1 on"),
        (list(reversed(RUNS)), None, "differ by less than"),
        ([run + 0.1 for run in RUNS], None, "planned takes 100 ms more a run than eager"),
    ],
)
def test_verdicts(planned: list[float], replays: int | None, verdict: str) -> None:
    found = breaking._compared(modes(RUNS, planned), 1, 0)
    assert found.replays == replays
    assert verdict in found.verdict
    assert found.verdict.startswith(NO_GAIN) == (replays is None)


def test_a_captured_graph_needs_the_table_that_it_is_made_of() -> None:
    made = modes(RUNS, RUNS, [run - 0.1 for run in RUNS])
    assert breaking._compared(made, 2, 1).once_seconds == 1.0
    assert breaking._compared(made, 2, 0).once_seconds == 2.0
    assert breaking._compared(made, 2, 0).replays == 20


def test_what_takes_less_before_the_first_run_too_pays_at_once() -> None:
    made = modes(RUNS, [run - 0.1 for run in RUNS])
    made[0].parts["once"] = 9.0
    found = breaking._compared(made, 1, 0)
    assert found.replays == 1
    assert " less once, " in found.verdict


def test_the_interval_of_a_median_holds_it_as_often_as_it_says(rng: np.random.Generator) -> None:
    inside = 0
    for _ in range(400):
        low, _, high = median_interval(list(rng.exponential(1.0, 40)))
        inside += low <= np.log(2) <= high
    assert inside >= 360
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)


CEILINGS = Ceilings(1e9, {("f32", "f32"): 1e12, ("bf16", "bf16"): 4e12, ("f32", "q8_0"): 2e12}, 1e-6)


def step(
    nbytes: int, flops: int, seconds: float, dtypes: tuple[str, ...] = ("f32", "f32"), op: str = "linear"
) -> StepTime:
    return StepTime(0, "layers.0.a", op, "k", "launch", seconds, nbytes, 0, flops, dtypes=dtypes)


@pytest.mark.parametrize(
    ("given", "bound", "limit", "share"),
    [
        (step(10_000, 1000, 20e-6), "memory", 10e-6, 0.5),
        (step(10_000, 40_000_000, 40e-6), "compute", 20e-6, 0.5),
        (step(10_000, 40_000_000, 20e-6, ("bf16", "bf16")), "memory", 10e-6, 0.5),
        (step(10_000, 40_000_000, 20e-6, ()), "memory", 10e-6, 0.5),
        (step(10, 10, 2e-6), "launch", 10e-9, 0.005),
        (step(10_000, 0, 5e-6), "memory", 10e-6, 2.0),
        (step(10_000, 0, 0.0), "memory", 10e-6, 0.0),
    ],
)
def test_the_roof_of_a_step(given: StepTime, bound: str, limit: float, share: float) -> None:
    profile = Profile("e", "host:0", "planned", (given,), 1, 1e-3)
    (roof,) = roofline(profile, CEILINGS)
    assert roof.bound == bound
    assert (roof.limit_seconds, roof.share) == pytest.approx((limit, share))


def test_a_group_has_the_bound_of_most_of_its_seconds() -> None:
    steps = (step(10_000, 0, 20e-6), step(10, 10, 2e-6), step(10, 10, 30e-6, op="add"))
    roofs = roofline(Profile("e", "host:0", "planned", steps, 1, 1e-3), CEILINGS)
    linear, add = totals(roofs, lambda found: found.op)
    assert (linear.name, linear.steps, linear.bound, add.bound) == ("linear", 2, "memory", "launch")
    assert linear.share == pytest.approx(10.01e-6 / 22e-6)


def test_ceilings_are_measured_for_the_dtypes_of_the_steps(executable: ost.TextExecutable) -> None:
    profile = executable.profile("prefill[N=1,R=1]", runs=1)
    quantised = Profile("e", "host:0", "planned", (step(1, 1, 1.0, ("bf16", "q8_0")),), 1, 1.0)
    found = measure_ceilings(executable.device, "planned", [profile, quantised])
    assert set(found.flops) == {("f32", "f32"), ("bf16", "bf16"), ("bf16", "q8_0")}
    assert min(found.bandwidth, found.step_seconds, *found.flops.values()) > 0


ENTRIES = [("prefill[N=1,R=1]", 4), ("prefill[N=4,R=1]", 0), ("prefill[N=2,R=2]", 4), ("prefill[N=8,R=2]", 0)]
"""Entries with the number of tokens before theirs."""


@pytest.mark.parametrize(("entry", "start"), ENTRIES)
def test_tokens_of_a_profiled_step_stand_behind_those_of_the_cache(
    entry: str, start: int, executable: ost.TextExecutable
) -> None:
    inputs = step_inputs(executable, entry, seed=3)
    assert inputs is not None
    rows = executable.entries[entry].dims["R"]
    width = executable.entries[entry].dims["N"] // rows
    assert int(inputs["token_count"][0]) == rows * width
    wanted = list(itertools.chain.from_iterable(range(start, start + width) for _ in range(rows)))
    assert inputs["position"].tolist() == wanted
    again = step_inputs(executable, entry, seed=3)
    assert again is not None
    assert again["input_ids"].tolist() == inputs["input_ids"].tolist()
    moved = step_inputs(executable, entry, cached=7)
    assert moved is not None
    assert int(moved["position"][0]) == 7


@pytest.mark.parametrize(
    ("lengths", "cached", "limit", "positions"),
    [
        ([1, 128], None, 512, 129),
        ([128], None, 512, 128),
        ([1], None, 512, 2),
        ([1, 4], 7, 512, 11),
        ([1, 128], None, 64, 64),
    ],
)
def test_a_cache_is_as_long_as_the_steps_fill_it(
    lengths: list[int], cached: int | None, limit: int, positions: int
) -> None:
    assert needed_context({"B": [1], "T": lengths}, cached, limit) == positions


def test_buckets_without_tokens_are_left_to_who_refuses_them(ostinato: Run, tiny: Path) -> None:
    assert needed_context({"B": [1]}, None, 8) is None
    result = ostinato("profile", tiny, "--shapes", "B=1")
    assert result.code == 2
    assert "buckets" in result.err
