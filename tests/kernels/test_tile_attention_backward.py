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


def cut(batches: int, time: int, heads: int, kv_heads: int, width: int, window: int = 0) -> Sample:
    of_query, of_key = (batches, time, heads, width), (batches, time, kv_heads, width)
    operands = normal(of_query), normal(of_query, DType.BF16), *[normal(of_key, DType.BF16)] * 2
    log_sum = reals(np.full((batches, heads, time), 4.0, np.float32))
    return valid(*operands, normal(of_query, DType.BF16), log_sum, scale=width**-0.5, window=window)


def spans_of(time: int, window: int, span: int) -> int:
    """Spans of all tiles of queries of a sequence: counted from what each of them sees."""
    found = 0
    for first in range(0, time, 32):
        oldest = max(0, first - window + 1) if window > 0 else 0
        found += -(-(first // 32 - oldest // 32 + 1) // span)
    return found


@by_wave
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    ("time", "heads", "kv_heads", "width", "window", "span"),
    [
        (65, 2, 1, 64, 0, 1),
        (101, 7, 1, 64, 0, 2),
        (96, 2, 2, 128, 0, 1),
        (130, 2, 1, 64, 40, 1),
        (200, 3, 1, 64, 66, 2),
        (33, 1, 1, 64, 0, 1),
    ],
)
def test_few_blocks_have_a_span_each_of_what_streams_by(
    wave: int,
    batches: int,
    time: int,
    heads: int,
    kv_heads: int,
    width: int,
    window: int,
    span: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_backward, "_SPAN", span)
    sample = cut(batches, time, heads, kv_heads, width, window)
    call = as_it_lies(wave, sample)
    launch, pieces = call.row.launch_of(call.site), batches * heads * spans_of(time, window, span)
    assert launch is not None
    assert launch.grid[0] == 2 * pieces
    assert call.row.workspace(call.site) == 3 * pieces * 32 * width * 4
    run(call, wave, rng, sample)


@by_wave
def test_spans_of_fewer_sequences_than_there_is_room_for(
    wave: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_backward, "_SPAN", 1)
    sample = cut(3, 65, 2, 1, 64)
    ways = [call for call in calls(ROWS[f"hip_tile{wave}"], sample) if call.count is not None]
    assert ways
    for call in ways:
        run(call, wave, rng, sample)


@pytest.mark.parametrize(
    ("batches", "time", "window", "span"),
    [
        (1, 352, 0, 11),
        (1, 353, 0, 8),
        (1, 512, 0, 8),
        (1, 512, 100, 16),
        (2, 512, 0, 8),
        (4, 512, 0, 16),
        (1, 1024, 0, 15),
        (1, 2048, 0, 64),
    ],
)
def test_many_blocks_and_short_sequences_are_not_cut(batches: int, time: int, window: int, span: int) -> None:
    call = as_it_lies(32, cut(batches, time, 14, 2, 64, window))
    assert attention_backward._span(call.site) == span


@pytest.mark.parametrize(("time", "heads"), [(1344, 12), (8192, 2), (16000, 1), (512, 14), (2000, 4)])
def test_the_workspace_of_spans_stays_small(time: int, heads: int) -> None:
    call = as_it_lies(32, cut(1, time, heads, 1, 128))
    assert attention_backward._span(call.site) < -(-time // 32)
    assert call.row.workspace(call.site) < 40 << 20


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
