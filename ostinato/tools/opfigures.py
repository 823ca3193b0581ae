"""The error figures of `docs/OPERATORS.md`: what the shipped validation records say of each row, by device and dtypes.

A cell is the largest error of the row there over what it had to keep to, both absolute, of the call that came nearest: "4.8e-07 of 1.2e-06". "exact" is no
error at all, "failed" a record that says so, "not run" no record; it is empty where a row is not for the device. Layouts, strides and counts are not told
apart: the worst of them is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ostinato.backend_hip.evidence.records import Record, ValidationRecord
from ostinato.backend_hip.impls.common import HOST_ARCHITECTURE
from ostinato.backend_hip.target import named_target
from ostinato.ir.target import Impl

__all__ = ["GPUS", "HOSTS", "figures"]

HOSTS = tuple(f"x86_64/{unit}" for unit in ("portable", "avx2", "avx512", "avx512_bf16"))
GPUS = ("sm_90", "gfx942")
"""The devices that have a column; others are there as soon as a record is of them."""

NOT_RUN = "not run"


def figures(rows: Sequence[Impl], records: Iterable[Record]) -> Iterator[str]:
    """The tables of one operator's rows: those of CPUs, and those of GPUs."""
    found: dict[tuple[str, str], dict[str, list[ValidationRecord]]] = {}
    named = {row.name: row for row in rows}
    for record in records:
        if isinstance(record, ValidationRecord) and record.row in named and record.operator == named[record.row].op:
            cells = found.setdefault((record.row, dtypes_of(record.signature)), {})
            cells.setdefault(record.environment.architecture, []).append(record)
    hosts = [row for row in rows if HOST_ARCHITECTURE in row.architectures]
    gpus = [row for row in rows if HOST_ARCHITECTURE not in row.architectures]
    for mine, columns in ((hosts, HOSTS), (gpus, GPUS)):
        if mine:
            yield from _table(mine, columns, found)


def dtypes_of(signature: str) -> str:
    """The dtypes of a class of types: "f32, bf16 to f32" for "f32,bf16@CF,_,f32~->f32;counted". Integers, which are places and counts, are left out."""
    operands, _, results = signature.partition(";")[0].partition("->")
    sides = []
    for side in (operands, results):
        names = (part.partition("@")[0].rstrip("~") for part in side.split(","))
        kept = dict.fromkeys(name for name in names if name not in ("", "_", "i32"))
        sides.append(", ".join(kept) or "i32")
    return sides[0] if sides[0] == sides[1] else " to ".join(sides)


def _table(
    rows: Sequence[Impl],
    columns: Sequence[str],
    found: Mapping[tuple[str, str], Mapping[str, Sequence[ValidationRecord]]],
) -> Iterator[str]:
    names = {row.name for row in rows}
    others = {place for (name, _), cells in found.items() if name in names for place in cells}
    places = [*columns, *sorted(others - set(columns))]
    yield ""
    yield f"| row | dtypes | {' | '.join(place.removeprefix('x86_64/') for place in places)} |"
    yield f"| --- | --- |{' --- |' * len(places)}"
    for row in rows:
        kinds = sorted(kind for name, kind in found if name == row.name)
        for kind in kinds or [""]:
            cells = found.get((row.name, kind), {})
            yield f"| `{row.name}` | {kind} | {' | '.join(_cell(row, place, cells.get(place, ())) for place in places)} |"


def _cell(row: Impl, place: str, records: Sequence[ValidationRecord]) -> str:
    if not records:
        return NOT_RUN if row.identity in _identities(place) else ""
    if not all(record.passed for record in records):
        return "**failed**"
    worst = max(records, key=_used)
    if not worst.maximum_error:
        return "exact"
    bound = "" if worst.bound is None else f" of {worst.bound:.1e}"
    return f"{worst.maximum_error:.1e}{bound}"


@lru_cache
def _identities(place: str) -> frozenset[str]:
    """The rows that are for a device at all."""
    target = named_target(HOST_ARCHITECTURE if "/" in place else place)
    return frozenset(row.identity for row in target.rows)


def _used(record: ValidationRecord) -> float:
    """How much of what is allowed an error takes."""
    error, bound = record.maximum_error or 0.0, record.bound or 0.0
    return error / bound if bound else error
