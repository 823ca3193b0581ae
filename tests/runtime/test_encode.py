"""Embedding token rows: packing, the same bits in every batch and mode, limits, and the kinds of array that callers have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.errors import BoundsError, CapacityError, LifecycleError, ShapeError
from ostinato.ir.types import Array
from ostinato.planner.check import check_program
from ostinato.runtime.encode import EmbedExecutable, pack_texts
from ostinato.tools.compare.differences import bits_equal
from tests.frontend.make_checkpoints import write_hf_checkpoint
from tests.frontend.make_encoders import encoder_config, random_encoder, write_modules

LENGTHS = (1, 64, 3, 17, 17, 2, 40, 5, 33)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = encoder_config()
    return write_hf_checkpoint(tmp_path_factory.mktemp("encoder"), config, random_encoder(config, 3))


@pytest.fixture(scope="module")
def exe(folder: Path) -> EmbedExecutable:
    return ost.compile_encoder(folder, buckets={"B": [1, 4], "T": [16, 64]}, threads=2)


def rows_of(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 131, length, dtype=np.int32) for length in lengths]


def test_modes_agree_and_the_plan_is_proven(folder: Path, exe: EmbedExecutable, seed: int) -> None:
    report = ost.compare(exe, tokens=40, seed=seed % 1000)
    assert report.ok, str(report)
    assert report.pairs[-1].verdict == "bit-equal"  # eager / planned
    check_program(exe.program.plan, exe.program.graphs, exe.program.target)
    assert ost.compare(folder, tokens=20, precision="bf16").ok


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_row_has_the_same_bits_in_any_batch_bucket_and_thread_count(folder: Path, precision: str, seed: int) -> None:
    rows = rows_of(seed)
    found = []
    for buckets, threads in (({"B": [1], "T": [64]}, 1), ({"B": [16], "T": [64]}, 3), ({"B": [2, 9], "T": [64]}, 2)):
        executable = ost.compile_encoder(folder, buckets=buckets, threads=threads, precision=precision)
        found.append(executable.embed(rows, normalize=True))
        found.append(executable.embed(rows[::-1], normalize=True)[::-1])
        found.append(executable.embed(rows, normalize=True, batch_size=2))
        found.append(np.concatenate([executable.embed([row], normalize=True) for row in rows]))
    assert all(bits_equal(found[0], other) for other in found)


def test_steps_hold_whole_rows_in_order(exe: EmbedExecutable) -> None:
    assert (exe.tokens, exe.rows, exe.dimension, exe.vocab_size) == (64, 4, 64, 131)
    assert list(exe.steps([64, 64, 64, 63, 1, 1])) == [[0, 1, 2, 3], [4, 5]]
    assert list(exe.steps([200, 57, 0, 10])) == [[0], [1, 3]]
    assert list(exe.steps([1, 2, 3], batch_size=2)) == [[0, 1], [2]]
    assert list(exe.steps([0, 0])) == []


def test_the_smallest_entry_that_holds_a_step_runs_it(exe: EmbedExecutable) -> None:
    assert exe.bucket(16, 1).name == "embed[N=16,R=1]"
    assert exe.bucket(17, 1).name == "embed[N=64,R=1]"
    assert exe.bucket(2, 2).dims == {"N": 64, "R": 4}
    with pytest.raises(CapacityError, match="no entry holds 257 tokens of 2 rows"):
        exe.bucket(257, 2)


def test_rows_without_tokens_give_zeros(exe: EmbedExecutable, seed: int) -> None:
    empty = np.zeros(0, np.int32)
    rows = rows_of(seed, (5, 7))
    found = exe([rows[0], empty, rows[1], empty])["embedding"]
    assert not found[[1, 3]].any()
    assert bits_equal(found[[0, 2]], exe(rows)["embedding"])
    assert exe([])["embedding"].shape == (0, 64)
    assert not exe([empty])["embedding"].any()


def test_what_lies_past_a_length_is_not_read(exe: EmbedExecutable, seed: int) -> None:
    rows = rows_of(seed, (9, 4, 12))
    padded = np.zeros((3, 12), np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)], padded[index, len(row) :] = row, 77
    found = exe(padded, [9, 4, 12])["embedding"]
    assert bits_equal(found, exe(rows)["embedding"])
    plan = exe.bucket(25, 3)
    inputs = pack_texts(plan, rows)
    inputs["row_of_token"][25:], inputs["input_ids"][25:], inputs["position"][25:] = 2, 77, 63
    assert bits_equal(exe.run(plan.name, inputs)["pooled"][:3], found)


def test_token_types_count(exe: EmbedExecutable, seed: int) -> None:
    rows = rows_of(seed, (6, 3))
    zeros = [np.zeros_like(row) for row in rows]
    ones = [np.ones_like(row) for row in rows]
    assert bits_equal(exe(rows)["embedding"], exe(rows, token_type_ids=zeros)["embedding"])
    assert not np.allclose(exe(rows)["embedding"], exe(rows, token_type_ids=ones)["embedding"])
    with pytest.raises(ShapeError, match="token_type_ids: expected a token type for each token"):
        exe(rows, token_type_ids=zeros[:1])
    with pytest.raises(BoundsError, match=r"token_type_ids\[0\].*token id 2 at index 0"):
        exe(rows, token_type_ids=[ones[0] * 2, ones[1]])


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_normalized_is_pooled_over_its_length(folder: Path, pooling: str, tmp_path: Path, seed: int) -> None:
    config = encoder_config()
    write_hf_checkpoint(tmp_path, config, random_encoder(config, 3))
    executable = ost.compile_encoder(write_modules(tmp_path, {"pooling_mode": pooling}), buckets={"B": [9], "T": [64]})
    pooled, normalized = (executable(rows_of(seed), normalize=flag)["embedding"] for flag in (False, True))
    lengths = np.linalg.norm(pooled.astype(np.float64), axis=1, keepdims=True)
    assert np.abs(normalized - pooled / lengths).max() < 2e-7


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda exe: exe([np.array([1, 131], np.int32)]), BoundsError, r"token id 131 at index 1 is outside"),
        (lambda exe: exe([[-1]]), BoundsError, r"input_ids\[0\]"),
        (lambda exe: exe([np.zeros(65, np.int32)]), CapacityError, "row 0 has 65 tokens, the limit is 64"),
        (lambda exe: exe(np.zeros(3, np.int32)), ShapeError, "expected \\[batch, tokens\\]"),
        (lambda exe: exe(np.zeros((1, 3), np.int32), [4]), BoundsError, "lengths \\[4\\]"),
    ],
)
def test_unusable_rows(
    exe: EmbedExecutable, call: Callable[[EmbedExecutable], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(exe)


def test_one_call_at_a_time_and_a_clone_for_another(exe: EmbedExecutable, seed: int) -> None:
    rows = rows_of(seed)
    expected = exe(rows)["embedding"]
    with exe.exclusive():
        with pytest.raises(LifecycleError, match="running another call"):
            exe(rows)
        assert bits_equal(exe.clone()(rows)["embedding"], expected)


def test_staged_compilation_gives_the_same_vectors(folder: Path, exe: EmbedExecutable, seed: int) -> None:
    lowered = ost.trace(folder, "embed").lower(dims={"N": 200, "R": 9})
    loaded = lowered.plan().load("cpu")
    assert ost.compare(loaded, tokens=12).ok
    rows = rows_of(seed)
    inputs = pack_texts(loaded.entries["embed"], rows)
    assert bits_equal(loaded.run(None, inputs)["pooled"], exe(rows)["embedding"])


def test_torch_in_torch_out(exe: EmbedExecutable, seed: int) -> None:
    torch = pytest.importorskip("torch")
    ids = np.stack(rows_of(seed, (8, 8)))
    found = exe(torch.from_numpy(ids.astype(np.int64)))["embedding"]
    assert isinstance(found, torch.Tensor)
    assert bits_equal(found.numpy(), exe(ids)["embedding"])
