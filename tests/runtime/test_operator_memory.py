"""What memory a caller-owned operator accepts: overlaps, layouts, read-only and empty arrays, workspaces; refused before a byte is written."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip.target import host_target
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OPS
from ostinato.ir.types import Array, DType, TensorType
from tests.runtime.operator_samples import Arguments, arguments, check_result, reference

RUNNING = [op for op in OPS if not op.is_view and not op.must_alias]
PAIRS = sorted({(row.op, *pair) for row in host_target().rows for pair in row.in_place})


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    ops.use(threads=1)


def first_samples(op: OpDef, seed: int, count: int = 6) -> list[Sample]:
    """The first valid samples: memory is handled alike in all of them."""
    return [sample for sample in op.samples(np.random.default_rng(seed)) if sample.error is None][:count]


def shaped_alike(op: OpDef, result: int, operand: int, rng: np.random.Generator) -> Iterator[Arguments]:
    """Calls of all samples whose result has the bytes of that operand."""
    for sample in op.samples(rng):
        if sample.error is not None or operand >= len(sample.operands) or sample.operands[operand] is None:
            continue
        call = arguments(op, sample, rng)
        given = call.operands[operand]
        if isinstance(given, np.ndarray) and given.size and call.outs[result].nbytes == given.nbytes:
            yield call


def index_of(op: OpDef, name: str) -> int:
    return [spec.name for spec in op.operands].index(name)


@pytest.mark.parametrize(("name", "result", "operand"), PAIRS, ids=[f"{n}-{r}-on-{o}" for n, r, o in PAIRS])
def test_an_output_may_be_an_operand_where_a_row_says_so(
    name: str, result: str, operand: str, rng: np.random.Generator
) -> None:
    """Only with in_place=True; then the result is the one of separate memory."""
    (op,) = (op for op in OPS if op.name == name)
    target, source, ran = op.results.index(result), index_of(op, operand), 0
    for call in shaped_alike(op, target, source, rng):
        if call.results[target].dtype is not call.types[source].dtype:  # type: ignore[union-attr]
            continue
        expected = reference(call)
        given = call.operands[source]
        before = given.tobytes()
        call.outs[target] = given
        with pytest.raises(ost.LayoutError, match="overlaps") as caught:
            call.run()
        assert given.tobytes() == before
        if "in_place=True" not in str(caught.value):
            continue  # another row serves these dtypes
        call.run(in_place=True)
        assert check_result(op, call.results[target], given, expected[target]) is None
        ran += 1
    assert ran


@pytest.mark.parametrize("op", RUNNING, ids=[op.name for op in RUNNING])
def test_outputs_must_not_overlap_anything_else(op: OpDef, seed: int) -> None:
    """Every output on every operand and on every other output, exactly and by half: refused, whatever in_place says, unless a row allows the exact case."""
    tried, rng = 0, np.random.default_rng(seed)
    for sample in first_samples(op, seed):
        for result in range(len(op.infer([None if o is None else o.type for o in sample.operands], sample.attrs))):
            for operand, given_operand in enumerate(sample.operands):
                if given_operand is None or not given_operand.type.elements or given_operand.type.dtype.is_block:
                    continue
                for shift in (0, 1):
                    call = arguments(op, sample, rng)
                    out, given = call.outs[result], call.operands[operand]
                    if not isinstance(given, np.ndarray) or not out.size:
                        continue
                    # one block of bytes that holds both, the output `shift` elements of the larger size after the operand
                    step = max(out.itemsize, given.itemsize)
                    block = np.zeros(given.nbytes + out.nbytes + step, np.uint8)
                    moved = block[: given.nbytes].view(given.dtype).reshape(given.shape)
                    moved[...] = given
                    placed = block[shift * step :][: out.nbytes].view(out.dtype).reshape(out.shape)
                    if not np.may_share_memory(moved, placed):
                        continue
                    call.operands[operand], call.outs[result] = moved, placed
                    before = block.tobytes()
                    pair = (op.name, op.result_name(result), op.operands[operand].name)
                    for in_place in (False, True):
                        if in_place and pair in PAIRS and shift == 0:
                            continue
                        with pytest.raises(ost.LayoutError, match="overlaps"):
                            call.run(in_place=in_place)
                        assert block.tobytes() == before
                        tried += 1
    assert tried


def test_two_outputs_must_not_overlap() -> None:
    a, gain = np.ones((2, 8), np.float32), np.ones(8, np.float32)
    both = np.zeros((3, 8), np.float32)
    with pytest.raises(ost.LayoutError, match=r"sum \[.*overlaps y"):
        ops.add_rms_norm(a, a, gain, eps=1e-6, out=(both[:2], both[1:]))
    assert not both.any()


def test_adding_a_tensor_to_itself_in_place() -> None:
    """The contract's exact self-add; a shifted one is refused, and so is an output that is only half of an operand."""
    block = np.arange(12, dtype=np.float32)
    x = block[:8]
    address = x.ctypes.data
    assert ops.add(x, x, out=x, in_place=True) is x
    assert x.ctypes.data == address
    assert x.tolist() == [2.0 * i for i in range(8)]
    kept = block.copy()
    for shifted in (block[1:9], block[4:12]):
        with pytest.raises(ost.LayoutError, match="use separate memory"):
            ops.add(x, x, out=shifted, in_place=True)
        with pytest.raises(ost.LayoutError, match="use separate memory"):
            ops.add(x, shifted, out=x, in_place=True)
    assert (block == kept).all()


