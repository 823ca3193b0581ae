"""The gate by itself: everything that must keep a policy from becoming a default, one at a time, and what lets it through."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import pytest

from ostinato.backend_hip.evidence.gates import BASELINE, PAIRS, RATIO, GateVerdict, differences, judge_policy
from ostinato.backend_hip.evidence.records import Environment, RunFigures, TimingRecord, ValidationRecord

POLICY = "fuse_example=off"
HERE = Environment(
    device="A card", architecture="sm_90", driver="1", runtime="2", vendor_library="3", kernel_hash="k", version="0.1"
)
Outputs = Literal["equal", "within tolerance", "outside tolerance", "not run"]


def run(
    subject: str = "one",
    ratio: float | None = 1.05,
    *,
    workload: str = "d1 f32",
    outputs: Outputs = "equal",
    arena: int = 100,
    peak: int = 1000,
    pairs: int = PAIRS,
    environment: Environment = HERE,
    scope: Literal["operator", "region", "model"] = "model",
    candidate: str = POLICY,
    baseline: str = BASELINE,
) -> TimingRecord:
    times = () if ratio is None else (1.0,) * pairs
    return TimingRecord.made(
        environment=environment,
        scope=scope,
        subject=subject,
        label=subject,
        workload=workload,
        candidate=RunFigures(name=candidate, seconds=times, peak_bytes=peak, arena_bytes=arena),
        baseline=RunFigures(name=baseline, seconds=times, peak_bytes=1000, arena_bytes=100),
        ratio=ratio,
        outputs=outputs,
        passed=True,
    )


GOOD = (run("one"), run("two"))


def judge(*records: TimingRecord | ValidationRecord) -> GateVerdict:
    return judge_policy(POLICY, records, HERE)


def test_two_models_that_gain_are_enough() -> None:
    verdict = judge(*GOOD)
    assert verdict.passed
    assert not verdict.reasons
    assert sorted(verdict.evidence) == sorted(record.id for record in GOOD)
    assert judge(run("one", RATIO), run("two", RATIO)).passed, "the bound itself is enough"
    assert judge(run("one", outputs="within tolerance"), run("two")).passed
    assert judge(*GOOD, run("three", 1.0), run("one", 0.995, workload="p128 f32")).passed, (
        "what it leaves alone may stay"
    )


def test_the_order_of_records_does_not_matter() -> None:
    records = (*GOOD, run("one", 0.9, workload="p128"), run("three", arena=101))
    assert len({judge(*order) for order in itertools.permutations(records)}) == 1


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((), "0 of 2 models"),
        ((run("one"),), "1 of 2 models"),
        ((run("one"), run("two", 1.009)), "1 of 2 models gain 1.01x on the same workload, the best run is 1.050x"),
        ((run("one"), run("one", workload="d1 bf16")), "1 of 2 models"),
        ((run("one"), run("two", workload="p128 f32")), "1 of 2 models"),
        ((*GOOD, run("three", 0.99)), "three d1 f32: it is slower: 0.990x"),
        ((*GOOD, run("one", 0.5, workload="p128 f32")), "one p128 f32: it is slower: 0.500x"),
        ((*GOOD, run("three", arena=101)), "its arena is 101 bytes, the baseline's 100"),
        ((run("one", arena=101), run("two", arena=101)), "its arena"),
        ((*GOOD, run("three", peak=1011)), "its peak is 1,011 bytes"),
        ((*GOOD, run("three", None, outputs="outside tolerance")), "its outputs are outside tolerance"),
        ((run("one", outputs="outside tolerance"), run("two", 9.0, outputs="outside tolerance")), "its outputs"),
        ((*GOOD, run("three", None, outputs="not run")), "its outputs are not run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_a_policy_out(records: tuple[TimingRecord, ...], reason: str) -> None:
    verdict = judge(*records)
    assert not verdict.passed
    assert any(reason in found for found in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        *[
            ({"environment": HERE.model_copy(update={name: "other"})}, f"stale: {name} other")
            for name in (
                "device",
                "architecture",
                "driver",
                "runtime",
                "vendor_library",
                "compiler",
                "kernel_hash",
                "version",
            )
        ],
        ({"environment": HERE.model_copy(update={"wave": 64})}, "stale: wave 64"),
        ({"pairs": PAIRS - 1}, "unfinished"),
        ({"scope": "operator"}, "a win of one operator never decides"),
        ({"scope": "region"}, "a win of one region never decides"),
        ({"baseline": "something slower"}, "measured against something slower"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_evidence(changed: dict[str, Any], reason: str) -> None:
    records = run("one", **changed), run("two", **changed)
    verdict = judge(*records)
    assert not verdict.passed
    assert verdict.evidence == ()
    assert [why.startswith(reason) for _, why in verdict.unused] == [True, True], verdict.unused
    harm = run("three", 0.5, **changed)
    assert judge(*GOOD, harm).passed, "it does not speak against the policy either"


def test_other_policies_and_validations_are_not_looked_at() -> None:
    validation = ValidationRecord.made(
        environment=HERE,
        operator="add",
        row="hip",
        level="readable",
        signature="f32,f32->f32",
        sources={"row": "s"},
        calls=1,
        seed=0,
        maximum_error=0.0,
        passed=True,
    )
    verdict = judge(run("one", candidate="another"), run("two", candidate="another"), validation)
    assert (verdict.passed, verdict.evidence, verdict.unused) == (False, (), ())


def test_differences_name_what_is_and_what_was() -> None:
    assert differences(HERE, HERE) == ()
    assert differences(HERE.model_copy(update={"kernel_hash": "old"}), HERE) == ("kernel_hash old, here k",)
    assert differences(HERE.model_copy(update={"driver": ""}), HERE) == ("driver unknown, here 1",)
