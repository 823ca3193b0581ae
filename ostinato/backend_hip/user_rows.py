"""Implementation rows that a user adds for a while, beside the table's own."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.backend_hip.impls.reference import REFERENCE
from ostinato.ir.errors import ConfigError
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import Impl, Level

__all__ = ["add_rows", "remove_rows", "user_rows"]

_ADDED: list[Impl] = []


def add_rows(rows: Iterable[Impl]) -> None:
    """Adds rows, all or none. Raises `ConfigError` for an operator that there is not, a name that its operator has already, a kind of step that is no launch,
    and the level of the reference, which is what others are held against and is taken without a record."""
    known = {row.identity for row in (*ROWS, *HIP_ROWS, *_ADDED)}
    added = tuple(rows)
    for row in added:
        if row.op not in OP or OP[row.op].is_view:
            raise ConfigError(
                f"row {row.identity} is of {row.op}, which is no operator that runs", hint="add the operator with it"
            )
        if row.identity in known or row.name == REFERENCE:
            raise ConfigError(f"{row.op} has a row {row.name} already", hint="give yours another name")
        if row.kind is not StepKind.LAUNCH:
            raise ConfigError(
                f"row {row.identity} makes steps of kind {row.kind.value}", hint="a row launches a kernel"
            )
        if row.level is Level.REFERENCE:
            raise ConfigError(
                f"row {row.identity} is of level reference", hint="that is the operator's own; say readable, or tuned"
            )
        known.add(row.identity)
    _ADDED.extend(added)


def remove_rows(rows: Iterable[Impl]) -> None:
    """Takes out rows that were added."""
    gone = {id(row) for row in rows}
    _ADDED[:] = [row for row in _ADDED if id(row) not in gone]


def user_rows() -> tuple[Impl, ...]:
    """The rows that were added, in order."""
    return tuple(_ADDED)
