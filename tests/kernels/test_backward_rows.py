"""Rows of the host for training on random shapes, past what samples reach: several blocks of keys and queries, rows of logits of several runs, tables larger
than a run; on every instruction set, and the same bits for any number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.calls import calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, check, references
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls import ROWS
from ostinato.ir.opdef import Attr, Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.attention_backward import ATTENTION_CAUSAL_SAVED
from ostinato.ir.ops.samplers import given, indices, normal, reals, valid
from ostinato.ir.types import DType, TensorType

UNITS = list(_native.isa_available())
THREADS = (1, 2, 5)


@functools.cache
def machines(unit: str) -> tuple[DeviceMachine, ...]:
    return tuple(DeviceMachine(HostDevice(threads=threads, isa=unit)) for threads in THREADS)


def attention(rng: np.random.Generator) -> Iterator[Sample]:
    """Few groups of heads, whose blocks several workers share, and many; heads of which a block has 64, 32 and 16 tokens."""
    for groups, repeats, width in ((1, 3, 48), (5, 1, 40), (1, 2, 160), (2, 1, 300)):
        time, window = (int(rng.integers(65, 140)), int(rng.integers(1, 200))) if width < 100 else (50, 0)
        shapes = [(2, time, count, width) for count in (groups * repeats, groups, groups)]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        attrs: dict[str, Attr] = {"scale": width**-0.5, "window": window, "soft_cap": 0.0}
        types = [TensorType(shape, DType.F32) for shape in shapes]
        y, log_sum = ATTENTION_CAUSAL_SAVED.reference(arrays, attrs, ATTENTION_CAUSAL_SAVED.infer(types, attrs))
        yield valid(normal(shapes[0]), *map(reals, arrays), reals(y), reals(log_sum), **attrs)


def encoder(rng: np.random.Generator) -> Iterator[Sample]:
    """Sequences over several blocks that begin and end anywhere, in a batch that has more tokens than they have."""
    length = rng.integers(1, 120, 3)
    start = np.cumsum(length) - length + 2
    row = np.full(int(length.sum()) + 5, -1)
    for number, (first, count) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
        row[first : first + count] = number
    q, k, v, gradient = (normal((len(row), heads, 24)) for heads in (4, 2, 2, 4))
    yield valid(gradient, q, k, v, indices(row), indices(start), indices(length), scale=0.2)


def logits(rng: np.random.Generator) -> Iterator[Sample]:
    """Runs whose largest logit is in each of them, and is far above those before."""
    values = rng.standard_normal((5, 4099)).astype(np.float32) * 3
    values[np.arange(5), rng.integers(0, 4099, 5)] += rng.uniform(0, 60, 5).astype(np.float32)
    target = rng.integers(0, 4099, 5)
    target[2] = -100
    yield valid(reals(values), indices(target))


def logits_backward(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in logits(rng):
        values, target = sample.operands
        assert values is not None
        assert values.data is not None
        log_sum = np.log(np.sum(np.exp(values.data.astype(np.float64)), axis=-1))
        for dtype in ("", "bf16"):
            yield valid(normal((5,)), values, target, reals(log_sum), dtype=dtype)


def table(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((90, 129)), indices(rng.integers(-1, 900, 90)), rows=900)


def columns(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((int(rng.integers(300, 600)), int(rng.integers(1, 200)))))


def squares(rng: np.random.Generator) -> Iterator[Sample]:
    yield valid(normal((int(rng.integers(9000, 40000)),)))


def adamw(rng: np.random.Generator) -> Iterator[Sample]:
    shape = (int(rng.integers(1000, 9000)),)
    factors = reals([1e-2, 0.9, 0.99, 1e-8, 0.1, 2.0, 5.0, 0.7, 1.0, 1.0])
    second = given(rng.random(shape).astype(np.float32))
    yield valid(normal(shape), normal(shape), normal(shape), second, factors, normal(shape, DType.BF16), decay=True)


def dropout(rng: np.random.Generator) -> Iterator[Sample]:
    seed = given(np.array([int(rng.integers(0, 2**62))], dtype=np.int64))
    yield valid(normal((3, 2777)), seed, indices([int(rng.integers(0, 2**31))]), rate=float(rng.random()), place=3)


SHAPES: Mapping[str, Callable[[np.random.Generator], Iterator[Sample]]] = {
    "attention_causal_backward": attention,
    "attention_bidirectional_backward": encoder,
    "token_cross_entropy": logits,
    "token_cross_entropy_backward": logits_backward,
    "embedding_backward": table,
    "bias_gradient": columns,
    "square_sum": squares,
    "adamw": adamw,
    "dropout": dropout,
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("op", SHAPES)
def test_a_row_of_training_on_random_shapes(op: str, unit: str, rng: np.random.Generator) -> None:
    row = next(row for row in ROWS if row.op == op and row.name.startswith("host"))
    converts = next((other for other in ROWS if other.op == op and other.name == "host_convert"), row)
    for sample in SHAPES[op](rng):
        chosen = row if not sample.attrs.get("dtype") else converts
        call = next(calls(chosen, sample))
        arrays = arrays_of(OP[op], sample, rng)
        check(call, machines(unit), arrays, references(call, arrays))


def test_elements_are_dropped_as_often_as_the_rate_says() -> None:
    """A mask in which one element in five is gone, wherever one looks."""
    row = next(row for row in ROWS if row.identity == "dropout@host")
    count = 1 << 16
    sample = valid(reals(np.ones(count)), given(np.array([11], dtype=np.int64)), indices([5]), rate=0.2, place=1)
    call = next(calls(row, sample))
    arrays = arrays_of(OP["dropout"], sample, np.random.default_rng(1))
    expected = references(call, arrays)
    check(call, machines(UNITS[-1]), arrays, expected)
    assert expected is not None
    kept = (expected[0] != 0).reshape(16, -1).mean(axis=1)
    assert (np.abs(kept - 0.8) < 5 * np.sqrt(0.16 / (count / 16))).all()
