"""Records of a GPU, on the emulated one: rows are validated on it like on the host, and a product of the vendor's is as good as the version of its library."""

from __future__ import annotations

from pathlib import Path

import pytest

import ostinato as ost
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.evidence.known import Known
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import Environment, ValidationRecord
from ostinato.backend_hip.evidence.sources import row_sources
from ostinato.backend_hip.evidence.survey import sample_sites
from ostinato.backend_hip.evidence.validate import validate
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.target import hip_target
from ostinato.ir.evidence import Finding
from ostinato.ir.signature import signature_class
from ostinato.ir.step import StepKind
from ostinato.ir.version import VERSION
from tests.backend_hip.gpu.machine import CACHE
from tests.frontend.small_families import small_model


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


def test_a_product_of_the_vendor_s_is_stale_with_another_library() -> None:
    row = next(row for row in hip_target("sm_90", 32).rows_for("linear") if row.kind is StepKind.GEMM)
    site = sample_sites(row)[0]
    here = Environment(device="a card", architecture="sm_90", vendor_library="lt 1", kernel_hash="k", version=VERSION)
    record = ValidationRecord.made(
        environment=here,
        operator=row.op,
        row=row.name,
        level="vendor",
        signature=signature_class(site),
        sources=row_sources(row, [site]),
        calls=1,
        seed=0,
        maximum_error=0.0,
        passed=True,
    )
    assert Known(here, [record]).verdict(row, site).evidence == (record.id,)
    stale = Known(here.model_copy(update={"vendor_library": "lt 2"}), [record]).verdict(row, site)
    assert (stale.finding, "here is lt 2" in stale.reason) == (Finding.STALE, True)


def test_without_validation_a_card_runs_readable_rows(recorded: HipDevice, tmp_path: Path) -> None:
    model = small_model("llama", tmp_path / "model", 5)
    executable = ost.compile(
        model, buckets={"B": [1], "T": [4]}, context=32, device=recorded, validate="never", precision="f32"
    )
    decisions = next(iter(executable.program.decisions.values()))
    assert {decision.level.name for decision in decisions.values()} == {"READABLE"}
    assert executable.validations.classes == 0
