"""Attention of tiles of queries over random packed batches: against the reference, and with the same bits whatever else is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import check, references, results_of
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import modules
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import floats, indices, valid
from ostinato.ir.target import Impl
from ostinato.ir.types import Array, DType
from tests.kernels.emulated import WAVES, EmulatedMachine, compiled, instances

OPERATOR = OP["attention_packed"]
ROWS = {row.name: row for row in HIP_ROWS if row.op == "attention_packed"}
by_wave = pytest.mark.parametrize("wave", WAVES)
BATCHES = 6
Q, KEYS, VALUES, ROW, POSITION, TABLE, LENGTH = range(7)


@dataclass(frozen=True)
class Kind:
    """Query heads, key-value heads and head width; dtypes of queries, of keys and values, and of the result."""

    heads: tuple[int, int, int]
    query: DType
    key: DType
    result: DType

    def row(self, wave: int) -> Impl:
        return ROWS["hip_block" if self.key is DType.F32 else f"hip_tile{wave}"]


KINDS = (
    Kind((7, 1, 64), DType.F32, DType.BF16, DType.BF16),
    Kind((2, 2, 128), DType.F32, DType.F16, DType.F32),
    Kind((4, 2, 64), DType.F16, DType.F16, DType.F16),
    Kind((3, 1, 128), DType.BF16, DType.BF16, DType.BF16),
    Kind((3, 1, 64), DType.F32, DType.F32, DType.F32),
    Kind((4, 4, 32), DType.F32, DType.F32, DType.BF16),
)


def batch(rng: np.random.Generator, kind: Kind, loudness: float) -> Sample:
    """Rows of which some have chunks of queries behind cached keys, some one query, and some nothing; queries in any order, some of nobody."""
    query, shared, width = kind.heads
    size = int(rng.choice([1, 5, 16, 40]))
    lengths = rng.choice([0, 1, 2, 31, 33, 64, 70, 129, 193], int(rng.integers(2, 5)))
    places: list[tuple[int, int]] = [(-1, 0)]
    for row, length in enumerate(lengths):
        first = int(rng.integers(0, length)) if length else 0
        places += [(row, position) for position in range(first, int(length) + (length == 0))][-60:]
    while len(places) < 16 * len(lengths):
        places.append((0, int(rng.integers(0, max(1, lengths[0])))))
    order = rng.permutation(len(places)) if rng.random() < 0.5 else np.arange(len(places))
    tokens = np.array(places)[order]
    blocks = -(-int(lengths.max()) // size) + 1
    table = rng.permutation(len(lengths) * blocks + 2)[: len(lengths) * blocks].reshape(len(lengths), blocks)
    caches = [rng.standard_normal((table.size + 2, shared, size, width)).astype(np.float32) for _ in range(2)]
    seen = np.zeros((table.size + 2, size), bool)
    for row, length in enumerate(lengths):
        for key in range(int(length)):
            seen[table[row, key // size], key % size] = True
    for cache in caches:
        cache.transpose(0, 2, 1, 3)[~seen] = np.nan  # what lies past lengths is read by nobody
    return valid(
        floats(rng.standard_normal((len(tokens), query, width)) * loudness, kind.query),
        *(floats(cache, kind.key) for cache in caches),
        indices(tokens[:, 0]),
        indices(tokens[:, 1]),
        indices(table),
        indices(lengths),
        scale=float(width**-0.5),
        window=int(rng.choice([0, 0, 1, 17, 64])),
        soft_cap=float(rng.choice([0.0, 0.0, 2.0])),
        dtype=kind.result.value,
    )


def as_it_lies(wave: int, kind: Kind, sample: Sample) -> Call:
    return next(call for call in calls(kind.row(wave), sample))


def machine(wave: int, call: Call, seed: int) -> EmulatedMachine:
    return EmulatedMachine(wave, seed, compiled(modules(instances([call])), wave))


@by_wave
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_random_batches_agree_with_the_reference(wave: int, kind: Kind, rng: np.random.Generator) -> None:
    for seed in range(BATCHES):
        sample = batch(rng, kind, (1.0, 1.0, 3.0)[seed % 3])
        call, arrays = as_it_lies(wave, kind, sample), arrays_of(OPERATOR, sample, rng)
        check(call, [machine(wave, call, seed)], arrays, references(call, arrays))


@by_wave
@pytest.mark.parametrize("query", [DType.F32, DType.BF16], ids=str)
def test_matrix_units_leave_f32_results_over_bf16_keys_to_others(
    wave: int, query: DType, rng: np.random.Generator
) -> None:
    """The weights of the values are two bf16 there, which an f32 result's tolerance does not cover; two f16 it does."""
    for key, result, refused in (
        (DType.BF16, DType.F32, True),
        (DType.BF16, DType.BF16, False),
        (DType.F16, DType.F32, False),
    ):
        kind = Kind((3, 1, 64), key if query is not DType.F32 else query, key, result)
        assert bool(list(calls(kind.row(wave), batch(rng, kind, 1.0)))) is not refused, kind


def bits(wave: int, kind: Kind, sample: Sample, rng: np.random.Generator) -> Array:
    """What the row makes of a sample, as bytes of a token."""
    call = as_it_lies(wave, kind, sample)
    (result,) = results_of(call, machine(wave, call, 1), arrays_of(OPERATOR, sample, rng))
    return np.ascontiguousarray(result).view(np.uint8).reshape(len(result), -1)


@by_wave
@pytest.mark.parametrize("kind", [*KINDS[:2], KINDS[-2]], ids=str)
def test_a_row_has_the_same_bits_whatever_the_others_hold(wave: int, kind: Kind, rng: np.random.Generator) -> None:
    """Without the other rows, and with the queries in another order, so that others share its blocks."""
    for _ in range(2):
        sample = batch(rng, kind, 1.0)
        together = bits(wave, kind, sample, rng)
        row_of_token = sample.operands[ROW]
        assert row_of_token is not None
        rows = row_of_token.data
        assert rows is not None
        for row in np.unique(rows[rows >= 0]):
            alone = np.where(rows == row, rows, -1)
            operands = list(sample.operands)
            operands[ROW] = indices(alone)
            apart = bits(wave, kind, replace(sample, operands=tuple(operands)), rng)
            assert np.array_equal(apart[rows == row], together[rows == row])
        order = rng.permutation(len(rows))
        operands = list(sample.operands)
        for index in (Q, ROW, POSITION):
            operand = operands[index]
            assert operand is not None
            assert operand.data is not None
            operands[index] = replace(operand, data=operand.data[order])
        assert np.array_equal(bits(wave, kind, replace(sample, operands=tuple(operands)), rng), together[order])
