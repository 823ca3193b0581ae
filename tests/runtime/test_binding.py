"""Bound buffers and the caller's arena."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.binding import BoundExecutable


@pytest.fixture
def inputs(tiny: ost.TextExecutable) -> tuple[str, dict[str, Array]]:
    plan = tiny.bucket(4, 1)
    packed, _ = pack(plan, [Piece(0, np.array([5, 6, 7, 8], np.int32), 0, True)], tiny.block_table())
    return plan.name, packed


def aligned(nbytes: int, alignment: int = 256) -> Array:
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def test_bound_run_equals_copied_run(tiny: ost.TextExecutable, inputs: tuple[str, dict[str, Array]]) -> None:
    name, packed = inputs
    expected = tiny.run(name, packed)["logits"]
    out = np.empty_like(expected)
    bound = tiny.bind(entry=name, inputs=packed, outputs={"logits": out}, arena=aligned(tiny.memory.arena))
    bound.run()
    assert out.tobytes() == expected.tobytes()
    packed["input_ids"][:] = [9, 10, 11, 12]  # bound memory is read anew
    bound.run()
    assert out.tobytes() == tiny.run(name, packed)["logits"].tobytes() != expected.tobytes()


def test_unbound_inputs_are_written_through_views(
    tiny: ost.TextExecutable, inputs: tuple[str, dict[str, Array]]
) -> None:
    name, packed = inputs
    expected = tiny.run(name, packed)["logits"]
    bound = tiny.bind(entry=name)
    for key, view in bound.inputs.items():
        view[...] = packed[key]
    bound.run()
    assert np.array(bound.outputs["logits"]).tobytes() == expected.tobytes()


class Moving:
    """A buffer whose memory can be exchanged, like a tensor after `set_`."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_a_moved_buffer_is_refused_by_name_before_anything_runs(
    tiny: ost.TextExecutable, inputs: tuple[str, dict[str, Array]]
) -> None:
    name, packed = inputs
    moving = Moving(packed["input_ids"].copy())
    out = np.zeros((1, 96), np.float32)
    bound = tiny.bind(entry=name, inputs={**packed, "input_ids": moving}, outputs={"logits": out})
    moving.array = moving.array.copy()
    with pytest.raises(ost.AddressChanged, match="input_ids: bound at 0x"):
        bound.run()
    assert not out.any()


def test_bad_bindings_are_refused(tiny: ost.TextExecutable, inputs: tuple[str, dict[str, Array]]) -> None:
    name, packed = inputs
    both = np.zeros(8, np.int32)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"inputs": {"nothing": both}}, ost.InputError, "no input 'nothing'"),
        ({"inputs": {"input_ids": np.zeros(3, np.int32)}}, ost.ShapeError, "expected shape"),
        ({"inputs": {"input_ids": np.zeros(4, np.int64)}}, ost.DTypeError, "expected i32, found i64"),
        ({"inputs": {"input_ids": np.zeros(8, np.int32)[::2]}}, ost.LayoutError, "not contiguous"),
        ({"inputs": {"input_ids": both[:4], "position": both[2:6]}}, ost.LayoutError, "overlaps"),
        ({"arena": aligned(16)}, ost.CapacityError, "the plan needs"),
        ({"arena": aligned(tiny.memory.arena + 8)[8:]}, ost.LayoutError, "not aligned to 256"),
        ({"inputs": {"input_ids": [1, 2, 3, 4]}}, ost.DTypeError, "expected an array"),
        (
            {"inputs": {"input_ids": ost.TensorView(64, 16, (4,), None, "i32", "hip:0")}},
            ost.ConfigError,
            "input_ids: the buffer is on hip:0, the executable runs on cpu",
        ),
        ({"arena": ost.TensorView(0, 0, (0,), None, "u8", "hip:0")}, ost.ConfigError, "arena: the buffer is on hip:0"),
    ]
    for options, error, text in cases:
        with pytest.raises(error, match=text):
            tiny.bind(entry=name, **options)
    assert np.isfinite(tiny.run(name, packed)["logits"]).all()


def test_capture_says_that_it_needs_a_gpu(tiny: ost.TextExecutable) -> None:
    bound = tiny.bind(entry=next(iter(tiny.entries)))
    assert isinstance(bound, BoundExecutable)
    with pytest.raises(ost.BackendError, match="cannot be captured"):
        bound.capture()
