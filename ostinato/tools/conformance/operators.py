"""Every implementation row of a device against the operators' references: the samples of the operator table, larger shapes, and random ones.

A row that fails is a verdict and no error: the others run on, unless the device itself is lost, after which nothing can be said of the rest.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.evidence.calls import Call, calls, refusal
from ostinato.backend_hip.evidence.rows import DeviceMachine, Mismatch, Worst, check, kernel_call, references
from ostinato.backend_hip.evidence.samples import LARGE, arrays_of, random_samples, well_typed
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.ir.errors import BoundsError, OstinatoError
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.step import device_class
from ostinato.ir.target import Impl, Level
from ostinato.ir.types import Array
from ostinato.runtime.device import Device
from ostinato.tools.conformance.report import RowVerdict, WorstValue

__all__ = ["Advance", "rows_of", "run_rows"]

Advance = Callable[[int, int, str], None]
"""Told of how many parts so many are done, and which one is next."""
_RANDOM_SHAPES = 3


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sample with the ways of laying it out that a row takes; `refused` says why there are none."""

    sample: Sample
    ways: tuple[Call, ...]
    refused: str | None


def rows_of(device: Device) -> tuple[Impl, ...]:
    """All rows of the device's class, those for other cards too."""
    host = device_class(device.name) == "host"
    return tuple(row for row in (ROWS if host else HIP_ROWS) if row.level is not Level.REFERENCE)


def run_rows(
    device: Device, seed: int, *, ops: Collection[str] | None = None, ways: int | None = None, advance: Advance
) -> Iterator[RowVerdict]:
    """The verdict on each row, of the operators `ops` (None: all). `ways` limits how many ways of laying out each sample are tried (None: all)."""
    rows = [row for row in rows_of(device) if ops is None or row.op in ops]
    own = set(device.target.rows)
    asked = {row.identity: list(_asked(row, _random(seed, row, "shapes"), ways)) for row in rows if row in own}
    advance(0, len(rows), "compiling kernels")
    _load(device, [call for found in asked.values() for one in found for call in one.ways])
    lost = ""
    for number, row in enumerate(rows):
        advance(number, len(rows), row.identity)
        if row not in own:
            found = _verdict(row, "not accepted", reason=f"it is for {', '.join(row.architectures)}")
        elif lost:
            found = _verdict(row, "not run", reason=f"the device was lost: {lost}")
        else:
            found = _run(row, asked[row.identity], DeviceMachine(device), _random(seed, row, "values"))
            lost = _lost(device) if found.verdict == "failed" else ""
        yield found


def _random(seed: int, row: Impl, what: str) -> np.random.Generator:
    """Numbers that depend on the row and not on which others are run."""
    return np.random.default_rng((seed, zlib.crc32(f"{row.identity} {what}".encode())))


def _asked(row: Impl, rng: np.random.Generator, ways: int | None) -> Iterator[_Asked]:
    op = OP[row.op]
    for sample in (*op.samples(rng), *LARGE.get(row.op, ()), *random_samples(op, rng, _RANDOM_SHAPES)):
        if sample.error is None:
            found = tuple(call for _, call in zip(range(ways or 10**9), calls(row, sample), strict=False))
            yield _Asked(sample, found, None if found else refusal(row, sample))
        elif sample.error is BoundsError and well_typed(op, sample):
            found = tuple(calls(row, sample))[:1]
            yield _Asked(sample, found, None if found else refusal(row, sample))


def _load(device: Device, found: Sequence[Call]) -> None:
    """Compiles the kernels of all calls together where the device compiles; each call would else do so by itself, and does where this fails."""
    try:
        device.prepare([kernel_call(call) for call in found])
    except OstinatoError:
        return  # the verdict on the row whose kernel it is will say why


def _run(row: Impl, asked: Sequence[_Asked], machine: DeviceMachine, rng: np.random.Generator) -> RowVerdict:
    ran = refused = 0
    refusals: list[str] = []
    off: list[str] = []
    worst: tuple[Worst, Call] | None = None
    for one in asked:
        if not one.ways:
            refused += 1
            refusals.append(one.refused or "no way of laying the sample out")
            continue
        arrays = arrays_of(OP[row.op], one.sample, rng)
        for call in one.ways:
            try:
                expected = _expected(call, one.sample, arrays)
            except OstinatoError:  # a random shape that the reference takes for none
                refused += 1
                continue
            ran += 1
            try:
                found = check(call, [machine], arrays, expected)
            except Mismatch as error:
                if error.worst is None:
                    return _verdict(row, "failed", ran, refused, None, f"{error}; {call}")
                found = error.worst
                off.append(f"{error}; {call}")
            except OstinatoError as error:
                return _verdict(row, "failed", ran, refused, None, f"[{error.code}] {error}; {call}")
            if found is not None and (worst is None or found.used > worst[0].used):
                worst = found, call
    value = None if worst is None else _value(*worst)
    if off:
        return _verdict(row, "outside tolerance", ran, refused, value, f"{len(off)} of {ran} calls, first: {off[0]}")
    if not ran:
        return _verdict(row, "not accepted", 0, refused, None, refusals[0] if refusals else "it has no sample")
    return _verdict(row, "pass", ran, refused, value)


def _expected(call: Call, sample: Sample, arrays: list[Array | None]) -> list[Array] | None:
    """The reference's results; None where an index is out of range, which the kernel must notice."""
    return None if sample.error is BoundsError else references(call, arrays)


def _verdict(
    row: Impl, verdict: str, ran: int = 0, refused: int = 0, worst: WorstValue | None = None, reason: str = ""
) -> RowVerdict:
    return RowVerdict.model_validate(
        {
            "op": row.op,
            "row": row.name,
            "level": row.level.name.lower(),
            "verdict": verdict,
            "calls": ran,
            "refused": refused,
            "worst": worst,
            "reason": reason,
        }
    )


def _value(worst: Worst, call: Call) -> WorstValue:
    def finite(number: float) -> float | None:
        return number if math.isfinite(number) else None

    return WorstValue(
        call=str(call),
        result=worst.result,
        index=worst.index,
        found=finite(worst.found),
        expected=finite(worst.expected),
        used=finite(worst.used),
    )


def _lost(device: Device) -> str:
    """Why the device does nothing any more; empty where it does."""
    try:
        device.synchronize()
        device.allocate(16).free()
    except OstinatoError as error:
        return str(error)
    return ""
