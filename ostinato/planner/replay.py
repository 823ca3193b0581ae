"""What the checker keeps while it replays a plan: who wrote which byte of a region, and which step is over before which other one starts.

Part of the proof, so it is written apart from the planner: it knows byte ranges and steps, no lifetime, no storage class and no solver.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from ostinato.ir.step import ByteRange, Step

__all__ = ["Cell", "Clocks", "Memory"]


@dataclass(slots=True)
class Cell:
    """Bytes [start, end) that hold part of one value: `holds` is (value, address of its first byte), None for nothing known.

    `writer` is the step that wrote them (-1: from before the run), `readers` the latest reader on each lane since.
    """

    start: int
    end: int
    holds: tuple[str, int] | None
    writer: int = -1
    readers: dict[int, int] = field(default_factory=dict)

    @property
    def contents(self) -> str:
        """What the cell holds, for messages."""
        if self.holds is None:
            return "nothing" if self.writer < 0 else f"workspace of step {self.writer}"
        origin = "" if self.writer < 0 else f" (from step {self.writer})"
        return f"byte {self.start - self.holds[1]} of %{self.holds[0]}{origin}"


class Memory:
    """One region as sorted cells without gaps."""

    def __init__(self, size: int) -> None:
        self._starts = [0]
        self._cells = [Cell(0, size, None)]
        self.size = size

    def over(self, place: ByteRange) -> list[Cell]:
        """The cells of these bytes, cut to fit."""
        first, last = self._cut(place.offset), self._cut(place.end)
        return self._cells[first:last]

    def write(self, place: ByteRange, holds: tuple[str, int] | None, writer: int) -> None:
        first, last = self._cut(place.offset), self._cut(place.end)
        self._cells[first:last] = [Cell(place.offset, place.end, holds, writer)]
        self._starts[first:last] = [place.offset]

    def _cut(self, at: int) -> int:
        """The index of the cell that starts at this byte, made by cutting if need be."""
        if at >= self.size:
            return len(self._cells)
        index = bisect_right(self._starts, at) - 1
        cell = self._cells[index]
        if cell.start == at:
            return index
        self._cells.insert(index + 1, Cell(at, cell.end, cell.holds, cell.writer, dict(cell.readers)))
        self._starts.insert(index + 1, at)
        cell.end = at
        return index + 1


class Clocks:
    """Happens-before over steps: for each, how many steps of every lane are done before it starts."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.problems: list[str] = []
        self.lanes: dict[int, int] = {}
        self._index: list[int] = []
        self._lane = [step.lane for step in steps]
        self._done: list[dict[int, int]] = []
        last: dict[int, int] = {}
        signalled: dict[int, int] = {}
        for position, step in enumerate(steps):
            done = dict(self._done[last[step.lane]]) if step.lane in last else {}
            for event in step.waits:
                if event not in signalled:
                    self.problems.append(
                        f"step {position} ({step.node}) waits for event {event}, which no step above it signals"
                    )
                    continue
                other = signalled[event]
                for lane, count in self._done[other].items():
                    done[lane] = max(done.get(lane, 0), count)
                done[steps[other].lane] = max(done.get(steps[other].lane, 0), self._index[other] + 1)
            index = self.lanes.get(step.lane, 0)
            done[step.lane] = index
            self.lanes[step.lane] = index + 1
            last[step.lane] = position
            self._index.append(index)
            self._done.append(done)
            for event in step.signals:
                if event in signalled:
                    self.problems.append(f"event {event} is signalled by step {signalled[event]} and step {position}")
                else:
                    signalled[event] = position

    def before(self, first: int, second: int) -> bool:
        return self._done[second].get(self._lane[first], 0) > self._index[first]
