"""The same checks against transformers itself; skipped where torch and transformers are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.encoders import ENCODERS, Encoder, check_encoder, check_minilm

pytestmark = pytest.mark.parity
pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("case", ENCODERS, ids=lambda case: case.name)
def test_random_encoder_equals_transformers(case: Encoder, tmp_path: Path) -> None:
    from tests.parity.make_encoder_references import encoder_reference  # needs torch

    check_encoder(case, encoder_reference(case, tmp_path), tmp_path)


@pytest.mark.usefixtures("minilm")
def test_minilm_equals_transformers() -> None:
    from tests.parity.make_encoder_references import minilm_reference  # needs torch

    check_minilm(*minilm_reference())
