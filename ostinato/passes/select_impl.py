"""Gives every node but views its implementation row: the first in order of preference that takes the node as it stands and is known to be right.

Every decision is a value, with the records that it rests on and every rejected row with the reason against it (`ir/decision.py`). A node that no row takes is
an error that lists all its reasons; the errors of all nodes are reported together. Nothing falls back to another device or level unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.decision import Decision, Rejection
from ostinato.ir.errors import BackendError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.views import ViewTable, call_site
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
            found = candidates.decide(call_site(graph, node, storage))
            if not isinstance(found, Decision):
                failures.append(_failure(node, target, found))
                continue
            decisions[node.name] = found
            nodes.append(node if node.impl == found.row else replace(node, impl=found.row))
        if failures:
            raise BackendError(
                f"{len(failures)} nodes of @{graph.name} have no implementation on {target.name}\n"
                + "\n".join(failures),
                hint="change the dtype or the shape named above, allow more rows (levels, policy), or validate those that have no record: "
                "`ostinato evidence validate`",
            )
        return rebuilt(graph, nodes), decisions


def _failure(node: Node, target: Target, rejected: tuple[Rejection, ...]) -> str:
    where = f" at {node.location}" if node.location is not None else ""
    reasons = (
        "\n".join(f"    {found.row}: {found.text}" for found in rejected)
        or f"    {target.name} has no row for {node.op}"
    )
    return f"  %{node.name} = {node.op}{where}\n{reasons}"
