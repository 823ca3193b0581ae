"""Gives every node but views its implementation row: the first in order of preference that takes the node as it stands.

Every decision is on record with all rejected rows and the reason for each. A node that no row takes is an error that lists all its reasons; the errors of all
nodes are reported together. Nothing falls back to another device or level unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.errors import BackendError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.ir.views import ViewTable, call_site, row_refusal
from ostinato.passes.base import Decision
from ostinato.passes.choice import Candidates, RowChoice
from ostinato.passes.rewrite import rebuilt

__all__ = ["SelectImpl"]


@dataclass(frozen=True, slots=True)
class SelectImpl:
    """Every node but views names exactly one row of the target."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "select_impl"
    requires: ClassVar[tuple[str, ...]] = ("laid_out",)
    ensures: ClassVar[tuple[str, ...]] = ("selected",)
    optional: ClassVar[bool] = False

    def apply(self, graph: Graph, target: Target) -> Graph:
        return self.decide(graph, target)[0]

    def decide(self, graph: Graph, target: Target) -> tuple[Graph, Mapping[str, Decision]]:
        """The graph with rows chosen, and the decision for each node by its name.

        Raises `BackendError` for nodes that no row takes, `ConfigError` for a rule by hand about an operator, node, row or level that does not exist.
        """
        candidates = Candidates(target, self.choice)
        candidates.refuse_unknown(graph)
        storage = ViewTable(graph)
        decisions: dict[str, Decision] = {}
        nodes: list[Node] = []
        failures: list[str] = []
        for node in graph.nodes:
            if OP[node.op].is_view:
                nodes.append(node)
                continue
            row, rejected = _first_that_takes(call_site(graph, node, storage), candidates)
            if row is None:
                failures.append(_failure(node, target, rejected))
                continue
            decisions[node.name] = Decision(row.name, row.level, rejected)
            nodes.append(node if node.impl == row.name else replace(node, impl=row.name))
        if failures:
            raise BackendError(
                f"{len(failures)} nodes of @{graph.name} have no implementation on {target.name}\n"
                + "\n".join(failures),
                hint="change the dtype or the shape named above, or allow more rows (levels, forced rows)",
            )
        return rebuilt(graph, nodes), decisions


def _first_that_takes(site: CallSite, candidates: Candidates) -> tuple[Impl | None, tuple[tuple[str, str], ...]]:
    node, opdef = site.node, OP[site.node.op]
    allowed = candidates.allowed(node)
    chosen: Impl | None = None
    rejected: list[tuple[str, str]] = []
    for row in candidates.of(node.op):
        if row not in allowed:
            rejected.append((row.name, candidates.left_out(node, row)))
        elif chosen is not None:
            rejected.append((row.name, f"{chosen.name} comes first"))
        elif (reason := row_refusal(row, site, opdef)) is not None:
            rejected.append((row.name, reason))
        else:
            chosen = row
    return chosen, tuple(rejected)


def _failure(node: Node, target: Target, rejected: tuple[tuple[str, str], ...]) -> str:
    where = f" at {node.location}" if node.location is not None else ""
    reasons = (
        "\n".join(f"    {row}: {reason}" for row, reason in rejected) or f"    {target.name} has no row for {node.op}"
    )
    return f"  %{node.name} = {node.op}{where}\n{reasons}"
