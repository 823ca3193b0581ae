"""A training step's modes beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.tools.compare.comparison import compare
from tests.training.tiny import checkpoint, make


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> ost.TrainStep:
    """One layer, with everything that is kept."""
    folder = checkpoint("llama", tmp_path_factory.mktemp("one"), num_hidden_layers=1)
    return make(folder, keep_gradients=True, dropout=0.1, seed=4)


def test_modes_of_a_step_keep_their_contracts(step: ost.TrainStep) -> None:
    before = step.parameters()
    report = compare(step, ("reference", "eager", "planned", "no-reuse", "guarded"), replays=2)
    assert report.ok, str(report)
    verdicts = {(pair.left, pair.right): pair.verdict for pair in report.pairs}
    assert {verdict for pair, verdict in verdicts.items() if "reference" not in pair} == {"bit-equal"}
    assert verdicts["reference", "planned"] == "within contract"
    assert len({side.digest for side in report.sides[1:]}) == 1
    (table,) = report.operators
    assert {"adamw", "token_cross_entropy_backward", "dropout"} <= {row.op for row in table.rows}
    assert all(not row.outside for row in table.rows)
    counts = {side.name: side.counts for side in report.sides}
    assert counts["planned"] is not None
    assert counts["eager"] is not None
    assert (counts["planned"].submissions, counts["planned"].allocations) == (2, 0)
    assert counts["eager"].submissions == counts["eager"].launches > 100
    assert counts["eager"].allocations > 0
    for name, values in step.parameters().items():
        np.testing.assert_array_equal(values, before[name], err_msg="the step itself is left as it is")


def test_one_bit_of_a_gradient_is_a_mismatch(step: ost.TrainStep, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ost.TrainStep.run

    def run(
        self: ost.TrainStep, entry: str | None, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        found = original(self, entry, inputs, outputs)
        name = next((name for name in found if name.startswith("grad.")), None)
        if self.mode == "planned" and name is not None:
            found[name].view(np.uint32).reshape(-1)[2] ^= 1
        return found

    monkeypatch.setattr(ost.TrainStep, "run", run)
    report = compare(step, ("eager", "planned"), replays=1, operators=False)
    (pair,) = report.pairs
    assert not report.ok
    assert pair.verdict == "mismatch"
    assert pair.worst is not None
    assert pair.worst.output.startswith("grad.")
    assert pair.worst.output.endswith(" of step 1"), "the first of several that are as wrong as can be"


@pytest.mark.parametrize(
    ("modes", "options", "said"),
    [
        (("planned", "policy=strict"), {}, "wants others"),
        (("planned", len), {}, "no mode of a training step"),
        (("planned",), {"processes": 1}, "another process"),
    ],
)
def test_what_is_no_mode_of_a_step_is_refused(
    step: ost.TrainStep, modes: Sequence[Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ost.ConfigError, match=said):
        compare(step, modes, **options)


def test_a_step_with_bf16_weights_is_judged_as_such(tmp_path: Path) -> None:
    report = compare(make(checkpoint("llama", tmp_path, num_hidden_layers=1), precision="bf16"), replays=1)
    assert report.ok, str(report)
    assert {side.precision for side in report.sides} == {"bf16"}
    (table,) = report.operators
    assert {"matmul", "adamw", "attention_causal_backward"} <= {row.op for row in table.rows}
    assert all(not row.outside for row in table.rows), "parameters are kept in f32, and computed with in bf16"