def test_a_cache_is_updated_where_it_lies() -> None:
    """kv_store writes its operands: no output, both caches writable and apart from each other and from what is stored."""
    k, v = np.full((1, 2, 4), 1, np.float32), np.full((1, 2, 4), 2, np.float32)
    zero, table = np.zeros(1, np.int32), np.array([[0]], np.int32)
    k_cache, v_cache = np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 2, 3, 4), np.float32)
    position = np.ones(1, np.int32)
    returned = ops.kv_store(k, v, zero, position, table, k_cache, v_cache)
    assert returned[0] is k_cache
    assert returned[1] is v_cache
    assert (k_cache[0, :, 1] == 1).all()
    assert k_cache.sum() == 8
    assert v_cache.sum() == 16
    with pytest.raises(ost.InputError, match="leave out= away"):
        ops.kv_store(k, v, zero, position, table, k_cache, v_cache, out=(k_cache, v_cache))
    for in_place in (False, True):
        with pytest.raises(ost.LayoutError, match=r"k_cache .* overlaps v_cache"):
            ops.kv_store(k, v, zero, position, table, k_cache, k_cache, in_place=in_place)
    with pytest.raises(ost.LayoutError, match="overlaps"):
        ops.kv_store(k_cache.reshape(-1)[:8].reshape(k.shape), v, zero, position, table, k_cache, v_cache)
    frozen = k_cache.copy()
    frozen.flags.writeable = False
    with pytest.raises(ost.LayoutError, match=r"kv_store\.k_cache.*read-only"):
        ops.kv_store(k, v, zero, position, table, frozen, v_cache)
    assert (frozen == k_cache).all()


RESHAPERS: dict[str, Callable[[Array], Array]] = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "every second column": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "a part of a larger array": lambda a: np.pad(a, [(0, 1)] * a.ndim)[tuple(slice(0, n) for n in a.shape)],
}
BACKWARDS: dict[str, Callable[[Array], Array]] = {
    "reversed rows": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "reversed columns": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
}


@pytest.mark.parametrize("op", [op for op in OPS if not op.is_view], ids=lambda op: op.name)
def test_strided_operands_equal_their_contiguous_copies_or_are_refused(op: OpDef, seed: int) -> None:
    """Rows of other systems silently read such arrays transposed. Caches that are updated count too."""
    tried, updated = 0, dict(op.must_alias)
    for sample in first_samples(op, seed):
        expected = reference(arguments(op, sample, np.random.default_rng(seed)))
        for index, how in itertools.product(range(len(sample.operands)), RESHAPERS):
            call = arguments(op, sample, np.random.default_rng(seed))
            given = call.operands[index]
            if not isinstance(given, np.ndarray) or given.ndim < 1:
                continue
            strided = RESHAPERS[how](given)
            assert strided.tobytes() == given.tobytes(), "the same values in another order of memory"
            call.operands[index] = strided
            tried += 1
            try:
                call.run()
            except ost.LayoutError:
                assert not strided.flags.c_contiguous
                continue
            for place, (tensor, wanted) in enumerate(zip(call.results, expected, strict=True)):
                actual = call.operands[updated[place]] if place in updated else call.outs[place]
                assert check_result(op, tensor, actual, wanted) is None, how
    assert tried


