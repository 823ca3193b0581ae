"""What became of the nodes of the traced graph: for every value, the nodes that it was made by before passes fused, replaced or split them.

Passes say nothing for it. After each of them the two graphs are compared: a new node stands for all that lay between its results and its operands before, and
names of results are kept by passes. So user passes are followed too.
"""

from __future__ import annotations

from ostinato.ir.decision import Origin
from ostinato.ir.graph import Graph, Node

__all__ = ["Origins"]


class Origins:
    """Origins of the values of a graph as passes change it."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Origin]] = {}

    def follow(self, before: Graph, after: Graph) -> None:
        """Takes account of one pass."""
        if after is before:
            return
        changed: dict[str, dict[str, Origin]] = {}
        for node in after.nodes:
            if before.producers.get(node.name) is not node:
                for value in node.results:
                    changed[value.name] = self._between(value.name, node, before, after)
        self._of.update(changed)

    def of(self, node: Node) -> tuple[Origin, ...]:
        """The nodes that one was made of, in the order in which they are met; none where it is what it was from the start, or wholly new."""
        found: dict[str, Origin] = {}
        for value in node.results:
            found.update(self._of.get(value.name, {}))
        same = [origin for origin in found.values() if (origin.name, origin.op) == (node.name, node.op)]
        return () if len(same) == len(found) else tuple(found.values())

    def _between(self, name: str, node: Node, before: Graph, after: Graph) -> dict[str, Origin]:
        """Origins of all that led to a value before and is no value of the new graph, as far back as the new node's operands."""
        found: dict[str, Origin] = {}
        pending, seen = [name], {name}
        while pending:
            value = pending.pop()
            producer = before.producers.get(value)
            if producer is None:
                continue
            known = self._of.get(value)
            found.update(known or {producer.name: Origin(producer.name, producer.op, producer.location)})
            for operand in producer.operands:
                if operand is None or operand in after.types or operand in node.operands or operand in seen:
                    continue
                seen.add(operand)
                pending.append(operand)
        return found
