"""Ranges for the profilers of vendors: NVTX (Nsight Systems) and ROCTX (rocprof), through the library that the profiler's own tools bring, where it is there.

With markers a run of planned steps pushes one range a step, named as its node, and a replay of a captured graph one range. In the planned mode that takes one
native call a step instead of one a run, and no step starts early behind another. A program without markers has none of this: nothing asks at run time.

They are asked for with `markers=True` or, for every executable that a process compiles, by OSTINATO_MARKERS=1; where no library is, that is an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ostinato.ir.errors import ConfigError, DeviceUnavailable
from ostinato.runtime.device import Graph, Table

__all__ = ["MARKERS_VARIABLE", "MarkedTable", "Markers", "markers_wanted", "open_markers"]

MARKERS_VARIABLE = "OSTINATO_MARKERS"
_LIBRARIES = (
    ("libnvToolsExt.so.1", "nvtxRangePushA", "nvtxRangePop"),
    ("libroctx64.so.4", "roctxRangePushA", "roctxRangePop"),
    ("libroctx64.so", "roctxRangePushA", "roctxRangePop"),
    ("librocprofiler-sdk-roctx.so.1", "roctxRangePushA", "roctxRangePop"),
)
"""Library, and its functions that begin and end a range of the calling thread."""


@dataclass(frozen=True, slots=True)
class Markers:
    """The functions of a library of markers."""

    library: str
    push: Callable[[bytes], object]
    pop: Callable[[], object]

    @contextmanager
    def range(self, name: bytes) -> Iterator[None]:
        """A range around some work of this thread."""
        self.push(name)
        try:
            yield
        finally:
            self.pop()


def markers_wanted() -> bool:
    """Whether the environment asks for markers. Raises `ConfigError` for a value that is neither 0 nor 1."""
    found = os.environ.get(MARKERS_VARIABLE, "0")
    if found not in ("", "0", "1"):
        raise ConfigError(f"{MARKERS_VARIABLE} is {found!r}", hint="1 for markers, 0 or nothing for none")
    return found == "1"


def open_markers() -> Markers:
    """The first library of markers that is there. Raises `DeviceUnavailable` where none is."""
    for name, push, pop in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            begin, end = getattr(library, push), getattr(library, pop)
        except (OSError, AttributeError):
            continue
        begin.argtypes, begin.restype, end.restype = [ctypes.c_char_p], ctypes.c_int, ctypes.c_int
        return Markers(name, begin, end)
    raise DeviceUnavailable(
        "no library of markers was found",
        hint=f"put the folder of one of {', '.join(name for name, _, _ in _LIBRARIES)} into LD_LIBRARY_PATH, or ask for no markers",
    )


class MarkedTable:
    """A step table that pushes a range around every step it submits; what is captured of it has none inside."""

    def __init__(self, table: Table, nodes: Sequence[str], markers: Markers) -> None:
        self._table, self._markers = table, markers
        self._names = [node.encode() for node in nodes]

    @property
    def status_bytes(self) -> int:
        """The table's own."""
        return self._table.status_bytes

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        """Submits the steps one by one, each in its range."""
        for position in range(first, len(self._names) if count < 0 else first + count):
            with self._markers.range(self._names[position]):
                self._table.enqueue(position, 1)

    def finish(self) -> None:
        """The table's own."""
        self._table.finish()

    def run(self, first: int = 0, count: int = -1) -> None:
        """`enqueue` and `finish`."""
        self.enqueue(first, count)
        self._table.finish()

    def capture(self, first: int = 0, count: int = -1) -> Graph:
        """The steps as a graph, without ranges."""
        return self._table.capture(first, count)
