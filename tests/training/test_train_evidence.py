"""What runs of whole training steps decide: a record that passes the gate changes the step that policy balanced compiles, and nothing less does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.backend_hip.evidence.known import Known, informed
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE, Ledger
from ostinato.backend_hip.evidence.records import Environment, TimingRecord
from ostinato.ir.decision import Against
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.selection_policy import Gated
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.runtime.device import Device
from ostinato.saving.facts import environment_of
from ostinato.stages import open_device
from ostinato.tools.evidence.candidates import PLAIN, candidates_for, lowered_with
from ostinato.training import TracedTraining, trace_training_step
from tests.training.planted import gained, recipe
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

POLICY = "fuse_saved_attention=off"
HERE = Environment(device="A CPU", architecture="x86_64/test", kernel_hash="k", version="0")
TWO = ("one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def step(folder: Path) -> TracedTraining:
    return trace_training_step(str(folder), recipe())


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The CPU with an empty ledger."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return open_device("cpu", 1)


def _older(record: TimingRecord) -> TimingRecord:
    stale = record.environment.model_copy(update={"kernel_hash": "older"})
    return gained(POLICY, record.subject, stale)


def _records(environment: Environment) -> dict[str, list[TimingRecord]]:
    """Cases by what they are, of which the first alone passes the gate."""
    good = [gained(POLICY, subject, environment) for subject in TWO]
    return {
        "two models": good,
        "one model": good[:1],
        "stale": [_older(record) for record in good],
        "below the bound": [good[0], gained(POLICY, "two", environment, ratio=1.009)],
        "a third is slower": [*good, gained(POLICY, "three", environment, ratio=0.9)],
        "wrong": [*good, gained(POLICY, "three", environment, outputs="outside tolerance")],
        "an operator": [gained(POLICY, subject, environment, scope="operator") for subject in TWO],
        "other steps each": [
            gained(POLICY, "one", environment),
            gained(POLICY, "two", environment, workload="t8x6 f32"),
        ],
    }


@pytest.mark.parametrize("case", _records(HERE))
def test_a_record_that_passes_the_gate_changes_the_step_and_no_other_does(
    case: str, device: Device, step: TracedTraining
) -> None:
    environment = environment_of(device)
    Ledger().add(_records(environment)[case])
    lowered = step.lower(device.target)
    saved = any(node.op == "attention_causal_saved" for node in lowered.graph.nodes)
    assert saved == (case != "two models")
    assert ("fuse_saved_attention" in lowered.report.options) == saved


def test_explanations_name_the_runs(device: Device, step: TracedTraining) -> None:
    records = [gained(POLICY, subject, environment_of(device)) for subject in TWO]
    Ledger().add(records[:1])
    (held,) = step.lower(device.target).explain("attention_causal_saved").nodes
    assert [(use.policy, use.taken) for use in held.decision.policies] == [(POLICY, False)]
    assert "1 of 2 models" in str(held)
    Ledger().add(records[1:])
    (found,) = step.lower(device.target).explain("attention_causal").nodes
    (use,) = found.decision.policies
    assert (use.policy, use.taken) == (POLICY, True)
    assert all(record.id in str(found) for record in records)


def test_without_records_a_step_is_what_it_is_without_evidence(device: Device, step: TracedTraining) -> None:
    plain = step.lower(replace(device.target, omissions=(), preferences=()))
    assert step.lower(device.target).graph == plain.graph
    Ledger().add([gained(POLICY, subject, environment_of(device)) for subject in TWO])
    strict = step.lower(device.target, policy="strict")
    assert "fuse_saved_attention" in strict.report.options, "strict asks no gate"


def test_the_bits_are_those_of_before_eager_and_planned(device: Device, folder: Path) -> None:
    before = make(folder)
    Ledger().add([gained(POLICY, subject, environment_of(device)) for subject in TWO])
    after = [make(folder, mode=mode) for mode in ("eager", "planned")]
    for made in (before, *after):
        operators = {node.op for node in made.program.graphs["train"].nodes}
        assert ("attention_causal_saved" in operators) == (made is before)
    for number in range(2):
        assert {made(*batch(number)).loss for made in after} == {before(*batch(number)).loss}
    assert [state_of(made) for made in after] == [state_of(before)] * 2


class _Right:
    """All rows are right; gates are those of records."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        del row, site
        return Verdict(Finding.VALIDATED)

    def gate(self, policy: Gated) -> Verdict:
        return self.known.gate(policy)


def _with_two_rows(target: Target, records: Sequence[TimingRecord]) -> Target:
    """A target with a second row of AdamW, behind the one that it has."""
    row = target.row("adamw", "host")
    assert row is not None
    known = Known(HERE, records)
    return informed(replace(target, rows=(*target.rows, replace(row, name="other", priority=-1))), _Right(known), known)


def test_rows_of_the_optimizer_are_chosen_by_runs_too(device: Device, step: TracedTraining) -> None:
    """Where there is a second one it is tried, for vectors and for matrices apart."""
    target = _with_two_rows(device.target, ())
    baseline = lowered_with(PLAIN, {"t": (step.traced, {})}, target, "f32")
    tried = [candidate for candidate in candidates_for(baseline, target, 1) if "adamw@other" in candidate.name]
    matrices = "many_rows:adamw@other[2..]"
    assert {candidate.name for candidate in tried} == {matrices, "few_rows:adamw@other[0..1]"}
    for subjects in (TWO[:1], TWO):
        records = [gained(matrices, subject, HERE) for subject in subjects]
        lowered = step.lower(_with_two_rows(device.target, records))
        for node in (node for node in lowered.graph.nodes if node.op == "adamw"):
            decision, is_matrix = lowered.decisions[node.name], node.results[0].type.rank == 2
            assert decision.row == ("other" if is_matrix and subjects == TWO else "host")
            assert len(decision.policies) == is_matrix
            if is_matrix and subjects != TWO:
                against = decision.against("other")
                assert against is not None
                assert (against.reason, "1 of 2 models" in against.text) == (Against.NOT_VALIDATED, True)
            elif is_matrix:
                assert decision.policies[0].text == f"records {', '.join(record.id for record in records)}"
