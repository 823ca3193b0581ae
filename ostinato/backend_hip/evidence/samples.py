"""What rows are run on: the samples of the operator table, shapes past those for which a row takes another path, and random shapes like them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ostinato.ir.errors import OstinatoError, UserCodeError
from ostinato.ir.opdef import OpDef, Sample, SampleOperand
from ostinato.ir.ops.samplers import given, indices, materialise, normal, reals, valid
from ostinato.ir.ops.select import settings
from ostinato.ir.types import Array, DType

__all__ = ["LARGE", "arrays_of", "in_other_shape", "random_samples", "well_typed"]


def _long_rows() -> Iterator[Sample]:
    """Rows of several slices: few tokens and most of them kept, and ties at every edge."""
    rng = np.random.default_rng(3)
    width = 20003
    smooth = reals(rng.standard_normal((6, width)) * 2)
    ties = reals(rng.integers(0, 4, (6, width)).astype(np.float32))
    yield valid(smooth, *settings(6, rng, (0.0, 0.7, 1.0), (0, 0, 50, 9000), (1.0, 0.9), (0.0, 0.0, 0.001)))
    yield valid(smooth, *settings(6, rng, (1.0, 30.0, 1e30), (0, 3000, 15000), (0.99999, 0.5), (0.0, 0.02)))
    yield valid(ties, *settings(6, rng, (1.0, 0.5), (0, 12000, 1500), (0.3, 0.8, 1.0)))


def _long_lists() -> dict[str, tuple[Sample, ...]]:
    """Rows that several blocks share, with tokens in all of their parts, some of them more than once."""
    rng = np.random.default_rng(4)
    tokens = rng.choice(np.array([0, 8191, 8192, 9000, 16383, 17001]), (2, 40))
    numbers = reals(rng.standard_normal((2, 40)).astype(np.float32))
    row = [reals([value, value]) for value in (1.2, 0.5, 0.25)]
    return {
        "penalize": (valid(normal((2, 17002)), indices(tokens), indices([3, 0]), indices([40, 17]), *row),),
        "add_at_tokens": (valid(normal((2, 17002)), indices(tokens), numbers, indices([40, 9])),),
    }


def _as_trained(shape: tuple[int, int], dtype: DType) -> SampleOperand:
    """A weight whose products with normal numbers are about 1, as in a model: a gate near zero times a value of thousands has no digits left to compare."""
    numbers = np.random.default_rng(5).standard_normal(shape) / np.sqrt(shape[1])
    return given(numbers.astype(dtype.numpy))


def _whole_runs() -> Iterator[Sample]:
    """Products whose rows are whole runs of 16 bytes, as libraries of vendors want them, with every epilogue."""
    for dtype in (DType.F32, DType.BF16, DType.F16):
        operands = normal((24, 64), dtype), normal((40, 64), dtype)
        for bias in (None, normal((40,))):
            yield valid(*operands, bias, dtype="f32")
            yield valid(*operands, bias, normal((24, 40)), dtype="f32")
        yield valid(*operands, None, normal((24, 40), dtype))


def _two_parts() -> Iterator[Sample]:
    """A few rows of x, with its norm inside and without, by a weight of two parts."""
    for weight in (DType.F32, DType.BF16, DType.F16):
        normed = normal((3, 64)), normal((96, 64), weight), None, normal((64,))
        for result in ("f32", weight.value):
            yield valid(*normed, sizes=(64, 32), eps=1e-6, dtype=result)
            yield valid(normal((3, 64), weight), normal((96, 64), weight), sizes=(64, 32), dtype=result)


def _attention_gradients() -> Iterator[Sample]:
    """Several tiles of queries and of keys, in both widths of tiles, with heads that share keys. What was saved need not belong to the operands."""

    def call(
        batch: int, time: int, heads: tuple[int, int, int], kind: DType, saved: DType, **attrs: str | float
    ) -> Sample:
        query, shared, width = heads
        of_query, of_key = (batch, time, query, width), (batch, time, shared, width)
        log_sum = reals(np.full((batch, query, time), 5.0, np.float32), "BHT")
        keys = normal(of_key, kind, "BTGD")
        operands = normal(of_query, axes="BTHD"), normal(of_query, kind, "BTHD"), keys, keys
        return valid(*operands, normal(of_query, saved, "BTHD"), log_sum, scale=width**-0.5, **attrs)

    for dtype in (DType.BF16, DType.F32):
        yield call(1, 70, (4, 2, 64), dtype, dtype, soft_cap=3.0)
        yield call(1, 45, (2, 1, 128), dtype, DType.F32, window=21)
        yield call(2, 35, (1, 1, 128), dtype, dtype, dtype="bf16")


LARGE: Mapping[str, tuple[Sample, ...]] = {
    "linear": (
        valid(normal((2, 64)), normal((16391, 64), DType.BF16), normal((16391,)), dtype="f32"),
        valid(normal((1, 8192), DType.BF16), normal((5, 8192), DType.BF16)),
        valid(normal((7, 4104)), normal((3, 4104))),
        valid(normal((75, 320), DType.BF16), normal((37, 320), DType.BF16), normal((37,)), dtype="f32"),
        valid(normal((20, 96), DType.F16), normal((16, 96), DType.F16)),
        valid(normal((3, 2080), DType.F16), normal((19, 2080), DType.F16), dtype="f32"),
        valid(normal((50, 544), DType.BF16), normal((17, 544), DType.BF16)),
        valid(normal((8, 1536)), normal((31, 1536), DType.BF16), None, None, normal((1536,)), eps=1e-6),
        valid(normal((2, 16640), DType.BF16), normal((3, 16640), DType.BF16), None, normal((2, 3)), dtype="f32"),
        *_whole_runs(),
    ),
    "linear_split": (
        *_two_parts(),
        valid(normal((70, 160), DType.BF16), normal((80, 160), DType.BF16), normal((80,)), sizes=(48, 32)),
    ),
    "linear_swiglu": (
        valid(normal((3, 8192), DType.BF16), _as_trained((6, 8192), DType.BF16), dtype="f32"),
        valid(normal((50, 160), DType.F16), normal((66, 160), DType.F16), dtype="f32"),
        valid(normal((70, 160), DType.BF16), _as_trained((66, 160), DType.BF16)),
    ),
    "linear_group": (valid(normal((70, 96), DType.BF16), *[normal((rows, 96), DType.BF16) for rows in (48, 33)]),),
    "rms_norm": (valid(normal((2, 5000), DType.BF16), normal((5000,)), eps=1e-6),),
    "add_rms_norm": (valid(normal((2, 1300)), normal((2, 1300)), normal((1300,)), eps=1e-6),),
    "rms_norm_backward": (
        valid(normal((2, 1300)), normal((2, 1300)), normal((1300,)), normal((2, 1300)), eps=1e-6, dtype="bf16"),
    ),
    "attention_causal_backward": tuple(_attention_gradients()),
    "argmax": (valid(normal((3, 40961))),),
    "token_cross_entropy": (valid(normal((2, 20003)), indices([20002, 7])),),
    **_long_lists(),
    "sample": tuple(_long_rows()),
    "reduce_sum": (valid(normal((70, 1001))),),
}
"""Shapes past those of the operator table, for which a row takes another path."""


def random_samples(op: OpDef, rng: np.random.Generator, count: int) -> Iterator[Sample]:
    """Samples of the table in other shapes, at most so many: equal extents stay equal, those of given values and of blocks stay as they are."""
    bases = [sample for sample in op.samples(rng) if sample.error is None]
    made = 0
    for index in rng.permutation(len(bases)).tolist():
        sample = in_other_shape(bases[index], rng)
        if sample is not None and well_typed(op, sample):
            yield sample
            made += 1
        if made == count:
            return


def in_other_shape(sample: Sample, rng: np.random.Generator) -> Sample | None:
    """The sample with random extents where its values leave them free, None where they leave none."""
    free: set[int] = set()
    fixed = {0, 1}
    for operand in (operand for operand in sample.operands if operand is not None):
        extents = operand.type.static_shape
        if operand.data is not None:
            fixed.update(extents)
        elif operand.type.dtype.is_block:
            fixed.add(extents[-1])
            free.update(extents[:-1])
        else:
            free.update(extents)
    others = {extent: int(rng.integers(1, 2 * extent + 3)) for extent in sorted(free - fixed)}
    if not others:
        return None

    def reshaped(operand: SampleOperand | None) -> SampleOperand | None:
        if operand is None or operand.data is not None:
            return operand
        shape = tuple(others.get(extent, extent) for extent in operand.type.static_shape)
        return replace(operand, type=replace(operand.type, shape=shape))

    return Sample(tuple(map(reshaped, sample.operands)), sample.attrs)


def well_typed(op: OpDef, sample: Sample) -> bool:
    """Whether the operator's type rule takes the sample."""
    try:
        op.infer([None if operand is None else operand.type for operand in sample.operands], sample.attrs)
    except UserCodeError:
        raise
    except OstinatoError:
        return False
    return True


def arrays_of(op: OpDef, sample: Sample, rng: np.random.Generator) -> list[Array | None]:
    """Values of every operand of the operator, None where it is absent."""
    arrays = [None if operand is None else materialise(operand, rng) for operand in sample.operands]
    return arrays + [None] * (len(op.operands) - len(arrays))
