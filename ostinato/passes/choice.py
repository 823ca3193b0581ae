"""Which implementation rows may serve a node, and in which order they are tried.

Layout assignment and selection share this, so that a layout is never assigned for a row that selection would not try. Order: higher level, then higher
priority, then the order of the target's table; never because a row is newest. Rows of level `reference` are the oracle and run nowhere but in the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Node
from ostinato.ir.target import Impl, Level, Target

__all__ = ["Candidates", "RowChoice"]


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Rows forced by hand: (operator or node name, row name), and the highest level allowed: (operator or "*", level). A node's own entry comes first."""

    forced: tuple[tuple[str, str], ...] = ()
    levels: tuple[tuple[str, Level], ...] = ()

    def __str__(self) -> str:
        entries = [f"{where}@{row}" for where, row in self.forced] + [
            f"{where}<={level.name.lower()}" for where, level in self.levels
        ]
        return f"[{', '.join(entries)}]"


class Candidates:
    """The rows of one target in order of preference, by operator; filtered for a node by a `RowChoice`."""

    def __init__(self, target: Target, choice: RowChoice) -> None:
        self._target = target
        self._forced: Mapping[str, str] = dict(choice.forced)
        self._levels: Mapping[str, Level] = dict(choice.levels)
        rows: dict[str, list[Impl]] = {}
        for row in target.rows:
            if row.level is not Level.REFERENCE:
                rows.setdefault(row.op, []).append(row)
        self._rows = {
            op: tuple(sorted(found, key=lambda row: (-row.level, -row.priority))) for op, found in rows.items()
        }

    def of(self, op: str) -> tuple[Impl, ...]:
        """All rows of an operator in order of preference."""
        return self._rows.get(op, ())

    def allowed(self, node: Node) -> tuple[Impl, ...]:
        """The rows that may serve `node`. Raises `ConfigError` for a forced row that does not exist."""
        rows = self.of(node.op)
        if self._levels:
            limit = self._levels.get(node.op, self._levels.get("*", Level.VENDOR))
            rows = tuple(row for row in rows if row.level <= limit)
        if self._forced:
            wanted = self._forced.get(node.name, self._forced.get(node.op))
            if wanted is not None:
                return (self._forced_row(node, wanted),)
        return rows

    def _forced_row(self, node: Node, wanted: str) -> Impl:
        for row in self.of(node.op):
            if row.name == wanted:
                return row
        known = ", ".join(row.name for row in self.of(node.op)) or "none"
        raise ConfigError(
            f"forced row {node.op}@{wanted} is not among the rows of {self._target.name}",
            node=node.name,
            hint=f"rows of {node.op}: {known}",
        )

    def left_out(self, node: Node, row: Impl) -> str:
        """Why `row` is not among the allowed ones."""
        wanted = self._forced.get(node.name, self._forced.get(node.op))
        if wanted is not None:
            return f"row {wanted} is forced"
        return f"level {row.level.name.lower()} is above the level allowed"
