"""Policies and evidence: which rows may be chosen, which come first, what is counted, and what decisions say of those that were not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from ostinato.backend_hip.target import hip_target, host_rows_target
from ostinato.ir.decision import Against, Counters, Decision
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.evidence import Exactness, Finding, Verdict
from ostinato.ir.explain import explain
from ostinato.ir.graph import Graph
from ostinato.ir.selection_policy import Gated, SelectionPolicy
from ostinato.ir.target import CallSite, Extents, Impl, Level, Target
from ostinato.ir.views import call_site
from ostinato.passes.choice import Candidates, RowChoice
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.policy import BATCH_INVARIANT, FAST, STRICT, Policy, Promotion, named_policy
from ostinato.passes.runner import PipelineReport, run_pipeline
from tests.passes.graphs import Builder

HOST = host_rows_target()
TUNED = HOST.rows_for("silu")[0]


@dataclass(frozen=True)
class Records:
    """Evidence by hand: verdicts by row and gates by policy; validated where nothing else is said."""

    rows: Mapping[str, Verdict] = field(default_factory=dict)
    gates: Mapping[str, Verdict] = field(default_factory=dict)

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        return self.rows.get(row.name, Verdict(Finding.VALIDATED, (f"record-{row.name}",)))

    def gate(self, policy: Gated) -> Verdict:
        return self.gates.get(policy.name, Verdict(Finding.MISSING, reason="nobody measured it"))


def rows(*more: Impl) -> tuple[Impl, ...]:
    """Rows of silu: the host's own, a plain one, the reference, and `more`."""
    plain = replace(TUNED, name="plain", level=Level.READABLE)
    return (TUNED, plain, *(row for row in HOST.rows_for("silu") if row.level is Level.REFERENCE), *more)


def target(*more: Impl, evidence: Records | None = None, preferences: tuple[SelectionPolicy, ...] = ()) -> Target:
    return replace(HOST, rows=rows(*more), evidence=evidence, preferences=preferences)


def graph(count: int = 3) -> Graph:
    builder = Builder("g")
    builder.value("x", (count, 8))
    builder.add("silu", ("x",), "y")
    return builder.graph(("y",))


def report(on: Target, policy: Policy | str = "balanced", count: int = 3, **levels: str) -> PipelineReport:
    return run_pipeline(graph(count), on, PipelineOptions().extended(levels or None, (), policy))


def decision(on: Target, policy: Policy | str = "balanced", count: int = 3, **levels: str) -> Decision:
    return report(on, policy, count, **levels).decisions["y"]


# validated only


FASTER = replace(TUNED, name="faster", level=Level.VENDOR)
OLD = replace(TUNED, name="old", level=Level.VENDOR, priority=1)


def planted(finding: Finding, reason: str, name: str = "faster") -> Records:
    return Records({name: Verdict(finding, ("0badc0de",), reason)})


def test_a_faster_but_wrong_row_is_never_chosen_and_explain_names_it() -> None:
    on = target(FASTER, evidence=planted(Finding.FAILED, "off by 0.25 where 4e-7 is allowed"))
    assert target(FASTER).ranked("silu")[0] is FASTER
    for policy in ("balanced", "fast", "batch_invariant", "strict"):
        lowered = report(on, policy)
        assert lowered.decisions["y"].row != "faster"
    found = report(on)
    chosen = found.decisions["y"]
    assert (chosen.row, chosen.evidence) == ("host", ("record-host",))
    wrong = chosen.against("faster")
    assert wrong is not None
    assert (wrong.reason, wrong.evidence) == (Against.FAILED, ("0badc0de",))
    text = str(explain({"g": found.graph}, {"g": found.decisions}, "y"))
    assert "not faster (vendor): failed: off by 0.25 where 4e-7 is allowed [0badc0de]" in text
    assert "runs silu@host (tuned)" in text
    assert "records record-host" in text


