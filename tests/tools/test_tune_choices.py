"""What `ostinato evidence tune` tries, how outputs are judged, and what becomes of a gate that passed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.evidence.gates import BASELINE
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.backend_hip.evidence.records import Environment, RunFigures, TimingRecord
from ostinato.backend_hip.target import named_target
from ostinato.ir.evidence import Finding
from ostinato.ir.selection_policy import SelectionPolicy
from ostinato.ir.target import Level
from ostinato.ir.types import Array
from ostinato.passes.gated import weighed
from ostinato.passes.pipeline import pipeline
from ostinato.passes.policy import BALANCED, FAST, STRICT, Policy
from ostinato.saving.facts import environment_of
from ostinato.stages import open_device, open_model
from ostinato.tools.evidence.candidates import PLAIN, candidates_for, lowered_with
from ostinato.tools.evidence.judge import baseline_problem, judge_outputs
from ostinato.tools.evidence.workloads import Workload, entries_of, parse_workloads


def _arrays(values: Array, full: Array | None = None) -> dict[str, Array]:
    return {"d1": values, "d1.full": values if full is None else full}


def test_outputs_are_judged_against_the_reference() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((1, 1, 1000)).astype(np.float32)
    noise = rng.standard_normal(truth.shape).astype(np.float32) * np.float32(1e-5)
    workload, baseline = Workload("d", 1), _arrays(truth + noise)

    def judge(values: Array, full: Array | None = None) -> tuple[str, str]:
        return judge_outputs(workload, truth, baseline, _arrays(values, full), "f32")

    assert judge(truth + noise) == ("equal", "")
    assert judge(truth - noise) == ("within tolerance", "")
    assert judge(truth + np.float32(1.9) * noise)[0] == "within tolerance"
    assert "on average" in judge(truth + np.float32(2.1) * noise)[1]
    one_off = (truth + noise).copy()
    one_off[0, 0, 7] += np.float32(3e-4)
    assert "a logit is off by" in judge(one_off)[1]
    assert "timed inputs" in judge(truth + noise, truth + np.float32(1e-3))[1]
    assert "not finite" in judge(truth + noise, truth * np.float32(np.nan))[1]
    assert "its logits are (1, 1, 999)" in judge(truth[..., 1:])[1]
    assert baseline_problem(workload, truth, baseline, "f32") == ""
    assert baseline_problem(workload, truth, _arrays(truth + np.float32(1)), "f32").startswith("a logit is off")
    assert (
        baseline_problem(workload, truth, _arrays(truth, truth * np.float32(np.inf)), "f32")
        == "some logits are not finite"
    )


def test_rows_are_tried_by_the_number_of_rows(tiny: Path) -> None:
    """On a card that need not be here: what takes the place of another row is put first for few rows, and for many, never below the level of what it is for."""
    target, model, workloads = named_target("sm_90"), open_model(str(tiny)), parse_workloads("d1,p64")
    baseline = lowered_with(PLAIN, entries_of(model, workloads, "bf16"), target, "bf16")
    found = [candidate for candidate in candidates_for(baseline, target, 1) if candidate.options.preferences]
    assert len({candidate.name for candidate in found}) == len(found)
    assert found
    for candidate in found:
        (preference,) = candidate.options.preferences
        assert candidate.name == preference.identity
        if preference not in target.preferences:
            assert (preference.minimum_rows, preference.maximum_rows) in ((0, 1), (2, None))
            row = target.row(preference.op, preference.row_name)
            assert row is not None
            assert row.level >= Level.READABLE


def test_what_passed_its_gate_is_what_balanced_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    device = open_device("cpu", 1)
    environment, row = environment_of(device), "linear@host_all_rows"
    policy = SelectionPolicy("few_rows", row, 0, 1)

    def gained(subject: str, name: str, environment: Environment = environment) -> TimingRecord:
        return TimingRecord.made(
            environment=environment, scope="model", subject=subject, workload="d1 f32", ratio=1.1, outputs="equal", passed=True,
            candidate=RunFigures(name=name, seconds=(1.0,) * 3), baseline=RunFigures(name=BASELINE, seconds=(1.1,) * 3),
        )  # fmt: skip

    def held(policy: Policy) -> set[str]:
        found = weighed(pipeline(), device.target, policy)
        return {name for name, verdict in found.items() if verdict.finding is Finding.VALIDATED}

    names = ("fuse_swiglu=off", "no_such_pass=off", policy.identity, "few_rows:linear@no_such_row[0..1]")
    stale = environment.model_copy(update={"kernel_hash": "older"})
    Ledger().add([gained(subject, name, stale) for subject in ("one", "two") for name in names])
    assert (device.target.omissions, device.target.preferences) == ((), ()), "a stale record is never used"
    Ledger().add([gained("one", name) for name in names])
    assert device.target.preferences == (policy,)
    assert (held(BALANCED), held(FAST), held(STRICT)) == (set(), {"fuse_swiglu"}, set()), (
        "one model is not enough for a default"
    )
    Ledger().add([gained("two", name) for name in names])
    target = device.target
    assert (held(BALANCED), held(FAST), held(STRICT)) == ({"fuse_swiglu"}, {"fuse_swiglu"}, set())
    assert target.evidence is not None
    assert target.evidence.gate(policy).finding is Finding.VALIDATED
    assert len(target.evidence.gate(policy).evidence) == 2
