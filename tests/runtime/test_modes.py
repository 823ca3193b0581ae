"""Eager and planned are bit-equal on every instruction unit and for any number of threads; the reference agrees within tolerance."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

UNITS = HostDevice(threads=1).available


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    folder = tmp_path_factory.mktemp(request.param)
    config = small_config(request.param)
    write_hf_checkpoint(folder, config, random_model(config, 3))
    return ost.load(str(folder))


def logits(executable: ost.TextExecutable, tokens: Array) -> Array:
    """A prefill in two chunks and two decode steps; logits of each."""
    found = []
    for piece in (
        Piece(0, tokens[:7], 0, True),
        Piece(0, tokens[7:20], 7, True),
        Piece(0, tokens[20:21], 20, True),
        Piece(0, tokens[21:22], 21, True),
    ):
        plan = executable.bucket(len(piece.tokens), 1)
        inputs, _ = pack(plan, [piece], executable.block_table())
        found.append(executable.run(plan.name, inputs)["logits"][0])
    return np.stack(found)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("unit", UNITS)
def test_eager_and_planned_are_bit_equal_for_any_number_of_threads(
    model: ost.Model, unit: str, precision: str, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, model.config.vocab_size, 22, dtype=np.int32)
    results = [
        logits(
            ost.compile(
                model,
                buckets={"B": [1], "T": [1, 16]},
                context=64,
                mode=mode,
                isa=unit,
                threads=threads,
                precision=precision,
            ),
            tokens,
        )
        for mode in ("planned", "eager")
        for threads in (1, 2, 3)
    ]
    for other in results[1:]:
        assert results[0].tobytes() == other.tobytes()


@pytest.mark.parametrize(("precision", "limit"), [("f32", 1e-5), ("bf16", 3e-2)])
def test_reference_agrees_within_tolerance(
    model: ost.Model, precision: str, limit: float, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, model.config.vocab_size, 22, dtype=np.int32)
    planned = ost.compile(model, buckets={"B": [1], "T": [1, 16]}, context=64, precision=precision)
    actual, expected = logits(planned, tokens), logits(planned.clone("reference"), tokens)
    assert np.abs(actual - expected).max() <= limit * expected.std()


def test_every_disabled_fusion_gives_the_same_logits(model: ost.Model, rng: np.random.Generator) -> None:
    tokens = rng.integers(0, model.config.vocab_size, 22, dtype=np.int32)
    expected = logits(ost.compile(model, buckets={"B": [1], "T": [1, 16]}, context=64), tokens)
    for name in ("fuse_add_norm", "fuse_swiglu", "fuse_qkv", "cse", "fold_constants"):
        executable = ost.compile(model, buckets={"B": [1], "T": [1, 16]}, context=64, disable=frozenset({name}))
        assert np.abs(logits(executable, tokens) - expected).max() <= 1e-5 * expected.std(), name