def test_a_stale_record_is_not_used_and_explain_names_it() -> None:
    stale = Verdict(Finding.STALE, ("01d",), "made with driver 1, this is driver 2")
    found = report(
        target(FASTER, OLD, evidence=Records({"faster": Verdict(Finding.FAILED, ("bad",), "wrong"), "old": stale}))
    )
    chosen = found.decisions["y"]
    assert chosen.row == "host"
    assert [(row.row, row.reason) for row in chosen.rejected if row.evidence] == [
        ("old", Against.STALE),
        ("faster", Against.FAILED),
    ]
    text = str(explain({"g": found.graph}, {"g": found.decisions}, "silu"))
    assert "not old (vendor): stale: made with driver 1, this is driver 2 [01d]" in text
    assert "not faster (vendor): failed: wrong [bad]" in text


def test_a_row_without_a_record_is_not_chosen() -> None:
    chosen = decision(target(FASTER, evidence=planted(Finding.MISSING, "no record")))
    assert chosen.row == "host"
    assert (found := chosen.against("faster"))
    assert found.reason is Against.NOT_VALIDATED


def test_where_nothing_is_validated_the_reference_runs_on_the_host() -> None:
    missing = Verdict(Finding.MISSING, reason="no record")
    chosen = decision(target(evidence=Records({"host": missing, "plain": missing})))
    assert (chosen.row, chosen.level) == ("reference", Level.REFERENCE)
    assert "no other row serves" in chosen.note


@pytest.mark.parametrize("finding", [Finding.MISSING, Finding.STALE])
def test_where_nothing_is_validated_the_readable_row_runs_on_a_gpu(finding: Finding) -> None:
    on = hip_target("sm_90", 32)
    verdicts = {row.name: Verdict(finding, reason="no record") for row in on.rows_for("rms_norm")}
    builder = Builder("g")
    builder.value("x", (2, 64))
    builder.add("rms_norm", ("x", builder.weight("gain", (64,))), "y", eps=1e-5)
    found = run_pipeline(builder.graph(("y",)), replace(on, evidence=Records(verdicts))).decisions["y"]
    assert found.level is Level.READABLE
    assert found.evidence == ()
    assert found.note.startswith("nothing validated is left")
    failed = {name: Verdict(Finding.FAILED, reason="wrong") for name in verdicts}
    with pytest.raises(BackendError, match=r"hip: wrong"):
        run_pipeline(builder.graph(("y",)), replace(on, evidence=Records(failed)))


def test_a_forced_row_is_validated_too() -> None:
    on = target(FASTER, evidence=planted(Finding.FAILED, "wrong"))
    with pytest.raises(BackendError, match=r"%y = silu\n.*faster: wrong"):
        decision(on, silu="faster")


def test_candidates_see_the_records_of_the_layout_that_a_row_would_like() -> None:
    """A weight has no layout yet when fusions and the layout pass ask; the record is of the packed one."""

    @dataclass(frozen=True)
    class OfPanels(Records):
        def verdict(self, row: Impl, site: CallSite) -> Verdict:
            weight = site.operands[1]
            packed = weight is not None and weight.layout == "panel32"
            return Verdict(Finding.VALIDATED if packed else Finding.MISSING)

    builder = Builder("g")
    builder.value("x", (2, 32))
    builder.add("linear", ("x", builder.weight("w", (32, 32))), "y")
    made = builder.graph(("y",))
    on = replace(HOST, evidence=OfPanels())
    best = Candidates(on, RowChoice()).best(call_site(made, made.nodes[0]))
    assert best is not None
    assert best.name == "host"
    lowered = run_pipeline(made, on)
    assert lowered.graph.types["w"].layout == "panel32"
    assert lowered.decisions["y"].row == "host"


def test_a_row_whose_records_made_the_weight_lie_otherwise_says_so() -> None:
    """Not that it cannot read the weight as it lies now."""
    builder = Builder("g")
    builder.value("x", (2, 32))
    builder.add("linear", ("x", builder.weight("w", (32, 32))), "y")
    made = builder.graph(("y",))
    on = replace(HOST, evidence=planted(Finding.STALE, "the source is another", "host"))
    on = replace(on, rows=tuple(row for row in on.rows if row.op != "linear" or row.name in ("host", "reference")))
    decided = run_pipeline(made, on).decisions["y"]
    assert decided.row == "reference"
    (against,) = decided.rejected
    assert (against.row, against.reason, against.text) == ("host", Against.STALE, "the source is another")
    trusting = run_pipeline(made, on, PipelineOptions().extended({"y": "reference"})).decisions["y"]
    assert [found.reason for found in trusting.rejected] == [Against.FORCED]


