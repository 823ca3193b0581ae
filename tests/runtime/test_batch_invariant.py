"""Policy `batch_invariant` on the CPU: a sequence has the same bits of logits alone and in any batch of eight, however its prompt is cut, and in decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.evidence import Exactness
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.small_families import SMALL_DECODERS, small_model
from tests.runtime.invariance import Row, company, logits_of

LONGEST = 24
BUCKETS = {"B": [1, 8], "T": [4, LONGEST]}


def compiled(model: ost.Model, **options: Any) -> ost.TextExecutable:
    return ost.compile(model, buckets=BUCKETS, context=32, logits="all", policy="batch_invariant", **options)


def check(executable: ost.TextExecutable, seed: int, batches: int = 2) -> None:
    rng, vocabulary = np.random.default_rng(seed), executable.vocab_size
    for prompt, more in ((1, 3), (11, 6), (LONGEST, 3)):
        row = Row(rng.integers(0, vocabulary, prompt + more, dtype=np.int32), prompt)
        (alone,) = logits_of(executable, [row])
        assert alone.shape == (prompt + more, vocabulary)
        assert np.isfinite(alone).all()
        for _ in range(batches):
            rows, place = company(rng, row, vocabulary, LONGEST)
            assert logits_of(executable, rows)[place].tobytes() == alone.tobytes(), (prompt, place)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("family", SMALL_DECODERS)
def test_every_family(family: str, precision: str, tmp_path: Path, seed: int) -> None:
    check(compiled(small_model(family, tmp_path, seed), precision=precision, device="cpu"), seed)


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_1, DType.Q6_K], ids=lambda dtype: dtype.value)
def test_quantised_weights(dtype: DType, tmp_path: Path, seed: int) -> None:
    config = small_config("llama", hidden_size=256, intermediate_size=256, num_attention_heads=4)
    write_gguf(tmp_path / "model.gguf", config, random_model(config, seed), dtype)
    check(compiled(ost.load(tmp_path / "model.gguf"), device="cpu"), seed)


@pytest.mark.parametrize("unit", _native.isa_available())
def test_every_instruction_set_with_one_thread_and_with_two(unit: str, tmp_path: Path, seed: int) -> None:
    model = small_model("qwen2", tmp_path, seed)
    for precision in ("f32", "bf16"):
        for threads in (1, 2):
            check(compiled(model, precision=precision, device=HostDevice(threads=threads, isa=unit)), seed, batches=1)


def test_every_row_that_serves_is_one_for_all_sizes(tmp_path: Path) -> None:
    """The policy is kept by what is chosen: one row of an operator in all entries, each row-invariant."""
    executable = compiled(small_model("qwen2", tmp_path, 1), device="cpu")
    target = executable.program.target
    chosen = {(node.op, node.impl) for graph in executable.program.graphs.values() for node in graph.nodes if node.impl}
    assert len({op for op, _ in chosen}) == len(chosen)
    for op, name in chosen:
        row = target.row(op, name or "")
        assert row is not None
        assert row.exactness >= Exactness.ROW_INVARIANT
        assert not row.extents.is_bounded


def test_generation_is_the_same_alone_and_in_a_batch_of_eight(tmp_path: Path, seed: int) -> None:
    """Through the engine: tokens that were sampled, and their logprobs to the last bit."""
    model = small_model("qwen2", tmp_path, seed)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, model.config.vocab_size, int(size)).tolist() for size in rng.integers(1, 20, 8)]
    params = ost.SamplingParams(max_tokens=7, temperature=1.0, seed=11, logprobs=2, ignore_eos=True)
    options: dict[str, Any] = {"device": "cpu", "context": 32, "precision": "bf16", "policy": "batch_invariant"}
    together = ost.LLM(model, max_num_seqs=8, **options).generate(prompts, params)
    alone = ost.LLM(model, max_num_seqs=1, **options)
    for prompt, found in zip(prompts, together, strict=True):
        (expected,) = alone.generate([prompt], params)
        assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)


def test_an_embedding_is_the_same_in_any_company(tmp_path: Path, seed: int) -> None:
    model = small_model("bert", tmp_path, seed)
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, model.config.vocab_size, length, dtype=np.int32) for length in (1, 8, 5, 3, 8, 2, 7, 6)]
    executable = ost.compile_encoder(
        model, buckets={"B": [1, 8], "T": [8]}, device="cpu", policy="batch_invariant", precision="bf16"
    )
    together = executable.embed(rows, normalize=True)
    for row, found in zip(rows, together, strict=True):
        assert executable.embed([row], normalize=True)[0].tobytes() == found.tobytes()
