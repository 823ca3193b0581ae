"""The vendor's GEMM on a card, where there is one: products of real models against numpy, algorithms recorded and taken again, captured like eager.

Run it alone on a machine with a card; with -s it says what was chosen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, check, references
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.vendor_choices import VendorChoices
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import materialise, normal, valid
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl
from ostinato.ir.types import Array, DType
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.real_card import real_card

VENDOR_ROWS = [row for row in HIP_ROWS if row.kind is StepKind.GEMM]
LINEAR = next(row for row in VENDOR_ROWS if row.op == "linear")
BF16, F16, F32 = DType.BF16, DType.F16, DType.F32


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> HipDevice:
    found = HipDevice(real_card(), cache=CodeCache(tmp_path_factory.mktemp("cache")))
    if not any(row.kind is StepKind.GEMM for row in found.target.rows):
        pytest.skip(f"{found.native.name} has no rows of the vendor's GEMM")
    return found


def linear(m: int, n: int, k: int, dtype: DType, result: DType, *, bias: bool = False) -> Sample:
    return valid(normal((m, k), dtype), normal((n, k), dtype), normal((n,)) if bias else None, dtype=result.value)


SAMPLES: dict[str, tuple[Sample, ...]] = {
    "linear": (
        linear(9, 896, 896, BF16, F32),
        linear(512, 896, 896, BF16, F32, bias=True),
        linear(512, 128, 896, BF16, F32, bias=True),
        linear(512, 4864, 896, BF16, F32),
        linear(512, 896, 4864, BF16, BF16),
        linear(100, 1536, 8960, BF16, F32),
        linear(77, 1536, 384, F16, F16),
        linear(77, 1536, 384, F16, F32, bias=True),
        linear(300, 384, 384, F32, F32, bias=True),
        linear(12, 384, 1536, F32, F32),
    ),
    "matmul": (
        valid(normal((14, 64, 64), BF16), normal((14, 64, 128), BF16), dtype="f32", scale=0.125),
        valid(normal((2, 3, 16, 32)), normal((2, 3, 64, 32)), transpose_b=True),
        valid(normal((512, 256), F16), normal((512, 128), F16), transpose_a=True),
    ),
    "attention_scores_gqa": (
        valid(normal((1, 14, 128, 64), BF16), normal((1, 2, 128, 64), BF16), dtype="f32", scale=0.125),
        valid(normal((2, 12, 64, 128)), normal((2, 12, 64, 128)), scale=0.0884),
    ),
    "attention_probability_value_bthd": (
        valid(normal((1, 14, 128, 128), BF16), normal((1, 128, 14, 64), BF16), dtype="f32"),
        valid(normal((1, 12, 64, 64)), normal((1, 64, 1, 128))),
    ),
}


@pytest.mark.parametrize("row", VENDOR_ROWS, ids=lambda row: row.op)
def test_products_of_models_equal_the_reference(row: Impl, gpu: HipDevice, rng: np.random.Generator) -> None:
    for sample in SAMPLES[row.op]:
        arrays: list[Array | None] = [None if s is None else materialise(s, rng) for s in sample.operands]
        arrays += [None] * (len(OP[row.op].operands) - len(arrays))
        if (second := arrays[1]) is not None:  # as weights are: sums of thousands of terms stay of the size of one
            arrays[1] = (second.astype(np.float32) / np.sqrt(second.shape[-1])).astype(second.dtype)
        ways = list(calls(row, sample))
        assert ways, f"{row.identity} does not take {sample}"
        for call in ways:
            check(call, [DeviceMachine(gpu)], arrays, references(call, arrays))


def test_f32_is_not_rounded_to_tf32(gpu: HipDevice) -> None:
    """1 + 2^-11 lies between two numbers of TF32: whichever it became, the sums would be off by twice the tolerance."""
    call = next(calls(LINEAR, linear(16, 64, 64, F32, F32)))
    arrays: list[Array | None] = [np.full((16, 64), 1 + 2.0**-11, np.float32), np.ones((64, 64), np.float32)]
    arrays += [None] * (len(call.site.operands) - len(arrays))
    assert 2 * call.op.tolerance.relative < 2.0**-11
    check(call, [DeviceMachine(gpu)], arrays, references(call, arrays))


def test_an_algorithm_is_recorded_and_taken_again(gpu: HipDevice, tmp_path: Path) -> None:
    first, second = VendorChoices(gpu.native, tmp_path), VendorChoices(gpu.native, tmp_path)
    for sample in SAMPLES["linear"]:
        call = next(calls(LINEAR, sample))
        params, workspace = LINEAR.params(call.site), LINEAR.workspace(call.site)
        chosen, again = (choices.gemm(params, workspace) for choices in (first, second))
        print(f"{call}: {chosen.node_count} nodes, {chosen.choice.workspace_bytes} bytes, {chosen.choice.algorithm}")
        assert (again.choice.algorithm, again.node_count) == (chosen.choice.algorithm, chosen.node_count)
    assert (first.counters.chosen, second.counters.recorded) == (len(SAMPLES["linear"]),) * 2
    assert (second.counters.refused, second.counters.chosen) == (0, 0)


def test_a_captured_product_has_the_bits_of_an_eager_one(gpu: HipDevice, rng: np.random.Generator) -> None:
    for sample in SAMPLES["linear"]:
        _captured_like_eager(gpu, next(calls(LINEAR, sample)), rng)


def _captured_like_eager(gpu: HipDevice, call: Call, rng: np.random.Generator) -> None:
    site = call.site
    shapes = [None if t is None else t for t in (site.operand(1), site.operand(0), site.operands[2])]
    inputs = [None if t is None else rng.standard_normal(t.static_shape).astype(t.dtype.numpy) for t in shapes]
    buffers = [None if values is None else gpu.allocate(values.nbytes) for values in inputs]
    for buffer, values in zip(buffers, inputs, strict=True):
        if buffer is not None and values is not None:
            buffer.write(values)
    result, workspace = gpu.allocate(site.results[0].nbytes), LINEAR.workspace(site)
    work = gpu.allocate(max(workspace, 1))
    a, b, bias = ((0, 0) if buffer is None else (buffer.address, buffer.nbytes) for buffer in buffers)
    operands = (a, b, bias, (0, 0), (result.address, result.nbytes), (work.address, workspace))
    step = ResolvedStep("product", StepKind.GEMM, "gemm", operands, LINEAR.params(site))
    table = gpu.make_table([step], gpu.open_stream())
    graph = table.capture()
    assert graph.node_count == table.node_counts[0]
    found = []
    for run in (table.run, graph.enqueue, graph.enqueue):
        result.fill(0xFF)
        run()
        table.finish()
        found.append(result.read(np.uint8, (result.nbytes,)).tobytes())
    graph.release()
    assert len(set(found)) == 1
