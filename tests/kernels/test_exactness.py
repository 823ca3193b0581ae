"""The exactness that a row declares, held against its kernel: bits of the reference, or a row's own bits whatever the rows beside it.

Rows of a call are entries of axis 0 of the operands listed here. A call is run whole and on parts of its rows (the first, the last, a run from the middle) and,
where rows are independent of their order, on all of them turned round and on a row eight times: each result must have the same bits in all of these.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, Machine, references, results_of
from ostinato.backend_hip.evidence.samples import LARGE, arrays_of, well_typed
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.kernel_source import modules
from ostinato.ir.evidence import Exactness
from ostinato.ir.opdef import Sample, SampleOperand
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl, Level
from ostinato.ir.types import Array
from tests.kernels.emulated import EmulatedMachine, compiled, instances

TOKENS = ("row_of_token", "position")
"""Operands whose order and places mean something."""
ROW_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("x", "residual"),
    "qkv_rope_store": ("x", "cos", "sin", *TOKENS),
    "rope_store": ("q", "k", "v", "cos", "sin", *TOKENS),
    "attention_scores_gqa": ("q", "k"),
    "attention_probability_value_bthd": ("p", "v"),
    "add_rms_norm": ("a", "b"),
    "rotary_table": ("position",),
    "rotary_table_dynamic": ("position", "length"),
    "rotary_table_longrope": ("position", "length"),
    "rope_split_half": ("x", "cos", "sin"),
    "rope_interleaved": ("x", "cos", "sin"),
    "rope_split_half_bias_bthd": ("x", "cos", "sin"),
    "attention_packed": ("q", *TOKENS),
    **dict.fromkeys(("attention_causal", "attention_causal_saved", "attention_log_sum"), ("q", "k", "v")),
    "attention_causal_backward": ("gradient", "q", "k", "v", "y", "log_sum"),
    "attention_scores_gqa_backward": ("gradient", "q", "k"),
    "attention_probability_gradient_bthd": ("gradient", "v"),
    "attention_value_gradient_bthd": ("p", "gradient"),
    **dict.fromkeys(
        ("rope_split_half_backward", "rope_interleaved_backward", "rope_split_half_bias_bthd_backward"),
        ("gradient", "cos", "sin"),
    ),
    "rope_split_half_joint": ("x", "cos", "sin"),
    "rope_split_half_joint_backward": ("q_gradient", "k_gradient", "v_gradient", "cos", "sin"),
    "swiglu": ("gate", "up"),
    "masked_mean": ("start", "length"),
    "penalize": ("logits", "tokens", "prompt_length", "length", "repetition", "presence", "frequency"),
    "sample": ("logits", "temperature", "top_k", "top_p", "min_p", "seed", "index"),
    "add_at_tokens": ("logits", "tokens", "bias", "pairs"),
    "matmul": ("a", "b"),
    "matmul_add": ("c", "a", "b"),
    **dict.fromkeys(("silu_backward", "gelu_backward", "l2_normalize_backward"), ("gradient", "x")),
    **dict.fromkeys(("tanh_backward", "softmax_backward", "causal_softmax_backward"), ("gradient", "y")),
    **dict.fromkeys(("rms_norm_backward", "layer_norm_backward"), ("gradient", "x", "addend")),
    **dict.fromkeys(("swiglu_backward", "swiglu_joint_backward"), ("gradient", "gate", "up")),
    "token_cross_entropy": ("logits", "target"),
    "token_cross_entropy_backward": ("gradient", "logits", "target", "log_sum"),
    **dict.fromkeys(
        ("adamw", "sgd", "sgd_momentum"), ("parameter", "gradient", "first", "second", "velocity", "mirror")
    ),
    "adamw_group": tuple(spec.name for spec in OP["adamw_group"].operands[1:]),
}
"""Operands with the rows, where that is not the first one alone."""


def names_of(op: str) -> tuple[str, ...]:
    return ROW_OPERANDS.get(op, (OP[op].operands[0].name,))


ROW_RANK: Mapping[str, int] = {
    **dict.fromkeys(("rotary_table", "rotary_table_dynamic", "rotary_table_longrope", "masked_mean"), 1),
    "token_cross_entropy_backward": 1,
    **dict.fromkeys(("rope_split_half", "rope_interleaved", "matmul", "causal_softmax", "causal_softmax_backward"), 3),
    **dict.fromkeys(("rope_split_half_backward", "rope_interleaved_backward", "matmul_add"), 3),
    "rope_split_half_joint_backward": 3,
}
"""Rank of the first of these operands from which on axis 0 is of rows; 2 for others: a vector is one row, as are a head and a matrix for some."""
SUMS_OVER_ROWS = (
    *("bias_gradient", "rms_norm_gain_gradient", "layer_norm_gain_gradient", "square_sum", "square_sum_add"),
    *("cross_entropy_backward", "target_mean", "target_mean_backward", "masked_mean_backward"),
    *("embedding_backward", "embedding_backward_add", "repeat_interleave_backward", "optimizer_factors"),
)
"""Operators of training whose results depend on all rows together."""
UNITS = list(_native.isa_available())
KERNEL_ROWS = [row for row in ROWS if row.level is not Level.REFERENCE]
HIP_KERNEL_ROWS = [row for row in HIP_ROWS if row.kind is StepKind.LAUNCH]
MOST_CALLS = 40
HIP_SAMPLES = 3


Part = tuple[Call, list[Array | None], tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A call of a row, and the calls of parts of its rows with the numbers of these rows."""

    whole: Call
    arrays: list[Array | None]
    parts: tuple[Part, ...]


