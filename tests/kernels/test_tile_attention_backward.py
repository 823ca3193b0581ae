"""Gradients of attention by tiles, over random sequences: against the reference, with heads that share keys in blocks of their own and all in one, and with
spans of what streams by in blocks of their own."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import check, references
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls.hip import HIP_ROWS, attention_backward
from ostinato.backend_hip.kernel_source import modules
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import normal, reals, valid
from ostinato.ir.types import DType
from tests.kernels.emulated import WAVES, EmulatedMachine, compiled, instances

OPERATOR = OP["attention_causal_backward"]
ROWS = {row.name: row for row in HIP_ROWS if row.op == OPERATOR.name}
by_wave = pytest.mark.parametrize("wave", WAVES)
CASES = 3


def sequences(rng: np.random.Generator, width: int, times: tuple[int, ...] = (16, 31, 33, 45)) -> Sample:
    """Whole sequences of bf16 with a log_sum near what it would be; some see all, some a window."""
    batch, time = int(rng.integers(1, 3)), int(rng.choice(times))
    shared, group = ((1, 3), (2, 2), (2, 1))[int(rng.integers(3))]
    of_query, of_key = (batch, time, shared * group, width), (batch, time, shared, width)
    log_sum = reals(rng.uniform(3.0, 5.0, (batch, shared * group, time)))
    operands = normal(of_query), normal(of_query, DType.BF16), *[normal(of_key, DType.BF16)] * 2
    return valid(
        *operands,
        normal(of_query, DType.BF16),
        log_sum,
        scale=width**-0.5,
        window=int(rng.choice([0, 0, 1, 20, 40])),
        soft_cap=float(rng.choice([0.0, 0.0, 2.0])),
    )


def as_it_lies(wave: int, sample: Sample, row: str = "") -> Call:
    return next(calls(ROWS[row or f"hip_tile{wave}"], sample))


def run(call: Call, wave: int, rng: np.random.Generator, sample: Sample) -> None:
    """Under two schedules, which must give the same bits."""
    module, arrays = compiled(modules(instances([call])), wave), arrays_of(OPERATOR, sample, rng)
    check(call, [EmulatedMachine(wave, seed, module) for seed in (1, 2)], arrays, references(call, arrays))


@by_wave
@pytest.mark.parametrize("width", [64, 128])
def test_random_sequences_agree_with_the_reference(wave: int, width: int, rng: np.random.Generator) -> None:
    for _ in range(CASES):
        sample = sequences(rng, width)
        run(as_it_lies(wave, sample), wave, rng, sample)


@by_wave
@pytest.mark.parametrize(("width", "span"), [(64, 1), (64, 2), (128, 1)])
def test_few_blocks_have_a_span_each_of_what_streams_by(
    wave: int, width: int, span: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_backward, "_SPAN", span)
    for _ in range(CASES):
        sample = sequences(rng, width, (65, 96, 101))
        call = as_it_lies(wave, sample)
        batches, time, heads, _ = call.site.operand(1).static_shape
        kv_heads, tiles = call.site.operand(2).static_shape[2], -(-time // 32)
        spans = -(-tiles // span)
        launch = call.row.launch_of(call.site)
        assert launch is not None
        assert launch.grid[0] == batches * tiles * 2 * heads * spans
        kept = batches * tiles * spans * 32 * width * 4
        of_keys = 2 * heads if heads // kv_heads * spans > 1 else 0
        assert call.row.workspace(call.site) == kept * (of_keys + (heads if spans > 1 else 0))
        run(call, wave, rng, sample)


@by_wave
def test_many_blocks_and_short_sequences_are_not_cut(wave: int) -> None:
    def spans(batch: int, time: int) -> int:
        of_query, of_key = (batch, time, 14, 64), (batch, time, 2, 64)
        operands = normal(of_query), normal(of_query, DType.BF16), *[normal(of_key, DType.BF16)] * 2
        log_sum = reals(np.zeros((batch, 14, time), np.float32))
        call = as_it_lies(wave, valid(*operands, normal(of_query, DType.BF16), log_sum, scale=0.125))
        launch, tiles = call.row.launch_of(call.site), -(-time // 32)
        assert launch is not None
        return launch.grid[0] // (batch * tiles * 28)

    assert [spans(1, 192), spans(1, 193), spans(1, 512), spans(2, 512), spans(4, 512), spans(1, 2048)] == [
        1,
        2,
        3,
        3,
        1,
        1,
    ]


@by_wave
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=str)
def test_one_block_has_all_heads_of_a_group_where_there_are_too_few_tickets(
    wave: int, dtype: DType, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_query, of_key = (1, 40, 4, 64), (1, 40, 2, 64)
    operands = normal(of_query), normal(of_query, dtype), *[normal(of_key, dtype)] * 2
    log_sum = reals(np.full((1, 4, 40), 4.0, np.float32))
    sample = valid(*operands, normal(of_query, dtype), log_sum, scale=0.125)
    shared = as_it_lies(wave, sample, "hip_block" if dtype is DType.F32 else "")
    row, site = shared.row, shared.site
    launch = row.launch_of(site)
    assert launch is not None
    assert launch.grid[0] == 2 * (4 + 4)
    assert row.workspace(site) == 2 * 4 * 2 * 32 * 64 * 4
    monkeypatch.setattr(attention_backward, "TICKETS", 3)
    launch = row.launch_of(site)
    assert launch is not None
    assert (launch.grid[0], row.workspace(site)) == (2 * (2 + 4), 0)
    run(shared, wave, rng, sample)


def test_tiles_take_bf16_of_two_widths() -> None:
    def refused(width: int, dtype: DType, time: int = 20) -> bool:
        of_query, of_key = (1, time, 2, width), (1, time, 1, width)
        operands = normal(of_query), normal(of_query, dtype), *[normal(of_key, dtype)] * 2
        log_sum = reals(np.full((1, 2, time), 4.0, np.float32))
        sample = valid(*operands, normal(of_query, dtype), log_sum, scale=0.125)
        return not list(calls(ROWS["hip_tile32"], sample))

    assert not refused(64, DType.BF16)
    assert not refused(128, DType.BF16)
    assert refused(64, DType.F32)
    assert refused(64, DType.F16)
    assert refused(80, DType.BF16)
    assert refused(64, DType.BF16, time=15)
