"""The placement problem: buffers with lifetimes and sizes in, offsets out.

This is all a solver sees: no graph, no operator, no step. Times are half-open intervals [lower, upper) on an integer axis, sizes and offsets are bytes
(or any other unit, the same one everywhere), integers of any magnitude. `violations` is the definition of a correct solution, `lower_bound` of how good it
can be. Problems are read from and written to the common CSV form `id,lower,upper,size[,alignment][,offset]`, where a given offset is a fixed one.

Refuses: duplicate or empty ids, negative sizes, empty or reversed lifetimes, fixed offsets off their alignment. Standard library only.
"""

from __future__ import annotations

import csv
import heapq
import io
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Bound",
    "Buffer",
    "Problem",
    "ProblemError",
    "Solution",
    "align_up",
    "granule",
    "lower_bound",
    "problem_from_csv",
    "problem_to_csv",
    "violations",
]

MAX_INTEGER = 2**63 - 1
"""Largest number a CSV cell may hold: sizes, times and offsets are 64-bit signed everywhere."""

_REQUIRED = ("id", "lower", "upper", "size")
_OPTIONAL = ("alignment", "offset")


class ProblemError(ValueError):
    """A problem or a CSV text that cannot be used.

    `field` is the buffer's field at fault, if one is; `line` and `column` count from 1 where a text is to blame.
    """

    def __init__(
        self, message: str, *, field: str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        self.message = message
        self.field = field
        self.line = line
        self.column = column
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        super().__init__(f"{place}{message}")


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes needed during [lower, upper), at a multiple of `alignment`, and exactly at `offset` if one is given."""

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1
    offset: int | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise ProblemError("a buffer has an empty id", field="id")
        if self.lower >= self.upper:
            raise ProblemError(
                f"buffer {self.id}: lifetime [{self.lower}, {self.upper}) is empty or reversed; expected lower < upper",
                field="upper",
            )
        if self.size < 0:
            raise ProblemError(f"buffer {self.id}: size {self.size} is negative", field="size")
        if self.alignment < 1:
            raise ProblemError(f"buffer {self.id}: alignment {self.alignment}; expected at least 1", field="alignment")
        if self.offset is not None and (self.offset < 0 or self.offset % self.alignment):
            raise ProblemError(
                f"buffer {self.id}: fixed offset {self.offset} is not a multiple of its alignment {self.alignment}",
                field="offset",
            )

    def overlaps(self, other: Buffer) -> bool:
        """Whether both are alive at some time."""
        return self.lower < other.upper and other.lower < self.upper


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers to place below `capacity` (None: as low as possible)."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.id in seen:
                raise ProblemError(f"buffer id {buffer.id} appears twice")
            seen.add(buffer.id)
        if self.capacity is not None and self.capacity < 0:
            raise ProblemError(f"capacity {self.capacity} is negative")


@dataclass(frozen=True, slots=True)
class Solution:
    """Offsets in the order of the problem's buffers; `height` is the end of the highest one."""

    offsets: tuple[int, ...]
    height: int


@dataclass(frozen=True, slots=True)
class Bound:
    """No solution is lower than `height`: at time `step` the buffers `tenants` (largest first) are alive together."""

    height: int
    step: int
    tenants: tuple[str, ...]


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `value`."""
    return -(-value // alignment) * alignment


def granule(problem: Problem) -> int:
    """The largest number that divides every alignment: all offsets are multiples of it."""
    found = 0
    for alignment in {buffer.alignment for buffer in problem.buffers}:
        while alignment:
            found, alignment = alignment, found % alignment
    return found or 1


def lower_bound(problem: Problem) -> Bound:
    """The largest sum of sizes alive at one time.

    Every offset is a multiple of the granule, so each tenant but the topmost takes its size rounded up to it. Fixed buffers bound the height by their ends.
    """
    unit = granule(problem)
    starts = sorted((b for b in problem.buffers if b.size), key=lambda b: b.lower)
    alive: list[tuple[int, int, int]] = []  # (upper, padded size, padding)
    padding: list[tuple[int, int]] = []  # (-padding, upper), removed lazily
    load = best = step = 0
    for index, buffer in enumerate(starts):
        while alive and alive[0][0] <= buffer.lower:
            load -= heapq.heappop(alive)[1]
        padded = align_up(buffer.size, unit)
        load += padded
        heapq.heappush(alive, (buffer.upper, padded, padded - buffer.size))
        heapq.heappush(padding, (buffer.size - padded, buffer.upper))
        if index + 1 < len(starts) and starts[index + 1].lower == buffer.lower:
            continue
        while padding[0][1] <= buffer.lower:
            heapq.heappop(padding)
        if load + padding[0][0] > best:
            best, step = load + padding[0][0], buffer.lower
    tenants = sorted((b for b in starts if b.lower <= step < b.upper), key=lambda b: (-b.size, b.lower, b.id))
    pinned = max((b.offset + b.size for b in problem.buffers if b.offset is not None), default=0)
    return Bound(max(best, pinned), step, tuple(b.id for b in tenants))


def violations(problem: Problem, solution: Solution) -> tuple[str, ...]:
    """Every way in which `solution` is wrong, as text that names buffers and bytes; empty for a correct one."""
    buffers, offsets = problem.buffers, solution.offsets
    if len(offsets) != len(buffers):
        return (f"{len(offsets)} offsets for {len(buffers)} buffers",)
    found: list[str] = []
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0:
            found.append(f"buffer {buffer.id} lies at the negative offset {offset}")
        if offset % buffer.alignment:
            found.append(f"buffer {buffer.id} lies at {offset}, not a multiple of {buffer.alignment}")
        if buffer.offset is not None and offset != buffer.offset:
            found.append(f"buffer {buffer.id} lies at {offset}, its fixed offset is {buffer.offset}")
    height = max((offset + buffer.size for buffer, offset in zip(buffers, offsets, strict=True)), default=0)
    if height != solution.height:
        found.append(f"height {solution.height} is stated, the highest buffer ends at {height}")
    if problem.capacity is not None and height > problem.capacity:
        found.append(f"height {height} exceeds the capacity {problem.capacity}")
    found += _collisions(problem, solution)
    return tuple(found)


def _collisions(problem: Problem, solution: Solution) -> Iterator[str]:
    """Pairs of buffers that share a byte at some time, each buffer reported at most once.

    A sweep over time keeps the live buffers sorted by offset: while none collide, a new one can only collide with its two neighbours.
    """
    items = [(b, o, o + b.size) for b, o in zip(problem.buffers, solution.offsets, strict=True) if b.size]
    events = sorted(
        [(b.upper, 0, index) for index, (b, _, _) in enumerate(items)]
        + [(b.lower, 1, index) for index, (b, _, _) in enumerate(items)]
    )
    live: list[tuple[int, int, int]] = []  # (offset, end, index)
    rejected: set[int] = set()
    for _, starts, index in events:
        buffer, offset, end = items[index]
        if index in rejected:
            continue
        entry = (offset, end, index)
        place = bisect_left(live, entry)
        if not starts:
            del live[place]
            continue
        for low, high, other in live[max(place - 1, 0) : place + 1]:
            if low < end and offset < high:
                rejected.add(index)
                yield (
                    f"buffers {buffer.id} [{offset}:{end}] and {items[other][0].id} [{low}:{high}] "
                    f"share bytes [{max(low, offset)}:{min(high, end)}] while both are alive"
                )
                break
        else:
            insort(live, entry)


def problem_from_csv(text: str, *, capacity: int | None = None) -> Problem:
    """Reads `id,lower,upper,size[,alignment][,offset]` (a header line, columns in any order); raises `ProblemError` with line and column."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    buffers: list[Buffer] = []
    lines: dict[str, int] = {}
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if columns is None:
                columns = _header(row, reader.line_num)
                continue
            buffer = _buffer(columns, row, reader.line_num)
            if buffer.id in lines:
                raise ProblemError(
                    f"id {buffer.id!r} was used on line {lines[buffer.id]} already",
                    line=reader.line_num,
                    column=columns.index("id") + 1,
                )
            lines[buffer.id] = reader.line_num
            buffers.append(buffer)
    except csv.Error as error:
        raise ProblemError(f"not CSV: {error}", line=reader.line_num) from None
    if columns is None:
        raise ProblemError("the text is empty; expected a header line id,lower,upper,size", line=1)
    return Problem(tuple(buffers), capacity)


def _header(row: list[str], line: int) -> list[str]:
    columns = [cell.strip().lower().removeprefix("\ufeff") for cell in row]
    known = _REQUIRED + _OPTIONAL
    for place, column in enumerate(columns, start=1):
        if column not in known:
            raise ProblemError(
                f"unknown column {column!r}; expected {','.join(_REQUIRED)}[,{'][,'.join(_OPTIONAL)}]",
                line=line,
                column=place,
            )
        if columns.index(column) + 1 != place:
            raise ProblemError(f"column {column!r} appears twice", line=line, column=place)
    if missing := [column for column in _REQUIRED if column not in columns]:
        raise ProblemError(f"columns {missing} are missing", line=line)
    return columns


def _buffer(columns: list[str], row: list[str], line: int) -> Buffer:
    if len(row) != len(columns):
        raise ProblemError(
            f"expected {len(columns)} cells ({','.join(columns)}), found {len(row)}",
            line=line,
            column=min(len(row), len(columns)) + 1,
        )
    cells = dict(zip(columns, row, strict=True))
    numbers: dict[str, int | None] = {}
    for place, column in enumerate(columns, start=1):
        text = cells[column].strip()
        if column == "id":
            continue
        if not text and column in _OPTIONAL:
            numbers[column] = None
            continue
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or abs(int(digits)) > MAX_INTEGER:
            raise ProblemError(f"{column}: expected a 64-bit integer, found {text!r}", line=line, column=place)
        numbers[column] = int(text)
    lower, upper, size = numbers["lower"], numbers["upper"], numbers["size"]
    alignment = numbers.get("alignment")
    assert lower is not None
    assert upper is not None
    assert size is not None
    try:
        return Buffer(
            cells["id"].strip(), lower, upper, size, 1 if alignment is None else alignment, numbers.get("offset")
        )
    except ProblemError as error:
        raise ProblemError(error.message, line=line, column=columns.index(error.field or "id") + 1) from None


def problem_to_csv(problem: Problem, solution: Solution | None = None) -> str:
    """The CSV text of a problem, with the solution's offsets in the `offset` column if one is given.

    Columns `alignment` and `offset` are written only where they say something, so that the text reads back to an equal problem.
    """
    aligned = any(buffer.alignment != 1 for buffer in problem.buffers)
    placed = solution is not None or any(buffer.offset is not None for buffer in problem.buffers)
    output = io.StringIO(newline="")
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow([*_REQUIRED, *(["alignment"] if aligned else []), *(["offset"] if placed else [])])
    for index, buffer in enumerate(problem.buffers):
        row: list[str | int] = [buffer.id, buffer.lower, buffer.upper, buffer.size]
        if aligned:
            row.append(buffer.alignment)
        if placed:
            offset = buffer.offset if solution is None else solution.offsets[index]
            row.append("" if offset is None else offset)
        writer.writerow(row)
    return output.getvalue()
