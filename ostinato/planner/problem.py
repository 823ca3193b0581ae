"""The placement problem: buffers with lifetimes and sizes in, offsets out.

This is all a solver sees: no graph, no operator, no step. Times are half-open intervals [lower, upper) on an integer axis, sizes and offsets are bytes
(or any other unit, the same one everywhere), integers of any magnitude. `violations` is the definition of a correct solution, `lower_bound` of how good it
can be. Problems are read from and written to the common CSV form `id,lower,upper,size[,alignment][,offset]`, where a given offset is a fixed one.

Refuses: ids that are empty, unprintable or given twice, negative sizes, empty or reversed lifetimes, fixed offsets off their alignment. Fixed offsets that
collide are named by `fixed_collisions`. Standard library only.
"""

from __future__ import annotations

import csv
import heapq
import io
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

__all__ = [
    "MAX_INTEGER",
    "Bound",
    "Buffer",
    "Problem",
    "ProblemError",
    "Solution",
    "align_up",
    "alive_at",
    "fixed_collisions",
    "granule",
    "lower_bound",
    "problem_from_csv",
    "problem_to_csv",
    "violations",
]

MAX_INTEGER = 2**63 - 1
"""Largest number a CSV cell may hold: sizes, times and offsets are 64-bit signed everywhere."""

_MOST_DIGITS = 19
_MOST_SHOWN = 60
_LONGEST_BLOCK = 4096
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
        if not self.id.isprintable():
            raise ProblemError(f"id {_shown(self.id)} has characters that cannot be printed", field="id")
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


def alive_at(buffers: Iterable[Buffer], time: int) -> list[Buffer]:
    """The buffers with bytes that are alive at a time, the largest first."""
    return sorted((b for b in buffers if b.size and b.lower <= time < b.upper), key=lambda b: (-b.size, b.lower, b.id))


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
    tenants = alive_at(starts, step)
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
    found += _collisions(buffers, offsets)
    return tuple(found)


def fixed_collisions(problem: Problem) -> tuple[str, ...]:
    """Buffers whose fixed offsets make every solution wrong: the same text as of `violations`."""
    fixed = [(buffer, buffer.offset) for buffer in problem.buffers if buffer.offset is not None]
    return tuple(_collisions([buffer for buffer, _ in fixed], [offset for _, offset in fixed]))


def _collisions(buffers: Sequence[Buffer], offsets: Sequence[int]) -> Iterator[str]:
    """Pairs of buffers that share a byte at some time, each buffer reported at most once.

    A sweep over time keeps the live buffers sorted by offset: while none collide, a new one can only collide with its two neighbours.
    """
    begins = sorted((i for i, buffer in enumerate(buffers) if buffer.size), key=lambda i: buffers[i].lower)
    ends = iter(sorted(begins, key=lambda i: buffers[i].upper))
    ending = next(ends, -1)
    live = _SortedIntegers()
    tenant: dict[int, int] = {}  # offset -> the live buffer that lies there
    for index in begins:
        buffer, offset = buffers[index], offsets[index]
        while buffers[ending].upper <= buffer.lower:  # the buffer's own end is still to come
            if tenant.get(offsets[ending]) == ending:
                live.remove(offsets[ending])
                del tenant[offsets[ending]]
            ending = next(ends)
        end = offset + buffer.size
        below, above = live.neighbours(offset)
        for low in (below, above):
            if low is None or low >= end:
                continue
            high = low + buffers[tenant[low]].size
            if high > offset:
                yield (
                    f"buffers {buffer.id} [{offset}:{end}] and {buffers[tenant[low]].id} [{low}:{high}] "
                    f"share bytes [{max(low, offset)}:{min(high, end)}] while both are alive"
                )
                break
        else:
            live.add(offset)
            tenant[offset] = index


