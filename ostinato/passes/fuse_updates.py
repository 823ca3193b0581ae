"""Updates of small parameters are one launch for several of them: `adamw_group`.

A gain or a bias has some thousand elements, and takes longer to begin with than to update. The group stands where its last member stood, so that its gradients
live until then: that is why only small ones are taken. A large gradient dies where it is complete.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.ops.optimizer_group import MOST_UPDATES, PARTS
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import new_node, overwritten_values, replace_nodes

__all__ = ["FuseUpdates"]


@dataclass(frozen=True, slots=True)
class FuseUpdates:
    """Up to `MOST_UPDATES` nodes `adamw` without mirrors, of at most `largest` bytes of gradient each, are an `adamw_group` where no level is lost."""

    largest: int = 1 << 16
    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_updates"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        if not target.rows_for("adamw_group"):
            return graph
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        for alike in self._small(graph):
            for start in range(0, len(alike), MOST_UPDATES):
                members = alike[start : start + MOST_UPDATES]
                fused = _fused(members)
                if len(members) > 1 and levels.allow(fused, members):
                    replaced.update((node.name, None) for node in members)
                    replaced[members[-1].name] = fused
        return replace_nodes(graph, replaced, {})

    def _small(self, graph: Graph) -> list[list[Node]]:
        """Updates that may share a group, in program order: nobody reads what they make, and their gradients stay what they are until the group has come."""
        overwritten = overwritten_values(graph)
        found: dict[Hashable, list[Node]] = {}
        for node in graph.nodes:
            if node.op != "adamw" or len(node.operands) != PARTS + 1:
                continue
            if any(value.name in graph.users for value in node.results) or node.operands[1] in overwritten:
                continue
            gradient, first, second = (graph.types[name or ""] for name in node.operands[1:PARTS])
            if gradient.nbytes <= self.largest:
                key = (node.operands[PARTS], node.attrs["decay"], first.dtype, second.dtype)
                found.setdefault(key, []).append(node)
        return list(found.values())


def _fused(members: list[Node]) -> Node:
    results: list[Value] = []
    operands = [members[0].operands[PARTS]]
    for node in members:
        operands += node.operands[:PARTS]
        results += node.results
    return new_node("adamw_group", operands, results, {"decay": members[0].attrs["decay"]}, members[-1].location)
