"""Validation of an implementation row on one class of types: trials on an open device, judged, and the record that says what came of it.

A row passes where every call leaves alone what it may not touch, refuses what the oracle refuses, gives finite values wherever the oracle does, and where each
value of each result is within the operator's tolerance and no farther from the oracle than twice the largest error of a plain composition in the same
precision, or four units in the last place of the largest value of its own row of the result (of its last axis), whichever is more; the same holds of the root
mean square. Operators without a tolerance, and rows that promise the bits of the reference, are compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.backend_hip.evidence.calls import Call
from ostinato.backend_hip.evidence.records import Environment, ValidationRecord
from ostinato.backend_hip.evidence.rows import (
    DeviceMachine,
    Machine,
    Mismatch,
    RowDevice,
    compare,
    kernel_call,
    must_refuse,
    results_of,
)
from ostinato.backend_hip.evidence.sources import row_sources
from ostinato.backend_hip.evidence.trials import PLAIN_ERRORS, UNITS, PlainError, Trial, trial_calls, trials, ulp
from ostinato.ir.errors import BackendError, CapacityError, LifecycleError, OstinatoError, UserCodeError
from ostinato.ir.evidence import Exactness
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import Array, TensorType

__all__ = ["Figures", "judge", "prepare", "validate", "validated"]

_LONGEST_REASON = 600


@dataclass(frozen=True, slots=True)
class Figures:
    """Errors of one result of one call; `used` is what part of its bound the value farthest off takes up."""

    maximum: float = 0.0
    rms: float = 0.0
    plain: float = 0.0
    plain_rms: float = 0.0
    bound: float = 0.0
    used: float = 0.0


def validate(device: RowDevice, environment: Environment, row: Impl, like: CallSite, seed: int) -> ValidationRecord:
    """Runs the trials of the site's class on a device, whose environment it is. Whatever goes wrong is in the record. Raises what `validated` raises."""
    return validated(device, environment, row, like, trials(row, like, seed), seed)


def validated(
    device: RowDevice, environment: Environment, row: Impl, like: CallSite, tried: Sequence[Trial], seed: int
) -> ValidationRecord:
    """`validate` of trials that are made already. Raises `BackendError` for a device that an earlier failure has made unusable, `CapacityError` and
    `LifecycleError` for one that has no memory or was interrupted: of the row all that says nothing."""
    _need_alive(device, row)
    machine, reason = DeviceMachine(device), ""
    worst = Figures()
    if not any(trial.exact is not None for trial in tried):
        reason = f"no sample of this class: none of the samples of {row.op} can be laid out like it"
    else:
        _prepare(device, [trial.call for trial in tried])
    for trial in () if reason else tried:
        try:
            found = judge(trial, machine)
        except (CapacityError, LifecycleError, UserCodeError):  # nothing that the kernel could be blamed for
            raise
        except (Mismatch, OstinatoError) as error:
            reason = f"{error}; {trial.call}"[:_LONGEST_REASON]
            worst = error.figures if isinstance(error, _TooFar) else worst
            break
        except Exception as error:  # a mistake of the library's, or no memory: it says nothing of the kernel
            error.add_note(f"while {row.identity} was validated")
            raise
        if found is not None and found.used >= worst.used:
            worst = found
    return ValidationRecord.made(
        environment=environment,
        operator=row.op,
        row=row.name,
        level=row.level.name.lower(),
        signature=signature_class(like),
        sources=row_sources(row, [like, *(trial.call.site for trial in tried)]),
        calls=len(tried),
        seed=seed,
        maximum_error=_finite(worst.maximum),
        rms_error=_finite(worst.rms),
        plain_error=_finite(worst.plain),
        plain_rms=_finite(worst.plain_rms),
        bound=_finite(worst.bound),
        passed=not reason,
        reason=reason,
    )


def _need_alive(device: RowDevice, row: Impl) -> None:
    try:
        device.synchronize()
        device.allocate(16).free()
    except OstinatoError as error:
        raise BackendError(
            f"{row.identity} cannot be validated, {device.name} does nothing any more: {error.message}",
            hint="a kernel that ran before may have done that; start again in a new process",
        ) from error


class _TooFar(Mismatch):
    """Within the operator's tolerance, and farther off than a plain composition is; or not finite."""

    def __init__(self, text: str, figures: Figures) -> None:
        super().__init__(text)
        self.figures = figures


