"""Traces for Perfetto: what is written reads back by another reader, and the validator finds what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.runtime.profile import Profile, StepOperand, StepTime, chrome_json
from ostinato.runtime.trace_events import trace_problems
from tests.runtime.trace_reader import read_trace

STEPS = (
    StepTime(0, "embed", "embedding", "gather", "launch", 2e-6, 10, 20, 0, line="model.py:3"),
    StepTime(
        1,
        "layers.0.attn.q",
        "linear",
        "linear_f32",
        "launch",
        5e-6,
        30,
        4,
        500,
        operands=(StepOperand("w", "weights", 4096, 30, True, False), StepOperand("q", "arena", 64, 4, False, True)),
    ),
    StepTime(2, "logits", "copy", "", "copy", 0.0, 4, 4, 0),
)
PROFILE = Profile("step", "host:0", "planned", STEPS, 4, 6e-6, notes=("a note",), method="a clock")


def test_a_profile_reads_back_with_its_steps_in_a_row_beside_the_undisturbed_run(tmp_path: Path) -> None:
    path = PROFILE.save(tmp_path / "made" / "trace.json")
    text = Path(path).read_text(encoding="utf-8")
    assert trace_problems(text) == []
    trace = read_trace(text)
    assert trace.processes == {1: "ostinato step on host:0, planned"}
    steps, (whole,) = trace.on(1, 1), trace.on(1, 2)
    assert set(trace.threads) == {(1, 0 + 1), (1, 2)}
    assert [(span.name, span.category) for span in steps] == [(step.node, step.op) for step in STEPS]
    assert [span.duration for span in steps] == pytest.approx([step.seconds * 1e6 for step in STEPS])
    assert [span.start for span in steps] == pytest.approx([0, 2, 7])
    assert whole.duration == pytest.approx(6)
    assert whole.args["method"] == "a clock"
    assert whole.args["notes"] == ["a note"]
    assert steps[0].args["line"] == "model.py:3"
    assert {key: steps[1].args[key] for key in ("node", "bytes_read", "bytes_written", "flops")} == {
        "node": "layers.0.attn.q",
        "bytes_read": 30,
        "bytes_written": 4,
        "flops": 500,
    }
    assert steps[1].args["addresses"] == {"read weights w": "0x1000 +30", "write arena q": "0x40 +4"}


def test_several_profiles_are_processes_of_one_trace() -> None:
    trace = read_trace(chrome_json([PROFILE, PROFILE]))
    assert set(trace.processes) == {1, 2}
    assert len(trace.on(2, 1)) == len(STEPS)


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ost.ConfigError, match="cannot be written"):
        PROFILE.save(tmp_path)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    found = json.loads(PROFILE.to_chrome_json())
    change(found)
    return json.dumps(found)


def event(key: str, value: object, number: int = 3) -> Callable[[dict[str, Any]], object]:
    return lambda trace: trace["traceEvents"][number].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (event("ph", "Q"), "'Q'"),
        (event("ts", -1.0), "0 or more"),
        (event("dur", "long"), "0 or more"),
        (event("ts", True), "0 or more"),
        (event("dur", None), "0 or more"),
        (event("pid", "1"), '"pid"'),
        (event("tid", 1.5), '"tid"'),
        (event("name", None), '"name"'),
        (event("cat", 7), '"cat"'),
        (event("args", []), '"args"'),
        (event("args", {}, 0), "process_name"),
        (event("name", [], 0), '"name"'),
        (event("ts", 10**400), "0 or more"),
        (event("dur", 3.0), "crosses"),
        (lambda trace: trace.pop("traceEvents"), "traceEvents"),
        (lambda trace: trace["traceEvents"].append(3), "expected an object"),
        (lambda trace: trace.update(displayTimeUnit="s"), "displayTimeUnit"),
    ],
)
def test_what_is_wrong_with_a_trace_is_found(change: Callable[[dict[str, Any]], object], message: str) -> None:
    problems = trace_problems(changed(change))
    assert problems, message
    assert message in problems[0]


def test_a_text_that_is_no_trace() -> None:
    assert "no JSON" in trace_problems("{")[0]
    assert "no JSON" in trace_problems("[" * 100_000)[0]
    assert "traceEvents" in trace_problems("[]")[0]


def test_findings_are_at_most_twenty() -> None:
    text = json.dumps({"traceEvents": [{}] * 50})
    assert len(trace_problems(text)) == 20


def test_spans_inside_of_spans_are_no_problem() -> None:
    spans = [(0, 10), (0, 4), (1, 2), (4, 6), (20, 1)]
    events = [{"name": "a", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": dur} for ts, dur in spans]
    assert trace_problems(json.dumps({"traceEvents": events})) == []