@pytest.mark.parametrize("how", BACKWARDS)
def test_negative_strides_are_refused_with_the_copy_to_make(how: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros_like(x)
    for call in (
        lambda: ops.silu(BACKWARDS[how](x), out=out),
        lambda: ops.silu(x, out=BACKWARDS[how](out)),
        lambda: ost.TensorView.of(BACKWARDS[how](x)),
    ):
        with pytest.raises(ost.LayoutError, match=r"run backwards[\s\S]*np\.ascontiguousarray"):
            call()
    assert not out.any()


def test_attention_reads_strided_operands_in_place() -> None:
    """A row that takes strides needs no copy: head-major memory and slices of a fused projection."""
    rng = np.random.default_rng(3)
    fused = rng.standard_normal((2, 5, 3, 4, 8)).astype(np.float32)
    q, k, v = (fused[:, :, part] for part in range(3))
    dense = [np.ascontiguousarray(part) for part in (q, k, v)]
    actual, expected = np.empty_like(dense[0]), np.empty_like(dense[0])
    ops.attention_causal(q, k, v, scale=0.5, out=actual)
    ops.attention_causal(*dense, scale=0.5, out=expected)
    assert actual.tobytes() == expected.tobytes()


def test_outputs_that_do_not_fit_are_refused() -> None:
    x, gain = np.ones((2, 8), np.float32), np.ones(8, np.float32)

    def norm(out: Any) -> None:
        ops.rms_norm(x, gain, eps=1e-6, out=out)

    with pytest.raises(ost.InputError, match="expected 1 outputs, y f32"):
        norm(None)
    with pytest.raises(ost.InputError, match="found 2"):
        norm((np.empty_like(x), np.empty_like(x)))
    with pytest.raises(ost.InputError, match="out is None"):
        norm((None,))
    with pytest.raises(ost.DTypeError, match="found list"):
        norm([np.empty_like(x)])
    with pytest.raises(ost.DTypeError, match=r"rms_norm\.y: expected an output of f32, found bf16[\s\S]*dtype="):
        norm(np.empty(x.shape, ml_dtypes.bfloat16))
    with pytest.raises(ost.ShapeError, match=r"rms_norm\.y: expected an output of shape \[2, 8\]"):
        norm(np.empty((8, 2), np.float32))
    with pytest.raises(ost.ShapeError):
        norm(np.empty(16, np.float32))
    with pytest.raises(ost.LayoutError, match="expected a contiguous output"):
        norm(np.empty((8, 2), np.float32).T)
    frozen = np.zeros_like(x)
    frozen.flags.writeable = False
    with pytest.raises(ost.LayoutError, match="read-only"):
        norm(frozen)
    with pytest.raises(ost.LayoutError, match="read-only"):
        norm(np.frombuffer(bytes(x.nbytes), np.float32).reshape(x.shape))


def test_workspaces_are_the_callers() -> None:
    logits, target = np.zeros((3, 5), np.float32), np.zeros(3, np.int32)
    y = np.full((), 7, np.float32)
    needed = ops.workspace_bytes("cross_entropy", logits, target)
    assert needed == 24
    types = (TensorType((3, 5), DType.F32), TensorType((3,), DType.I32))
    assert ops.workspace_bytes("cross_entropy", *types) == needed
    with pytest.raises(ost.CapacityError, match=r"needs 24 bytes of workspace, none[\s\S]*np\.empty\(24"):
        ops.cross_entropy(logits, target, out=y)
    with pytest.raises(ost.CapacityError, match=r"cross_entropy\.workspace: 24 bytes are needed, 23 are given"):
        ops.cross_entropy(logits, target, out=y, workspace=np.empty(23, np.uint8))
    with pytest.raises(ost.LayoutError, match="contiguous writable"):
        ops.cross_entropy(logits, target, out=y, workspace=bytes(64))
    with pytest.raises(ost.LayoutError, match="contiguous writable"):
        ops.cross_entropy(logits, target, out=y, workspace=np.empty((64, 2), np.uint8)[:, 0])
    with pytest.raises(ost.LayoutError, match="not aligned to 16"):
        ops.cross_entropy(logits, target, out=y, workspace=np.empty(64, np.uint8)[8:])
    with pytest.raises(ost.LayoutError, match=r"#workspace .* overlaps logits"):
        ops.cross_entropy(logits, target, out=y, workspace=logits)
    assert y == 7
    for workspace in (np.empty(24, np.uint8), np.empty(3, np.int64), bytearray(64)):
        ops.cross_entropy(logits, target, out=y, workspace=workspace)
        assert y == pytest.approx(np.log(5))
        y[...] = 7


def test_empty_tensors_need_no_launch_and_no_address() -> None:
    before = ops.launches()
    out = np.empty((0, 4), np.float32)
    assert ops.silu(np.empty((0, 4), np.float32), out=out) is out
    nothing = ost.TensorView(0, 0, (0, 4), None, "f32")
    ops.silu(nothing, out=nothing)
    assert ops.launches() == before
    y = np.full((2, 3), 5, np.float32)  # sums of no products
    ops.matmul(ost.TensorView(0, 0, (2, 0), None, "f32"), np.empty((0, 3), np.float32), out=y)
    assert (y == 0).all()


def test_scalars_are_tensors_of_one_element() -> None:
    x, y = np.float32(3).reshape(()), np.empty((), np.float32)
    ops.scale(x, factor=2.0, out=y)
    assert y == 6
    with pytest.raises(ost.DTypeError, match="found float"):
        ops.scale(3.0, factor=2.0, out=y)


def test_threads_may_call_at_the_same_time() -> None:
    """Same functions, different shapes, one device: every thread gets its own results."""
    failures: list[str] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for turn in range(60):
            x = rng.standard_normal((1 + (number + turn) % 5, 16 + number)).astype(np.float32)
            gain, y = np.ones(x.shape[1], np.float32), np.empty_like(x)
            ops.rms_norm(x, gain, eps=1e-6, out=y)
            expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
            if not np.allclose(y, expected, rtol=2e-4, atol=2e-4):
                failures.append(f"thread {number}, turn {turn}")

    before = ops.launches()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert ops.launches() - before == 6 * 60
