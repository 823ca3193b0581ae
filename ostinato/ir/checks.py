"""Checks of plain values that users hand over: numbers and names of options, which Python does not type.

Integers may be numpy's; they come back as plain ones, since plans and kernels take nothing else. Nothing is rounded, parsed from text (but for `byte_count`) or
taken from a bool.
Whatever is handed over, the message can be written: a value without a text of its own is told by its type.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable
from decimal import Decimal
from types import UnionType
from typing import TypeVar

from ostinato.ir.errors import ConfigError, OstinatoError

__all__ = ["boolean", "byte_count", "instance", "integer", "integers", "is_integer", "real", "several", "shown"]

_T = TypeVar("_T")

_BYTE_COUNT = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)

_SHORT, _LONG = 200, 2000
_WIDEST = 128
"""Bits of the largest integer that is one: addresses, sizes and seeds have 64, and products of sizes still have a text."""


def shown(value: object) -> str:
    """The text of a value in a message, cut where it is long; its type where it has none (a number of thousands of digits, a class that raises)."""
    try:
        text = repr(value)
        return text if len(text) <= _LONG else f"{text[:_LONG]}..."
    except Exception:
        return f"a {type(value).__name__} without text"


def boolean(value: object, what: str) -> bool:
    """`value` as it is; raises `ConfigError`, naming `what`, for anything but True and False: "no" would be taken for True."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} is {shown(value)}, expected True or False")
    return value


def instance(value: _T | None, kind: type[_T], what: str) -> _T | None:
    """An optional argument as it is; raises `ConfigError`, naming `what`, unless it is of that class or None."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{what} is {shown(value)}, expected a {kind.__name__}", hint="leave it out for the default")
    return value


def is_integer(value: object) -> bool:
    """True for one integer, Python's or numpy's; a bool is none, and neither is an array of dimensions."""
    return not isinstance(value, bool) and hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0


def integer(
    value: object,
    what: str,
    *,
    low: int | None = None,
    high: int | None = None,
    error: type[OstinatoError] = ConfigError,
) -> int:
    """`value` as a plain int in [low, high]; raises `error`, naming `what`, for anything else."""
    bounds = "an integer" + (f" of {low} or more" if high is None and low is not None else "")
    if high is not None:
        bounds = f"an integer in [{low}, {high}]" if low is not None else f"an integer of at most {high}"
    try:
        number = value.__index__() if is_integer(value) else None  # type: ignore[attr-defined]
    except (TypeError, ValueError, RuntimeError):  # arrays of floats and tensors without values have the method too
        number = None
    if number is None or number.bit_length() > _WIDEST:
        raise error(f"{what} is {shown(value)} of type {type(value).__name__}, expected {bounds}")
    if (low is not None and number < low) or (high is not None and number > high):
        raise error(f"{what} is {number}, expected {bounds}")
    return int(number)


def byte_count(value: object, what: str) -> int:
    """A number of bytes: an integer, or a text such as "512M", "1.5 GiB" or "100 kB" (K, M, G, T and KiB, ... are powers of 1024, kB, ... of 1000).

    Part of a byte is left out. Raises `ConfigError`, naming `what`, for anything else.
    """
    if not isinstance(value, str):
        return integer(value, what, low=0)
    found = _BYTE_COUNT.fullmatch(value.strip())
    if found is None:
        raise ConfigError(
            f"{what} is {shown(value)}, expected a number of bytes", hint='for example "512M" or "1.5GiB"'
        )
    number, letter, unit = found.groups()
    base = 1000 if unit in ("b", "B") else 1024
    return int(Decimal(number) * base ** " kmgt".index((letter or " ").lower()))


def integers(
    values: object, what: str, *, low: int | None = None, error: type[OstinatoError] = ConfigError
) -> tuple[int, ...]:
    """The items of a collection as plain integers; raises `error`, naming `what`, for anything else."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes) or getattr(values, "ndim", 1) != 1:
        raise error(f"{what} is {values!r} of type {type(values).__name__}, expected a list of integers")
    return tuple(integer(item, f"{what}[{index}]", low=low, error=error) for index, item in enumerate(values))


def several(values: object, kind: type[_T] | UnionType, what: str) -> tuple[_T, ...]:
    """The items of a collection; raises `ConfigError`, naming `what`, for a text, which is a collection of letters, and for items of another kind."""
    items = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else None
    if items is None or not all(isinstance(item, kind) for item in items):
        raise ConfigError(f"expected a list of {what}, found {shown(values)[:_SHORT]}")
    return items


def real(value: object, what: str, *, error: type[OstinatoError] = ConfigError) -> float:
    """`value` as a plain float; raises `error`, naming `what`, for anything but a real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise error(f"{what} is {shown(value)} of type {type(value).__name__}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise error(f"{what} is {shown(value)}, more than a double holds") from None
