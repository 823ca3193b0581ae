"""Policy `batch_invariant` on a GPU: the logits of a sequence have the same bits alone and in any batch of eight, in prefill, chunks and decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.evidence import Exactness
from ostinato.ir.step import StepKind
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.small_families import small_model
from tests.runtime.invariance import Row, company, logits_of

LONGEST = 6


def compiled(model: ost.Model, device: Any, **options: Any) -> ost.TextExecutable:
    buckets = {"B": [1, 8], "T": [2, LONGEST]}
    return ost.compile(
        model, buckets=buckets, context=8, logits="all", device=device, policy="batch_invariant", **options
    )


def check(executable: ost.TextExecutable, seed: int) -> None:
    rng, vocabulary = np.random.default_rng(seed), executable.vocab_size
    for prompt, more in ((1, 2), (LONGEST, 1)):
        row = Row(rng.integers(0, vocabulary, prompt + more, dtype=np.int32), prompt)
        (alone,) = logits_of(executable, [row])
        assert np.isfinite(alone).all()
        rows, place = company(rng, row, vocabulary, LONGEST)
        assert logits_of(executable, rows)[place].tobytes() == alone.tobytes(), (prompt, place)


@pytest.mark.parametrize(("family", "precision"), [("qwen2", "f32"), ("qwen3", "bf16")])
def test_floats(family: str, precision: str, device: HipDevice, tmp_path: Path, seed: int) -> None:
    executable = compiled(small_model(family, tmp_path, seed, num_hidden_layers=1), device, precision=precision)
    check(executable, seed)
    target = executable.program.target
    chosen = {(node.op, node.impl) for graph in executable.program.graphs.values() for node in graph.nodes if node.impl}
    assert len({op for op, _ in chosen}) == len(chosen), "one row of an operator for all sizes"
    for op, name in chosen:
        row = target.row(op, name or "")
        assert row is not None
        assert row.kind is StepKind.LAUNCH
        assert row.exactness >= Exactness.ROW_INVARIANT


def test_quantised_weights(gpu: HipDevice, tmp_path: Path, seed: int) -> None:
    config = small_config("llama", num_hidden_layers=1)
    write_gguf(tmp_path / "model.gguf", config, random_model(config, seed), DType.Q8_0)
    check(compiled(ost.load(tmp_path / "model.gguf"), gpu), seed)