# policies of numerics


def test_strict_takes_rows_with_the_bits_of_the_reference_else_the_reference() -> None:
    chosen = decision(target(), STRICT)
    assert chosen.row == "reference"
    assert (found := chosen.against("host"))
    assert found.reason is Against.POLICY
    assert "wants exactness 'reference', the row's is" in found.text
    exact = replace(TUNED, name="exact", exactness=Exactness.REFERENCE)
    assert decision(target(exact), "strict").row == "exact"


def test_strict_takes_readable_rows_on_a_gpu() -> None:
    builder = Builder("g")
    builder.value("x", (2, 64))
    builder.add("linear", ("x", builder.weight("w", (64, 64))), "y")
    on = hip_target("sm_90", 32)
    lowered = run_pipeline(builder.graph(("y",)), on, PipelineOptions().extended(policy="strict"))
    assert lowered.decisions["y"].level is Level.READABLE


def test_batch_invariant_takes_one_invariant_row_for_all_sizes() -> None:
    loose = replace(TUNED, name="loose", level=Level.VENDOR, exactness=Exactness.TOLERANCE)
    some = replace(
        TUNED, name="some", level=Level.VENDOR, exactness=Exactness.ROW_INVARIANT, extents=Extents(rows=(0, 8))
    )
    steady = replace(TUNED, name="steady", exactness=Exactness.ROW_INVARIANT, priority=1)
    on = target(loose, some, steady)
    chosen = decision(on, BATCH_INVARIANT)
    assert chosen.row == "steady"
    reasons = {found.row: found.text for found in chosen.rejected if found.reason is Against.POLICY}
    assert "one row for all sizes" in reasons["some"]
    assert "how numpy adds up" in reasons["reference"]
    assert "wants exactness 'row invariant', the row's is 'tolerance'" in reasons["loose"]
    assert decision(on).row == "loose"


def test_rules_by_hand_go_before_the_policy() -> None:
    assert decision(target(), "strict", silu="host").row == "host"


def test_the_policy_is_part_of_a_plans_options() -> None:
    assert "strict" in report(target(), "strict").options["select_impl"]
    assert report(target()).options == report(target(), "balanced").options
    own = Policy("mine", preferences=(SelectionPolicy("p", "silu@plain", 2, 9),))
    assert "mine tolerance/gated p:silu@plain[2..9]" in report(target(), own).options["select_impl"]
    texts = {str(replace(own, name="balanced", promotion=promotion)) for promotion in Promotion}
    assert texts == {f"balanced{told} p:silu@plain[2..9]" for told in ("", " tolerance/none", " tolerance/all")}


# selection policies


MANY = SelectionPolicy("many", "silu@plain", minimum_rows=4)


def test_below_its_range_a_policy_leaves_everything_as_it_was() -> None:
    on = target(preferences=(MANY,))
    for policy in ("balanced", "fast"):
        with_policy, without = report(on, policy, 3), report(target(), policy, 3)
        assert with_policy.decisions == without.decisions
        assert with_policy.policies == without.policies == {}


def test_fast_takes_what_is_known_and_balanced_what_passed_its_gate() -> None:
    on = target(preferences=(MANY,), evidence=Records())
    assert decision(on, FAST, 4).row == "plain"
    assert report(on, FAST, 4).policies == {"many": Counters(taken=1)}
    bypassed = report(on, "balanced", 4)
    assert bypassed.decisions["y"].row == "host"
    assert bypassed.policies == {"many": Counters(bypassed=1)}
    (use,) = bypassed.decisions["y"].policies
    assert use.text == "not validated: nobody measured it"
    passed = replace(on, evidence=Records(gates={"many": Verdict(Finding.VALIDATED, ("g",))}))
    assert decision(passed, "balanced", 4).row == "plain"
    for policy in ("strict", "batch_invariant"):
        assert report(passed, policy, 4).policies == {}


