"""Encoders against stored outputs of transformers (no torch needed)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parity.encoders import ENCODERS, POOLINGS, SENTENCES, Encoder, check_encoder, check_minilm

REFERENCES = Path(__file__).with_name("encoder_references.npz")


@pytest.mark.parametrize("case", ENCODERS, ids=lambda case: case.name)
def test_random_encoder_equals_stored_transformers_vectors(case: Encoder, tmp_path: Path) -> None:
    with np.load(REFERENCES) as stored:
        check_encoder(case, {pooling: stored[f"{case.name}.{pooling}"] for pooling in POOLINGS}, tmp_path)


@pytest.mark.usefixtures("minilm")
def test_minilm_equals_stored_transformers_vectors() -> None:
    with np.load(REFERENCES) as stored:
        check_minilm(stored["minilm"], [stored[f"minilm.ids.{index}"] for index in range(len(SENTENCES))])
