"""Every operator of the table as a caller-owned call: equal to its reference on all its samples, refusing what it must, one launch each."""

from __future__ import annotations

import inspect
import tracemalloc
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OPS
from ostinato.runtime.operators import OPERATOR_OPTIONS
from tests.runtime.operator_samples import Recording, arguments, check_result, has_names, reference

LISTED = 5
RUNNING = [op for op in OPS if not op.is_view]
all_operators = pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
running_operators = pytest.mark.parametrize("op", RUNNING, ids=[op.name for op in RUNNING])


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    ops.use(threads=2)


@running_operators
def test_an_operator_equals_its_reference(op: OpDef, rng: np.random.Generator) -> None:
    """All valid samples: results within the tolerance, nothing else written, in memory that is aligned to its elements and no further."""
    failures, ran = [], 0
    for number, sample in enumerate(sample for sample in op.samples(rng) if sample.error is None):
        call = arguments(op, sample, rng)
        expected = reference(call)
        before = [None if array is None else array.tobytes() for array in call.stored]
        returned = call.run()
        ran += 1
        updated = [operand for _, operand in op.aliased(call.operands)]
        results = call.made
        expected_return = call.out if call.out is not None else tuple(call.operands[operand] for operand in updated)
        assert returned is expected_return or all(a is b for a, b in zip(returned, expected_return, strict=True))
        for tensor, actual, wanted in zip(call.results, results, expected, strict=True):
            assert actual is not None
            if problem := check_result(op, tensor, actual, wanted):
                failures.append(f"sample {number}, {sample.attrs} -> {tensor}: {problem}")
        for index, (array, bytes_before) in enumerate(zip(call.stored, before, strict=True)):
            if index not in updated and array is not None and array.tobytes() != bytes_before:
                failures.append(f"sample {number}: operand {index} changed")
        if not all(memory.intact() for memory in call.memory):
            failures.append(f"sample {number}: bytes around the arrays changed")
    assert ran
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:LISTED])


@pytest.mark.parametrize("op", [op for op in OPS if op.is_view], ids=lambda op: op.name)
def test_a_view_lies_in_the_bytes_of_its_operand(op: OpDef, rng: np.random.Generator) -> None:
    for sample in op.samples(rng):
        if sample.error is not None:
            continue
        call = arguments(op, sample, rng, outputs=False)
        call.results = ops.result_types(op.name, *call.operands, **call.attrs)
        view = getattr(ops, op.name)(*call.operands, **call.attrs)
        assert isinstance(view, ost.TensorView)
        (expected,) = reference(call)
        assert check_result(op, call.results[0], view.numpy(), expected) is None
        assert not view.elements or np.shares_memory(view.numpy(), call.operands[0])
        with pytest.raises(ost.InputError, match="makes a view"):
            getattr(ops, op.name)(*call.operands, **call.attrs, out=np.empty(0, np.float32))


