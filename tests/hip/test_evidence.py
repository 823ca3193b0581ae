"""Records of a GPU, on the emulated one: rows are validated on it like on the host, and a product of the vendor's is as good as the version of its library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.evidence.known import Known
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.survey import sample_sites
from ostinato.backend_hip.evidence.validate import validate
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.evidence import Finding
from ostinato.ir.step import StepKind
from tests.backend_hip.gpu.machine import CACHE


@pytest.fixture
def recorded(gpu: HipDevice, tmp_path: Path) -> HipDevice:
    """The card with a ledger of its own."""
    return HipDevice(gpu.native, cache=CodeCache(CACHE), ledger=Ledger(tmp_path))


def test_a_row_is_validated_on_the_card_and_then_known(recorded: HipDevice, seed: int) -> None:
    assert recorded.records is not None
    environment = recorded.records.environment
    assert (environment.architecture, environment.wave) == (recorded.isa, recorded.native.wave)
    row = recorded.target.rows_for("scale")[0]
    site = sample_sites(row)[0]
    evidence = recorded.target.evidence
    assert evidence is not None
    assert evidence.verdict(row, site).finding is Finding.MISSING
    record = validate(recorded, environment, row, site, seed)
    assert record.passed, record.reason
    assert set(record.sources) == {"row", "elementwise/elementwise"}
    recorded.records.add([record])
    again = recorded.target.evidence
    assert again is not None
    assert again.verdict(row, site).evidence == (record.id,)


def test_a_product_of_the_vendor_s_is_stale_with_another_library(recorded: HipDevice, seed: int) -> None:
    assert recorded.records is not None
    environment = recorded.records.environment
    row = next(row for row in recorded.target.rows_for("linear") if row.kind is StepKind.GEMM)
    site = sample_sites(row)[0]
    record = validate(recorded, environment, row, site, seed)
    known = Known(environment, [record])
    assert known.verdict(row, site).evidence == (record.id,)
    updated = environment.model_copy(update={"vendor_library": "a newer one"})
    stale = Known(updated, [record]).verdict(row, site)
    assert stale.finding is Finding.STALE
    assert "a newer one" in stale.reason
    ours = replace(row, kind=StepKind.LAUNCH)
    assert Known(updated, [record]).verdict(ours, site).finding is Finding.STALE, "another row by that name"


def test_without_validation_a_card_runs_readable_rows(recorded: HipDevice, llama: ost.Model) -> None:
    executable = ost.compile(
        llama, buckets={"B": [1], "T": [4]}, context=32, device=recorded, validate="never", precision="f32"
    )
    decisions = next(iter(executable.program.decisions.values()))
    assert {decision.level.name for decision in decisions.values()} == {"READABLE"}
    assert executable.validations.classes == 0