@pytest.mark.parametrize(("finding", "against"), [(Finding.SLOWER, Against.SLOWER), (Finding.MEMORY, Against.MEMORY)])
def test_a_gate_that_did_not_pass_is_the_reason_against_the_row(finding: Finding, against: Against) -> None:
    gates = {"many": Verdict(finding, ("g1", "g2"), "0.97x on two models")}
    chosen = decision(target(preferences=(MANY,), evidence=Records(gates=gates)), "balanced", 4)
    assert chosen.row == "host"
    found = chosen.against("plain")
    assert found is not None
    assert (found.reason, found.evidence) == (against, ("g1", "g2"))
    assert "many is not in force: 0.97x on two models" in found.text


def test_a_preferred_row_that_is_wrong_is_bypassed() -> None:
    on = target(preferences=(MANY,), evidence=planted(Finding.FAILED, "wrong", "plain"))
    found = report(on, FAST, 4)
    assert found.decisions["y"].row == "host"
    assert found.policies == {"many": Counters(bypassed=1)}
    assert found.decisions["y"].policies[0].text == "failed: wrong"


def test_a_policy_of_ones_own_needs_no_gate() -> None:
    own = Policy("mine", preferences=(SelectionPolicy("few", "silu@plain", maximum_rows=4),))
    assert decision(target(evidence=Records()), own, 4).row == "plain"
    assert decision(target(evidence=Records()), own, 5).row == "host"


# bad input


def test_what_a_policy_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"policy is 'bfloat'.*\n.*strict, batch_invariant, balanced, fast"):
        named_policy("bfloat")
    with pytest.raises(ConfigError, match=r"p prefers silu@plian, which is no row of host\n.*silu@plain"):
        decision(target(), Policy("mine", preferences=(SelectionPolicy("p", "silu@plian"),)))
    with pytest.raises(ConfigError, match=r"prefers 'plain'\n.*name a row like"):
        SelectionPolicy("p", "plain")
    with pytest.raises(ConfigError, match=r"maximum_rows of p is 3, expected an integer of 4 or more"):
        SelectionPolicy("p", "silu@plain", 4, 3)
    with pytest.raises(ConfigError, match=r"\(5, 'silu@plain'\)"):
        SelectionPolicy(5, "silu@plain")  # type: ignore[arg-type]


def test_a_forced_level_that_does_not_exist_for_a_node() -> None:
    with pytest.raises(
        ConfigError,
        match=r"y: host has no level 'vendor' of silu, which is forced\n.*host \(tuned\), plain \(readable\)",
    ):
        run_pipeline(graph(), target(), PipelineOptions().extended({"y": "vendor"}))


def test_explain_says_what_is_like_an_unknown_name() -> None:
    found = report(target())
    with pytest.raises(ConfigError, match=r"'silo' names no node that runs"):
        explain({"g": found.graph}, {"g": found.decisions}, "silo")
    with pytest.raises(ConfigError, match=r"explain 3: expected a name"):
        explain({"g": found.graph}, {"g": found.decisions}, 3)


@pytest.mark.parametrize(
    ("extents", "count", "refused"),
    [
        (Extents(rows=(0, 4)), 4, None),
        (Extents(rows=(0, 4)), 5, "the row is for at most 4 rows, found 5"),
        (Extents(rows=(2, 4)), 1, "the row is for 2 to 4 rows, found 1"),
        (Extents(batch=(2, None)), 9, "the row is for 2 and more sequences, found 1"),
        (Extents(sequence=(16, None)), 9, "the row is for 16 and more rows of a sequence, found 9"),
    ],
)
def test_sizes_that_a_row_is_for_are_data(extents: Extents, count: int, refused: str | None) -> None:
    bounded = replace(TUNED, name="bounded", level=Level.VENDOR, extents=extents)
    found = decision(target(bounded), count=count)
    rejection = found.against("bounded")
    assert (None if rejection is None else rejection.text) == refused
    assert (found.row == "bounded") == (refused is None)
