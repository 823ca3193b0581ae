"""Which implementation rows may serve a node, and in which order they are tried.

Layout assignment and selection share this, so that a layout is never assigned for a row that selection would not try. The order is the target's
(`Target.ranked`). A rule by hand never falls back: a name, a row or a level that does not exist is a `ConfigError` that says what does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Impl, Level, Target

__all__ = ["Candidates", "RowChoice"]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Rules by hand. `forced`: (operator or node, row or level): nothing else may serve it; a later rule for a name replaces an earlier one, and a node's
    own comes before its operator's. `limits`: (operator or "*", highest level allowed) where nothing is forced.
    """

    forced: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, Level], ...] = ()

    def and_forced(self, rules: Any) -> RowChoice:
        """These rules and more forced ones, a mapping from names to rows or levels (None: no more); raises `ConfigError` for anything else."""
        if rules is None:
            return self
        if not isinstance(rules, Mapping):
            raise ConfigError(
                f"levels are {rules!r}, expected a mapping", hint='write like {"linear": "host", "rms_norm": "tuned"}'
            )
        pairs = [(where, row.name.lower() if isinstance(row, Level) else row) for where, row in rules.items()]
        for pair in pairs:
            if not all(isinstance(item, str) for item in pair):
                raise ConfigError(f"levels have {pair!r}, expected an operator or node and a row or level, as text")
        return RowChoice((*self.forced, *pairs), self.limits)

    def __str__(self) -> str:
        entries = [f"{where}@{row}" for where, row in self.forced] + [
            f"{where}<={level.name.lower()}" for where, level in self.limits
        ]
        return f"[{', '.join(entries)}]"


class Candidates:
    """The rows of one target in order of preference, by operator; filtered for a node by a `RowChoice`.

    Raises `ConfigError` for rules about an operator whose row or level does not exist.
    """

    def __init__(self, target: Target, choice: RowChoice) -> None:
        self._target = target
        self._forced: Mapping[str, str] = dict(choice.forced)
        self._limits: Mapping[str, Level] = dict(choice.limits)
        operators = dict.fromkeys(row.op for row in target.rows)
        self._rows = {op: rows for op in operators if (rows := target.ranked(op))}
        for name, wanted in self._forced.items():
            if name in self._rows:
                target.forced(name, wanted)
        if unknown := sorted(set(self._limits) - {"*", *OP}):
            raise ConfigError(f"a highest level is given for {', '.join(unknown)}", hint=self._operators())

    def of(self, op: str) -> tuple[Impl, ...]:
        """All rows of an operator in order of preference."""
        return self._rows.get(op, ())

    def allowed(self, node: Node) -> tuple[Impl, ...]:
        """The rows that may serve `node`. Raises `ConfigError` for a forced row or level that does not exist."""
        rows = self.of(node.op)
        if self._forced:
            wanted = self._wanted(node)
            if wanted is not None:
                return self._target.forced(node.op, wanted, node.name)
        if self._limits:
            limit = self._limits.get(node.op, self._limits.get("*", Level.VENDOR))
            rows = tuple(row for row in rows if row.level <= limit)
        return rows

    def refuse_unknown(self, graph: Graph) -> None:
        """Raises `ConfigError` for a forced name that is neither an operator with rows nor a node of the graph that runs."""
        nodes = {node.name: node for node in graph.nodes}
        for name in self._forced:
            if name in self._rows or (name in nodes and not OP[nodes[name].op].is_view):
                continue
            what = "a view, which runs nothing" if name in OP or name in nodes else "no operator and no node"
            running = [node.name for node in graph.nodes if not OP[node.op].is_view]
            alike = get_close_matches(name, [*self._rows, *running], _SHOWN) or running[:_SHOWN]
            raise ConfigError(
                f"a row is forced for {name!r}, which is {what} of @{graph.name}",
                hint=f"{self._operators()}; nodes and operators of like name: {', '.join(alike) or 'none'}",
            )

    def left_out(self, node: Node, row: Impl) -> str:
        """Why `row` is not among the allowed ones."""
        wanted = self._wanted(node)
        if wanted is None:
            return f"level {row.level.name.lower()} is above the level allowed"
        names = {candidate.name for candidate in self.of(node.op)}
        return f"{'row' if wanted in names else 'level'} {wanted} is forced"

    def _wanted(self, node: Node) -> str | None:
        return self._forced.get(node.name, self._forced.get(node.op))

    def _operators(self) -> str:
        return f"operators: {', '.join(sorted(self._rows))}"
