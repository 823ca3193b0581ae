"""Rows of the vendor's GEMM on the emulated device: the operators' samples and random products against the one oracle, what is refused and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, check, references
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.target import hip_target
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.ir.errors import ConfigError
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import materialise, normal, valid
from ostinato.ir.step import StepKind
from ostinato.ir.target import ANY, CallSite, Impl, Level
from ostinato.ir.types import Array, DType
from ostinato.ir.views import row_refusal

ROWS = {row.op: row for row in HIP_ROWS if row.kind is StepKind.GEMM}
HALVES = (DType.F16, DType.BF16)


@pytest.fixture
def gpu(device: _native.GpuDevice, tmp_path: Path) -> HipDevice:
    return HipDevice(device, cache=CodeCache(tmp_path))


def work(op: str, sample: Sample) -> float:
    """Operations of a sample: the emulated vendor is a plain loop."""
    types = [None if operand is None else operand.type for operand in sample.operands]
    attrs = OP[op].attributes(sample.attrs)
    return OP[op].cost(types, OP[op].infer(types, attrs), attrs).flops


def samples(op: str, rng: np.random.Generator) -> Iterator[Sample]:
    """Those of the table, then random ones: every dtype, edges of 16 bytes, batches, transposes, a workspace."""
    yield from (sample for sample in OP[op].samples(rng) if sample.error is None and work(op, sample) <= 2**20)
    for dtype in (DType.F32, *HALVES):
        unit = 16 // dtype.block_bytes
        for result in dict.fromkeys((dtype, DType.F32)):
            m, n, k = (int(rng.integers(9, 40)), unit * int(rng.integers(1, 9)), unit * int(rng.integers(1, 9)))
            if op == "linear":
                bias = normal((n,)) if result is DType.F32 else None
                yield valid(normal((m, k), dtype, axes="NC"), normal((n, k), dtype), bias, dtype=result.value)
                yield valid(normal((3, m, k), dtype), normal((n, k), dtype), dtype=result.value)
                operands = normal((m, k), dtype), normal((n, k), dtype), bias, normal((m, n), result)
                yield valid(*operands, dtype=result.value)
            if op == "matmul_add" and result is DType.F32:
                m = unit * int(rng.integers(1, 4))
                for lead, first, second in (((), True, False), ((2,), False, True), ((2, 3), True, True)):
                    a, b = ((k, m) if first else (m, k)), ((n, k) if second else (k, n))
                    pair = normal((*lead, *a), dtype), normal((*lead, *b), dtype)
                    yield valid(normal((*lead, m, n)), *pair, transpose_a=first, transpose_b=second, scale=0.375)
            if op == "matmul":
                m = unit * int(rng.integers(1, 4))
                for lead, first, second in (
                    ((), False, False),
                    ((2,), True, False),
                    ((2, 3), False, True),
                    ((), True, True),
                ):
                    a, b = ((k, m) if first else (m, k)), ((n, k) if second else (k, n))
                    attrs = {"transpose_a": first, "transpose_b": second, "dtype": result.value, "scale": 0.375}
                    yield valid(normal((*lead, *a), dtype), normal((*lead, *b), dtype), **attrs)
            if op == "attention_scores_gqa":
                for batch, heads, groups in ((1, 4, 1), (2, 4, 2), (2, 3, 3)):
                    q, keys = normal((batch, heads, 3, k), dtype), normal((batch, groups, n, k), dtype)
                    yield valid(q, keys, scale=0.25, dtype=result.value)
            if op == "attention_probability_value_bthd":
                for batch, heads, groups in ((1, 4, 1), (1, 3, 3), (2, 1, 1)):
                    p, values = normal((batch, heads, 3, n), dtype), normal((batch, n, groups, k), dtype)
                    yield valid(p, values, dtype=result.value)
    if op == "linear":
        yield valid(normal((64, 512), DType.BF16), normal((512, 512), DType.BF16), dtype="f32")


def all_calls(row: Impl, sample: Sample) -> Iterator[Call]:
    """Those of the harness, and strided operands whose gaps are whole runs of 16 bytes: by rows and, where they may be, by columns."""
    yield from calls(row, sample)
    plain = site(row, sample)
    for index, name in enumerate(spec.name for spec in OP[row.op].operands):
        tensor = plain.operands[index]
        if tensor is None or name not in row.strided:
            continue
        unit = 16 // tensor.dtype.block_bytes
        for order in ((*range(tensor.rank),), (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)):
            strides, step = [0] * tensor.rank, 1
            for axis in reversed(order):
                strides[axis] = step
                step = step * tensor.static_shape[axis] + (unit if axis == order[-1] else 0)
            seen = replace(plain, strides=(*plain.strides[:index], tuple(strides), *plain.strides[index + 1 :]))
            if row_refusal(row, seen, OP[row.op]) is None:
                yield Call(row, seen)


@pytest.mark.parametrize("op", ROWS)
def test_a_row_agrees_with_the_reference(op: str, gpu: HipDevice, rng: np.random.Generator) -> None:
    row, machine, ran = ROWS[op], DeviceMachine(gpu), 0
    seen: set[tuple[object, ...]] = set()
    for sample in samples(op, rng):
        arrays: list[Array | None] = [None if s is None else materialise(s, rng) for s in sample.operands]
        arrays += [None] * (len(OP[op].operands) - len(arrays))
        for call in all_calls(row, sample):
            ran += 1
            seen |= {("counted", call.count is not None), ("strided", bool(call.site.strided))}
            seen |= {("dtypes", call.site.operand(op == "matmul_add").dtype, call.site.results[0].dtype)}
            seen |= {("workspace", bool(row.workspace(call.site))), ("bias", op == "linear" and call.site.has(2))}
            seen |= {("residual", op == "linear" and call.site.has(3)), ("in place", bool(call.in_place))}
            check(call, [machine], arrays, references(call, arrays))
    assert ran > 20
    assert {("counted", True), ("strided", True), ("strided", False)} <= seen
    pairs = {(dtype, result) for dtype in (DType.F32, *HALVES) for result in (dtype, DType.F32)}
    assert {("dtypes", *pair) for pair in pairs if op != "matmul_add" or pair[1] is DType.F32} <= seen
    asked = ("workspace", "bias", "residual", "in place")
    assert op != "linear" or {(what, True) for what in asked} <= seen


def site(row: Impl, sample: Sample) -> CallSite:
    op = OP[row.op]
    types = [None if operand is None else operand.type for operand in sample.operands]
    types += [None] * (len(op.operands) - len(types))
    call = next(calls(replace(row, accepts=lambda _: None, extents=ANY, strided=frozenset()), sample))
    return replace(call.site, operands=tuple(types))


REFUSED = {
    "few rows": (valid(normal((8, 64)), normal((48, 64))), "the row is for 9 and more rows, found 8"),
    "odd columns": (valid(normal((9, 33)), normal((48, 33))), "x must lie in runs of 4 elements"),
    "odd columns of halves": (
        valid(normal((9, 36), DType.BF16), normal((48, 36), DType.BF16)),
        "x must lie in runs of 8 elements, which are 16 bytes",
    ),
    "odd outputs": (valid(normal((9, 64)), normal((47, 64))), "y must lie in runs of 4 elements"),
    "odd outputs of halves": (
        valid(normal((9, 64), DType.F16), normal((44, 64), DType.F16)),
        "y must lie in runs of 8 elements",
    ),
    "two dtypes": (valid(normal((9, 64)), normal((48, 64), DType.BF16)), "weight must be f32, found bf16"),
    "blocks": (valid(normal((9, 64)), normal((48, 64), DType.Q8_0)), "weight must be f32, found q8_0"),
    "a result below its operands": (valid(normal((9, 64)), normal((48, 64)), dtype="bf16"), "y must be f32"),
    "a bias of another dtype": (
        valid(normal((9, 64), DType.BF16), normal((48, 64), DType.BF16), normal((48,))),
        "adds a bias of the result's dtype",
    ),
    "a norm before it": (
        valid(normal((9, 64)), normal((48, 64)), None, None, normal((64,)), eps=1e-5),
        "the kernel takes no gain",
    ),
    "no outputs": (valid(normal((9, 64)), normal((0, 64))), "multiplies nothing"),
    "no columns": (valid(normal((9, 0)), normal((48, 0))), "multiplies nothing"),
    "no rows": (valid(normal((0, 64)), normal((48, 64))), "the row is for 9 and more rows, found 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_vendor_is_not_asked_is_refused_with_the_reason(what: str) -> None:
    sample, reason = REFUSED[what]
    assert reason in (row_refusal(ROWS["linear"], site(ROWS["linear"], sample), OP["linear"]) or "accepted")


def test_strides_are_those_of_one_batch_of_matrices(rng: np.random.Generator) -> None:
    row = ROWS["matmul"]
    plain = site(row, valid(normal((2, 3, 16, 8)), normal((2, 3, 8, 16))))
    natural = (384, 128, 8, 1)
    for strides, accepted in (
        (natural, True),
        ((3 * 160, 160, 8, 1), True),  # gaps between matrices
        ((3 * 320, 320, 20, 1), True),  # and between rows
        ((384, 128, 1, 16), True),  # by columns
        ((0, 0, 8, 1), True),  # the same matrix again
        ((400, 128, 8, 1), False),  # two steps between matrices
        ((384, 128, 10, 1), False),  # rows that start anywhere
        ((3 * 130, 130, 8, 1), False),  # matrices that start anywhere
        ((768, 256, 16, 2), False),  # gaps in a row
        ((384, 128, 4, 1), False),  # rows that overlap
    ):
        found = row_refusal(row, replace(plain, strides=(strides, plain.strides[1])), OP["matmul"])
        assert (found is None) is accepted, (strides, found)
    assert row_refusal(row, replace(plain, offsets=(4, 0)), OP["matmul"]) is None
    assert "runs of 4" in (row_refusal(row, replace(plain, offsets=(2, 0)), OP["matmul"]) or "")


def test_what_a_row_says_is_the_product_turned_round() -> None:
    row = ROWS["linear"]
    sample = valid(normal((9, 64), DType.BF16), normal((48, 64), DType.BF16), normal((48,)), dtype="f32")
    params = GemmParams(*row.params(site(row, sample)))  # type: ignore[arg-type]
    assert (params.m, params.n, params.k, params.batches) == (48, 9, 64, 1)
    assert (params.transpose_a, params.transpose_b) == (1, 0)
    assert (params.a_leading, params.b_leading, params.d_leading) == (64, 64, 48)
    assert (params.a_type, params.d_type, params.bias_type) == (DType.BF16.number, DType.F32.number, DType.F32.number)
    assert (params.alpha, params.beta) == (1.0, 0.0)
    assert [type(p) for p in params] == [int] * 19 + [float] * 2
    assert GemmParams(*row.params(site(row, REFUSED["few rows"][0]))).bias_type == NO_BIAS  # type: ignore[arg-type]


def test_what_a_product_is_added_to_is_c_and_the_result() -> None:
    """A weight's gradient: the upstream gradient turned, by the input, added to what is there."""
    row = ROWS["matmul_add"]
    operands = normal((1000, 64)), normal((48, 1000), DType.BF16), normal((48, 64), DType.BF16)
    params = GemmParams(*row.params(site(row, valid(*operands, transpose_a=True))))  # type: ignore[arg-type]
    assert (params.m, params.n, params.k, params.batches) == (64, 1000, 48, 1)
    assert (params.transpose_a, params.transpose_b) == (0, 1)
    assert (params.a_leading, params.b_leading, params.c_leading, params.d_leading) == (64, 1000, 64, 64)
    assert (params.a_type, params.c_type, params.d_type) == (DType.BF16.number, DType.F32.number, DType.F32.number)
    assert (params.alpha, params.beta) == (1.0, 1.0)
    assert row.operands[3:5] == ("c", "y")


