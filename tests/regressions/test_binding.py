"""Memory that must not be bound: read-only, unaligned, of Python objects, or the executable's own."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array


@pytest.fixture(scope="module")
def forward(model: ost.Model) -> ost.Executable:
    return ost.trace(model).lower(dims={"B": 1, "T": 4}).plan().load()


def arena_bytes(forward: ost.Executable) -> int:
    return next(iter(forward.entries.values())).stats.arena_bytes


def test_a_read_only_arena_is_refused(forward: ost.Executable, tmp_path: Path) -> None:
    """Writing to a file that is mapped for reading would kill the process."""
    file = tmp_path / "arena"
    file.write_bytes(bytes(arena_bytes(forward)))
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        arena = np.frombuffer(mapped, np.uint8)
        with pytest.raises(ost.LayoutError, match="the arena needs writable memory"):
            forward.bind(arena=arena)
        del arena


def test_an_arena_of_python_objects_is_refused(forward: ost.Executable) -> None:
    with pytest.raises(ost.DTypeError, match="no counterpart"):
        forward.bind(arena=np.empty(arena_bytes(forward), object))


def test_the_executables_own_memory_is_refused(forward: ost.Executable) -> None:
    weights: Array = forward.regions.shared.weights.window().view(np.uint8, (forward.memory.weights,))
    assert weights.size >= arena_bytes(forward)
    with pytest.raises(ost.LayoutError, match="overlaps the executable's weights"):
        forward.bind(arena=weights)


def test_unaligned_elements_are_refused(forward: ost.Executable) -> None:
    ids = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.int32).reshape(1, 4)
    with pytest.raises(ost.LayoutError, match="are not aligned"):
        forward.bind(inputs={"input_ids": ids})


def test_buffers_are_given_by_name(forward: ost.Executable) -> None:
    with pytest.raises(ost.InputError, match="expected buffers by name"):
        forward.bind(inputs=[1])  # type: ignore[arg-type]
