"""What the tutorial docs/wrong-tokens.md says of validation: its wrong row passes on the samples that it has, and not on the one that it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import CACHE, emulated_card
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.survey import sample_sites
from ostinato.backend_hip.evidence.validate import validate
from ostinato.backend_hip.hip_device import HipDevice
from tests.docs.wrong_tokens import SAMPLE, WIDER_SAMPLE, kernel_file


@pytest.mark.parametrize("sample", [SAMPLE, WIDER_SAMPLE])
def test_validation_sees_the_fault_with_the_wider_sample(sample: str, tmp_path: Path, seed: int) -> None:
    page = kernel_file(tmp_path, {SAMPLE: sample})
    recorded = HipDevice(emulated_card().native, cache=CodeCache(CACHE), ledger=Ledger(tmp_path))
    assert recorded.records is not None
    with page.add():
        (site,) = sample_sites(page.ROW)
        record = validate(recorded, recorded.records.environment, page.ROW, site, seed)
    assert record.passed == (sample == SAMPLE), record.reason
