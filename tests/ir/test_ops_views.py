"""View rules against numpy: the strides and offsets that a rule gives must show the same elements as the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.errors import LayoutError
from ostinato.ir.opdef import Attr, OpDef
from ostinato.ir.ops import OP, OPS
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.types import Array, DType, TensorType

VIEWS = [op for op in OPS if op.is_view]


def strided(flat: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    if 0 in shape:
        return np.zeros(shape, dtype=flat.dtype)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])


@pytest.mark.parametrize("op", VIEWS, ids=[op.name for op in VIEWS])
def test_a_view_shows_what_the_reference_gives(op: OpDef, rng: np.random.Generator) -> None:
    assert op.view is not None
    for sample in op.samples(rng):
        if sample.error is not None:
            continue
        operand = sample.operands[0]
        assert operand is not None
        array = materialise(operand, rng)
        (result,) = op.infer([operand.type], sample.attrs)
        view = op.view([operand.type], sample.attrs)
        seen = strided(array.reshape(-1), view.offset, result.static_shape, view.strides)
        (expected,) = op.reference([array], sample.attrs, [result])
        np.testing.assert_array_equal(seen, expected)


def test_chains_compose_through_strides(rng: np.random.Generator) -> None:
    """Random chains of transposes and slices, each rule fed the strides of the one before."""
    for _ in range(200):
        shape = tuple(int(extent) for extent in rng.integers(1, 6, rng.integers(1, 5)))
        flat = np.arange(int(np.prod(shape)))
        kind = TensorType(shape, DType.I64)
        expected, offset, strides = flat.reshape(shape), 0, kind.strides
        for _ in range(rng.integers(1, 5)):
            attrs: dict[str, Attr]
            if rng.integers(2):
                op, attrs = OP["transpose"], {"order": tuple(int(i) for i in rng.permutation(kind.rank))}
            else:
                axis = int(rng.integers(kind.rank))
                start, stop = sorted(int(i) for i in rng.integers(0, kind.static_shape[axis] + 1, 2))
                op, attrs = OP["slice"], {"axis": axis, "start": start, "stop": stop, "step": int(rng.integers(1, 4))}
            assert op.view is not None
            view = op.view([kind], attrs, strides)
            (kind,) = op.infer([kind], attrs)
            (expected,) = op.reference([expected], attrs, [kind])
            offset, strides = offset + view.offset, view.strides
        np.testing.assert_array_equal(strided(flat, offset, kind.static_shape, strides), expected)


def test_a_reshape_of_strided_memory_is_refused() -> None:
    view = OP["reshape"].view
    assert view is not None
    kind = TensorType((4, 6), DType.F32)
    assert view([kind], {"shape": (24,)}).strides == (1,)
    assert view([kind], {"shape": (24,)}, (6, 1)).strides == (1,)
    with pytest.raises(LayoutError, match="contiguous"):
        view([kind], {"shape": (24,)}, (1, 4))
    with pytest.raises(LayoutError, match="contiguous"):
        view([kind], {"shape": (2, 12)}, (12, 1))
    # the stride of an extent of one says nothing
    assert view([TensorType((1, 6), DType.F32)], {"shape": (6,)}, (99, 1)).strides == (1,)


@pytest.mark.parametrize(
    ("shape", "strides", "wanted", "expected"),
    [
        ((4, 6), (12, 1), (2, 2, 6), (24, 12, 1)),
        ((4, 6), (12, 1), (4, 3, 2), (12, 2, 1)),
        ((5, 896), (1152, 1), (5, 14, 64), (1152, 64, 1)),
        ((5, 3, 8), (64, 8, 1), (5, 24), (64, 1)),
        ((4, 6), (1, 4), (2, 2, 6), (2, 1, 4)),
        ((1, 6), (99, 2), (3, 1, 2), (4, 4, 2)),
        ((1, 1), (7, 9), (1,), (1,)),
    ],
)
def test_a_reshape_of_strided_memory_is_a_view_where_strides_describe_it(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    view = OP["reshape"].view
    assert view is not None
    assert view([TensorType(shape, DType.F32)], {"shape": wanted}, strides).strides == expected
    memory = np.arange(sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1)
    given, found = (
        np.lib.stride_tricks.as_strided(memory, extents, [8 * step for step in steps])
        for extents, steps in ((shape, strides), (wanted, expected))
    )
    np.testing.assert_array_equal(found, given.reshape(wanted))


def test_a_layout_is_part_of_a_view() -> None:
    head_major = TensorType((2, 3, 4, 8), DType.F32, tuple("BTHD"), "BHTD")
    view = OP["transpose"].view
    assert view is not None
    assert view([head_major], {"order": (0, 2, 1, 3)}).strides == (96, 24, 8, 1)