def test_a_workspace_is_of_the_size_of_the_product_alone() -> None:
    row = ROWS["linear"]
    small = site(row, valid(normal((63, 512)), normal((512, 512))))
    large = site(row, valid(normal((64, 512)), normal((512, 512))))
    assert (row.workspace(small), row.workspace(large)) == (0, 4 << 20)


def test_targets_have_the_rows_where_the_vendor_s_library_serves_the_card() -> None:
    for architecture, wave, has in (
        ("gfx942", 64, True),
        ("gfx90a", 64, True),
        ("sm_90", 32, True),
        ("sm_80", 32, True),
        ("gfx1100", 32, False),
    ):
        target = hip_target(architecture, wave)
        assert ({row.op for row in target.rows if row.kind is StepKind.GEMM} == set(ROWS)) is has
        first = target.ranked("linear")[0]
        assert (first.level is Level.VENDOR) is has
        assert all(row.kind is StepKind.LAUNCH for row in hip_target(architecture, wave, vendor=False).rows)


def test_operands_off_their_alignment_are_refused_before_the_vendor_sees_them(
    gpu: HipDevice, device: _native.GpuDevice
) -> None:
    row = ROWS["linear"]
    gemm = vendor_choices(device, gpu.kernels.cache.folder).gemm(
        row.params(site(row, valid(normal((9, 64)), normal((48, 64))))), 0
    )
    block = device.allocate(1 << 16)
    for off in (0, 1, 4):
        operands = [(block + (8 if at == off else 0) if at in (0, 1, 4) else 0, 0) for at in range(6)]
        with pytest.raises(ConfigError, match="multiples of 16 bytes"):
            gemm.run(operands)
    device.free(block)