def judge(trial: Trial, machine: Machine) -> Figures | None:
    """Runs a trial; the figures of the result that came nearest to its bound, None where results are equal or there is nothing to compare.

    Raises `Mismatch` for a call that does not pass, and what running it raises.
    """
    call = trial.call
    if trial.exact is None or trial.expected is None:
        must_refuse(call, machine, trial.arrays)
        return None
    found = results_of(call, machine, trial.arrays)
    compare(call, found, trial.expected)
    if call.row.exactness is Exactness.REFERENCE:
        _need_equal(trial, found)
    if call.op.tolerance.is_exact:
        return None
    try:
        return _worst(trial, found, trial.plain)
    except _TooFar:  # than a first estimate allows
        return _worst(trial, found, trial.more())


def _worst(trial: Trial, found: Sequence[Array], plain: Sequence[PlainError]) -> Figures | None:
    """Raises `_TooFar` for values that are farther off than they may be, given how far the plain composition of each result is."""
    assert trial.exact is not None
    figures = [
        _figures(value.name, value.type, mine, oracle, error.maximum, error.rms)
        for value, mine, oracle, error in zip(trial.call.site.node.results, found, trial.exact, plain, strict=True)
        if value.type.dtype.is_float and mine.size
    ]
    return max(figures, key=lambda one: one.used, default=None)


def _need_equal(trial: Trial, found: Sequence[Array]) -> None:
    assert trial.expected is not None
    for value, mine, wanted in zip(trial.call.site.node.results, found, trial.expected, strict=True):
        part = wanted[: len(mine)] if mine.ndim else wanted
        same = (mine == part) | ((mine != mine) & (part != part))
        if not np.all(same):
            raise Mismatch(f"{int((~same).sum())} of {mine.size} values of {value.name} differ from the reference's")


def _figures(name: str, tensor: TensorType, mine: Array, oracle: Array, plain: float, plain_rms: float) -> Figures:
    """Raises `_TooFar` for values that are farther off than they may be."""
    found, wanted = mine.astype(np.float64), oracle.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(oracle.astype(tensor.dtype.numpy))
        off = np.where(finite, np.abs(found - wanted), 0.0)
    size = np.where(finite, np.abs(wanted), 0.0)
    largest = size.max(axis=-1, keepdims=True) if size.ndim else size
    floor = UNITS * ulp(largest, tensor)
    bound = np.broadcast_to(np.maximum(PLAIN_ERRORS * plain, floor), off.shape)
    used = np.where(np.isfinite(off), off, np.inf) / bound
    place = np.unravel_index(int(used.argmax()), used.shape)
    rms = math.sqrt(float(np.mean(off * off)))
    farthest = np.unravel_index(int(off.argmax()), off.shape)
    figures = Figures(float(off[farthest]), rms, plain, plain_rms, float(bound[farthest]), float(used[place]))
    if not np.isfinite(off).all():
        raise _TooFar(f"{name}{list(map(int, place))} is {found[place]}, the oracle's is {wanted[place]}", figures)
    if figures.used > 1:
        raise _TooFar(
            f"{name}{list(map(int, place))} is {off[place]:.3g} off, {figures.used:.3g} times what it may be: a plain composition is at most {plain:.3g} off",
            figures,
        )
    if rms > max(PLAIN_ERRORS * plain_rms, float(floor.max())):
        raise _TooFar(
            f"{name} has an error of {rms:.3g} in the root mean square, plainly composed {plain_rms:.3g}", figures
        )
    return figures


def prepare(device: RowDevice, wanted: Iterable[tuple[Impl, CallSite, int]]) -> None:
    """Compiles the kernels of many validations side by side, given rows, sites and seeds. Each validation would else do so by itself."""
    calls = [call for row, like, seed in wanted if row.launch is not None for call in trial_calls(row, like, seed)]
    if calls:
        _prepare(device, calls)


def _prepare(device: RowDevice, calls: Iterable[Call]) -> None:
    """Compiles the kernels of all calls together where the device compiles; each call would else do so by itself, and does where this fails."""
    try:
        device.prepare([kernel_call(call) for call in calls])
    except OstinatoError:
        return  # the call whose kernel it is will say why


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
