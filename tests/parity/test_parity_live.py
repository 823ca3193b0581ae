"""The same checks against transformers itself; skipped where torch and transformers are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.cases import CASES, Case
from tests.parity.harness import check_dense, check_family, check_smollm2

pytestmark = pytest.mark.parity
pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_random_model_equals_transformers(case: Case, tmp_path: Path) -> None:
    from tests.parity.make_references import family_reference  # needs torch

    reference = family_reference(case, tmp_path / "theirs")
    check_family(case, reference, tmp_path / "ours")
    check_dense(case, reference, tmp_path / "dense")


def test_smollm2_equals_transformers() -> None:
    from tests.parity.make_references import smollm2_reference  # needs torch

    check_smollm2(smollm2_reference())
