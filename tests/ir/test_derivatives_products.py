"""Rules of products, attention, rotations and movements: against central differences in float64, and torch where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.ops import OP
from tests.ir.derivative_calls import check_differences, weights
from tests.ir.product_cases import CASES, Case

by_case = pytest.mark.parametrize("case", CASES, ids=[f"{case.op}-{place}" for place, case in enumerate(CASES)])


@by_case
def test_gradients_are_slopes(case: Case, rng: np.random.Generator) -> None:
    operands = case.values(rng)
    upstream = weights(case.op, operands, case.attrs, rng)
    if case.op == "attention_causal_saved":
        del upstream[1]
    check_differences(case.op, operands, case.attrs, rng, upstream)