class _SortedIntegers:
    """Different integers in order, in blocks, so that to add one to a million moves some thousand."""

    def __init__(self) -> None:
        self._blocks: list[list[int]] = [[]]
        self._begins: list[int] = []  # the first integer of each block but the first

    def neighbours(self, value: int) -> tuple[int | None, int | None]:
        """The largest that is not above `value`, and the smallest that is."""
        at = bisect_right(self._begins, value)
        block = self._blocks[at]
        place = bisect_right(block, value)
        below = block[place - 1] if place else self._blocks[at - 1][-1] if at else None
        above = block[place] if place < len(block) else self._blocks[at + 1][0] if at < len(self._begins) else None
        return below, above

    def add(self, value: int) -> None:
        at = bisect_right(self._begins, value)
        block = self._blocks[at]
        block.insert(bisect_right(block, value), value)
        if len(block) > _LONGEST_BLOCK:
            middle = len(block) // 2
            self._blocks[at : at + 1] = [block[:middle], block[middle:]]
            self._begins.insert(at, block[middle])

    def remove(self, value: int) -> None:
        at = bisect_right(self._begins, value)
        block = self._blocks[at]
        del block[bisect_left(block, value)]
        if not block and self._begins:
            del self._blocks[at]
            del self._begins[max(at - 1, 0)]


def problem_from_csv(text: str, *, capacity: int | None = None) -> Problem:
    """Reads `id,lower,upper,size[,alignment][,offset]` (a header line, columns in any order); raises `ProblemError` with line and column."""
    encoded = io.BytesIO(
        text.removeprefix("\ufeff").encode(errors="surrogatepass")
    )  # a StringIO takes 4 bytes a character
    reader = csv.reader(io.TextIOWrapper(encoded, "utf-8", errors="surrogatepass", newline=""), strict=True)
    rows = (row for row in reader if len(row) > 1 or (row and row[0].strip()))
    columns: list[str] = []
    buffers: list[Buffer] = []
    lines: dict[str, int] = {}
    try:
        columns = _header(next(rows, []))
        in_order = itemgetter(*(columns.index(name) if name in columns else -1 for name in _REQUIRED + _OPTIONAL))
        for row in rows:
            if len(row) != len(columns):
                place = min(len(row), len(columns)) + 1
                raise ProblemError(
                    f"expected {len(columns)} cells ({','.join(columns)}), found {len(row)}", column=place
                )
            row.append("")  # the cell of a column that is not there
            buffer = _buffer(*in_order(row))
            if buffer.id in lines:
                raise ProblemError(f"id {_shown(buffer.id)} was used on line {lines[buffer.id]} already", field="id")
            lines[buffer.id] = reader.line_num
            buffers.append(buffer)
    except csv.Error as error:
        raise ProblemError(f"not CSV: {error}", line=reader.line_num) from None
    except ProblemError as error:
        column = columns.index(error.field) + 1 if error.field in columns else error.column
        raise ProblemError(error.message, field=error.field, line=max(reader.line_num, 1), column=column) from None
    return Problem(tuple(buffers), capacity)


def _header(row: list[str]) -> list[str]:
    if not row:
        raise ProblemError("the text is empty; expected a header line id,lower,upper,size")
    columns = [cell.strip().lower() for cell in row]
    known = _REQUIRED + _OPTIONAL
    for place, column in enumerate(columns, start=1):
        if column not in known:
            expected = f"{','.join(_REQUIRED)}[,{'][,'.join(_OPTIONAL)}]"
            raise ProblemError(f"unknown column {_shown(column)}; expected {expected}", column=place)
        if columns.index(column) + 1 != place:
            raise ProblemError(f"column {column!r} appears twice", column=place)
    if missing := [column for column in _REQUIRED if column not in columns]:
        raise ProblemError(f"columns {missing} are missing")
    return columns


def _buffer(name: str, lower: str, upper: str, size: str, alignment: str, offset: str) -> Buffer:
    return Buffer(
        name.strip(),
        _number(lower, "lower"),
        _number(upper, "upper"),
        _number(size, "size"),
        1 if not alignment or alignment.isspace() else _number(alignment, "alignment"),
        None if not offset or offset.isspace() else _number(offset, "offset"),
    )


def _number(cell: str, field: str) -> int:
    if cell.isdigit() and cell.isascii() and len(cell) < _MOST_DIGITS:
        return int(cell)
    text = cell.strip()
    digits = text.removeprefix("-")
    if digits.isdigit() and digits.isascii() and len(digits) <= _MOST_DIGITS and int(digits) <= MAX_INTEGER:
        return int(text)
    raise ProblemError(f"{field}: expected a 64-bit integer, found {_shown(text)}", field=field)


def _shown(text: str) -> str:
    """A text of the user's in a message: escaped, and its begin where it is long."""
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}..."


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
