"""The tables of a side-by-side run: how fast each contender is, and what capture and memory cost it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from benchmarks.gpu.records import EXACT, Record
from benchmarks.workloads import BYTES_PER_SECOND, FLOPS_PER_SECOND, Shape, Workload

__all__ = ["break_even", "limit_ms", "show"]

_WHERE = ("model", "workload", "contender")
_SPEED = ("ms", "waited for", "limit", "x limit", "first s", "launches", "submitted", "nodes", "edges", "error", "note")
_COSTS = ("table ms", "capture", "instantiate", "first replay", "steady", "break-even")
_BYTES = ("bytes beyond", "planned", "of the table", "of the pool", "of the driver")
_UNCAPTURED = {"ours captured": "ours planned", "lean graph": "lean eager", "torch graph": "torch eager"}


def show(records: Sequence[Record], shapes: Mapping[str, Shape]) -> None:
    """Prints both; `shapes` by model."""
    speed, costs = _table(*_WHERE, *_SPEED), _table(*_WHERE, *_COSTS, *_BYTES)
    order = {text: number for number, text in enumerate(dict.fromkeys(record.workload for record in records))}
    for record in sorted(records, key=lambda item: (item.model, order[item.workload], item.ms < 0, item.ms)):
        if record.contender in (EXACT, "ours"):
            continue
        where = (record.model, record.workload, record.contender)
        limit = limit_ms(record, shapes)
        speed.add_row(
            *where,
            _number(record.ms, 4),
            _number(record.waiting_ms, 4),
            _number(limit, 3),
            _number(record.ms / limit if limit > 0 and record.ms > 0 else -1, 2),
            _number(record.first_s, 2),
            *map(_count, (record.launches, record.submissions, record.nodes, record.dependencies)),
            _number(record.error, 4),
            record.note,
        )
        if record.ms > 0:
            costs.add_row(
                *where,
                _number(record.table_ms, 2),
                _number(record.capture_ms, 2),
                _number(record.instantiate_ms, 2),
                _number(record.first_replay_ms, 3),
                _number(record.ms, 4),
                break_even(record, records),
                *map(_count, (record.beyond_bytes, record.planned_bytes, record.table_bytes)),
                *map(_count, (record.pool_bytes, record.driver_bytes)),
            )
    console = Console(width=190)
    console.print(speed)
    console.print(costs)


def limit_ms(record: Record, shapes: Mapping[str, Shape]) -> float:
    """The physical limit of the record's step; -1 for a chain."""
    if not record.model:
        return -1
    return shapes[record.model].limit_ms(Workload.parse(record.workload), BYTES_PER_SECOND, FLOPS_PER_SECOND)


def break_even(record: Record, records: Sequence[Record]) -> str:
    """Replays after which a captured graph has saved what it cost, against the same steps without it."""
    without = (record.model, record.workload, _UNCAPTURED.get(record.contender))
    other = next((item for item in records if (item.model, item.workload, item.contender) == without), None)
    if other is None or other.ms < 0 or record.capture_ms < 0:
        return ""
    saved = other.ms - record.ms
    return f"{(record.capture_ms + max(0.0, record.instantiate_ms)) / saved:.0f}" if saved > 0 else "never"


def _table(*names: str) -> Table:
    return Table(*(Column(name, no_wrap=name != "note") for name in names))


def _number(value: float, digits: int) -> str:
    return "" if value < 0 else f"{value:.{digits}f}"


def _count(value: int) -> str:
    return "" if value < 0 else f"{value:,}"