def row_operands(row: Impl, sample: Sample) -> tuple[int, ...]:
    """Which operands have the rows; none where the sample has fewer than two of them."""
    spec, names = OP[row.op].operands, names_of(row.op)
    found = tuple(i for i, o in enumerate(sample.operands) if o is not None and spec[i].name in names)
    first = sample.operands[found[0]] if found else None
    if first is None or first.type.rank < ROW_RANK.get(row.op, 2) or first.type.static_shape[0] < 2:
        return ()
    return found


def choices(row: Impl, count: int) -> Iterator[tuple[int, ...]]:
    yield (0,)
    yield (count - 1,)
    yield tuple(range(count // 3, min(count, count // 3 + max(2, count // 2))))
    if not set(names_of(row.op)) & set(TOKENS):
        yield tuple(reversed(range(count)))
        yield (1,) * 8


def sequences(row: Impl, rng: np.random.Generator) -> Iterator[Case]:
    """The cases of `attention_bidirectional`, whose rows see one another within their sequence: each sequence alone."""
    for sample in OP[row.op].samples(rng):
        whole = next(calls(row, sample), None) if sample.error is None else None
        if whole is None:
            continue
        arrays = arrays_of(OP[row.op], sample, rng)
        _, _, _, owner, start, length = arrays
        assert owner is not None
        assert start is not None
        assert length is not None
        parts: list[Part] = []
        for number, (first, count) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
            if not 0 < count == (owner[first : first + count] == number).sum():
                continue
            places = [np.zeros(count, np.int32), np.zeros(1, np.int32), np.array([count], np.int32)]
            taken = [*(a[first : first + count] for a in arrays[:3] if a is not None), *places]
            part = Sample(
                tuple(
                    SampleOperand(replace(o.type, shape=a.shape), a if i > 2 else None)
                    for i, (o, a) in enumerate(zip(sample.operands, taken, strict=True))
                    if o is not None
                ),
                sample.attrs,
            )
            call = next(calls(row, part), None)
            if call is not None:
                parts.append((call, [*taken], tuple(range(first, first + count))))
        if parts and len(start) > 1:
            yield Case(whole, arrays, tuple(parts))


def cases(row: Impl, rng: np.random.Generator) -> Iterator[Case]:
    """All that the samples of the operator give."""
    if row.op == "attention_bidirectional":
        yield from sequences(row, rng)
        return
    for sample in (*OP[row.op].samples(rng), *LARGE.get(row.op, ())):
        if sample.error is not None or not (indices := row_operands(row, sample)):
            continue
        whole = next(calls(row, sample), None)
        if whole is None or whole.in_place:
            continue
        arrays = arrays_of(OP[row.op], sample, rng)
        shape = next(o.type.static_shape for i in indices if (o := sample.operands[i]) is not None)
        parts: list[Part] = []
        for chosen in choices(row, shape[0]):
            part = _part(sample, indices, chosen)
            call = next(calls(row, part), None) if well_typed(OP[row.op], part) else None
            if call is not None:
                taken = [a if a is None or i not in indices else a[list(chosen)] for i, a in enumerate(arrays)]
                parts.append((call, taken, chosen))
        if parts:
            yield Case(whole, arrays, tuple(parts))


def _part(sample: Sample, indices: tuple[int, ...], chosen: tuple[int, ...]) -> Sample:
    def taken(index: int, operand: SampleOperand | None) -> SampleOperand | None:
        if operand is None or index not in indices:
            return operand
        shape = (len(chosen), *operand.type.static_shape[1:])
        data = None if operand.data is None else operand.data[list(chosen)]
        return replace(operand, type=replace(operand.type, shape=shape), data=data)

    return Sample(tuple(taken(i, operand) for i, operand in enumerate(sample.operands)), sample.attrs)


def require_same_rows(case: Case, machine: Machine) -> None:
    whole, op = results_of(case.whole, machine, case.arrays), case.whole.op
    rows = names_of(op.name)
    updated = {result for result, operand in op.must_alias if op.operands[operand].name not in rows}  # caches
    for call, arrays, chosen in case.parts:
        for index, (part, full) in enumerate(zip(results_of(call, machine, arrays), whole, strict=True)):
            if index not in updated:
                wanted = np.ascontiguousarray(full[list(chosen)])
                same = np.ascontiguousarray(part).tobytes() == wanted.tobytes()
                assert same, f"rows {chosen} alone have other bits than within\n{case.whole}\non {machine}"


def require_reference(call: Call, arrays: list[Array | None], machine: Machine) -> None:
    expected = references(call, arrays)
    assert expected is not None
    for found, wanted in zip(results_of(call, machine, arrays), expected, strict=True):
        equal = found == wanted
        assert (equal | ((found != found) & (wanted != wanted))).all(), f"{call} on {machine}"


@functools.cache
def host(unit: str) -> DeviceMachine:
    return DeviceMachine(HostDevice(threads=2, isa=unit))


of_class = {
    level: pytest.mark.parametrize(
        "row", [row for row in KERNEL_ROWS if row.exactness is level], ids=lambda row: row.identity
    )
    for level in Exactness
}
hip_of_class = {
    level: pytest.mark.parametrize(
        "row", [row for row in HIP_KERNEL_ROWS if row.exactness is level], ids=lambda row: row.identity
    )
    for level in Exactness
}


@pytest.mark.parametrize("unit", UNITS)
@of_class[Exactness.ROW_INVARIANT]
def test_rows_of_the_host_have_their_bits_in_any_batch(row: Impl, unit: str, rng: np.random.Generator) -> None:
    found = list(cases(row, rng))
    assert found, f"{row.identity} has no sample of several rows"
    for case in found[:: -(-len(found) // MOST_CALLS)]:
        require_same_rows(case, host(unit))


def plain_calls(row: Impl, rng: np.random.Generator) -> Iterator[tuple[Call, list[Array | None]]]:
    for sample in OP[row.op].samples(rng):
        call = next(calls(row, sample), None) if sample.error is None else None
        if call is not None:
            yield call, arrays_of(OP[row.op], sample, rng)


@pytest.mark.parametrize("unit", UNITS)
@of_class[Exactness.REFERENCE]
def test_rows_of_the_host_have_the_bits_of_the_reference(row: Impl, unit: str, rng: np.random.Generator) -> None:
    found = list(plain_calls(row, rng))
    assert found
    for call, arrays in found:
        require_reference(call, arrays, host(unit))


def hip_cases(row: Impl) -> list[Case]:
    """A few, the same ones each time: which of them run decides what is compiled."""
    return list(islice(cases(row, np.random.default_rng(7)), HIP_SAMPLES))


def hip_plain_calls(row: Impl) -> list[tuple[Call, list[Array | None]]]:
    return list(islice(plain_calls(row, np.random.default_rng(7)), 2 * HIP_SAMPLES))


def wave_of(row: Impl) -> int:
    return 64 if "wave64" in row.architectures else 32


@functools.cache
def emulated(wave: int) -> EmulatedMachine:
    """One module a file, with what all rows for such waves need."""
    wanted: list[Call] = []
    for row in (row for row in HIP_KERNEL_ROWS if wave_of(row) == wave):
        if row.exactness is Exactness.ROW_INVARIANT:
            found = hip_cases(row)
            wanted += [call for case in found for call in (case.whole, *(part[0] for part in case.parts))]
        elif row.exactness is Exactness.REFERENCE:
            wanted += [call for call, _ in hip_plain_calls(row)]
    return EmulatedMachine(wave, 5, compiled(modules(instances(wanted)), wave))


@hip_of_class[Exactness.ROW_INVARIANT]
def test_rows_of_gpus_have_their_bits_in_any_batch(row: Impl) -> None:
    found = hip_cases(row)
    assert found, f"{row.identity} has no sample of several rows"
    for case in found:
        require_same_rows(case, emulated(wave_of(row)))


@hip_of_class[Exactness.REFERENCE]
def test_rows_of_gpus_have_the_bits_of_the_reference(row: Impl) -> None:
    found = hip_plain_calls(row)
    assert found
    for call, arrays in found:
        require_reference(call, arrays, emulated(wave_of(row)))


def test_only_sums_over_all_rows_and_products_by_parts_promise_nothing() -> None:
    """A row without a promise has no place in a batch-invariant program: each of them is known by name."""
    host_rows = {row.identity for row in KERNEL_ROWS if row.exactness is Exactness.TOLERANCE}
    over_rows = (*SUMS_OVER_ROWS, "attention_bidirectional_backward")
    of_training = {f"{op}@host" for op in over_rows} | {"cross_entropy_backward@host_convert"}
    assert host_rows == {"reduce_sum@host", "cross_entropy@host", *of_training}
    hip_rows = {row.identity for row in HIP_ROWS if row.exactness is Exactness.TOLERANCE}
    by_parts = {f"{op}@hip_tile{wave}" for op in ("linear", "linear_split", "linear_swiglu") for wave in (32, 64)}
    vendor = {row.identity for row in HIP_ROWS if row.kind is StepKind.GEMM}
    by_parts |= {f"attention_causal_backward@hip_{way}" for way in ("tile32", "tile64", "block")}
    summed = {f"{op}@hip" for op in over_rows}
    assert hip_rows == {"reduce_sum@hip", "cross_entropy@hip", *summed, *by_parts, *vendor}