def refused_by_types(op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
    """Calls an operator whose results have no type; fails where that changes an operand."""
    call = arguments(op, sample, rng, outputs=False)
    before = [memory.bytes.tobytes() for memory in call.memory]
    out = {} if op.is_view or op.only_updates else {"out": np.empty(1, np.float32)}
    try:
        getattr(ops, op.name)(*call.operands, **call.attrs, **out)
    finally:
        assert [memory.bytes.tobytes() for memory in call.memory] == before


@all_operators
def test_an_operator_refuses_its_invalid_samples(op: OpDef, rng: np.random.Generator) -> None:
    """With the family of the sample. Types are refused before anything is written; indices out of range are met by the kernel, within bounds."""
    refused = 0
    for sample in op.samples(rng):
        if sample.error is None or (sample.error is ost.LayoutError and has_names(sample)):
            continue
        if any(spec.name in sample.attrs for spec in op.operands):
            continue  # by name it is an operand, and no unknown attribute
        refused += 1
        try:
            call = arguments(op, sample, rng)
        except sample.error:
            pass  # the query of the results, or the view of the bytes, refuses what the call would
        else:
            with pytest.raises(sample.error):
                call.run()
            assert all(memory.intact() for memory in call.memory)
            continue
        with pytest.raises(sample.error):
            refused_by_types(op, sample, rng)
    assert refused, "no sample is refused"


@running_operators
def test_forcing_a_level_or_a_row_gives_the_same_result(op: OpDef, rng: np.random.Generator) -> None:
    sample = next(
        s for s in op.samples(rng) if s.error is None and all(o is None or o.type.elements for o in s.operands)
    )
    rows = host_target().ranked(op.name)
    seed = int(rng.integers(2**31))
    results = []
    for level in (None, rows[0].name, rows[0].level, rows[0].level.name.lower()):
        call = arguments(op, sample, np.random.default_rng(seed))
        call.run(level=level)
        results.append(
            [np.asarray(a).tobytes() for a in (call.stored if op.only_updates else call.made) if a is not None]
        )
    assert all(result == results[0] for result in results)
    with pytest.raises(ost.ConfigError, match=f"rows of {op.name}: .*{rows[0].name}"):
        arguments(op, sample, rng).run(level="warp")


@running_operators
def test_one_call_is_one_launch_on_the_callers_own_memory(op: OpDef, rng: np.random.Generator) -> None:
    """No copy, conversion or fill hides in a call: one kernel runs, and every byte that it is handed is the caller's. An empty result needs no launch."""
    device: Any = Recording(HostDevice(threads=1))
    ops.use(device)
    for sample in op.samples(rng):
        if sample.error is not None:
            continue
        call = arguments(op, sample, rng)
        before, launched = ops.launches(), len(device.launched)
        call.run()
        launches = int(any(tensor.elements for tensor in call.results))
        assert ops.launches() - before == launches
        assert len(device.launched) - launched == launches
        if launches:
            ranges = [(m.bytes.ctypes.data, m.bytes.ctypes.data + m.bytes.nbytes) for m in call.memory]
            for address, size in device.launched[-1][1]:
                assert not size or any(start <= address and address + size <= end for start, end in ranges)


def test_a_call_on_large_arrays_makes_no_array() -> None:
    """Counted by tracemalloc, which sees numpy's memory: what a call makes does not depend on the size of its operands."""
    a, b = np.ones((2, 1 << 20), np.float32)
    out = np.empty_like(a)
    ops.add(a, b, out=out)
    tracemalloc.start()
    try:
        ops.add(a, b, out=out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 10


def test_the_module_shows_every_operator() -> None:
    assert {op.name for op in OPS} <= set(dir(ops))
    assert {op.name for op in OPS}.isdisjoint(ops.__all__), "an operator hides a function of the module"
    with pytest.raises(AttributeError, match="no operator 'warp'"):
        _ = ops.warp
    with pytest.raises(AttributeError, match="no operator 'rmsnorm'; close names: rms_norm"):
        _ = ops.rmsnorm


@all_operators
def test_help_says_what_a_call_takes(op: OpDef) -> None:
    function = getattr(ops, op.name)
    assert function is getattr(ops, op.name)
    assert function.__name__ == op.name
    text = function.__doc__
    assert text.startswith(op.summary)
    for spec in op.operands:
        assert f"  {spec.name}: " in text
    parameters = inspect.signature(function).parameters
    assert [*parameters][: len(op.operands)] == [spec.name for spec in op.operands]
    assert {attr.name for attr in op.attrs} <= parameters.keys()
    assert ("out" in parameters) == (not op.is_view and not op.only_updates)
    taken = {spec.name for spec in op.operands} | {attr.name for attr in op.attrs}
    assert taken.isdisjoint(OPERATOR_OPTIONS), "an operand or attribute is hidden by an option of every call"
    assert len(taken) == len(op.operands) + len(op.attrs)
