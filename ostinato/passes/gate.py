"""The gate at the end: the graph is what the planner may lower.

Checked here, apart from the verifier and from selection: every node but views names exactly one row of the target, and no layout conversion hides in one (a row
writes or reads another order only where it declares that order). Everything found is reported together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ostinato.ir.errors import BackendError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import NATURAL, Impl, Target
from ostinato.ir.types import TensorType

__all__ = ["Gate"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Every node has exactly one implementation, and no layout conversion hides in one."""

    name: ClassVar[str] = "gate"
    requires: ClassVar[tuple[str, ...]] = ("laid_out", "selected")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = False

    def apply(self, graph: Graph, target: Target) -> Graph:
        """The graph itself. Raises `BackendError` with all that was found."""
        count = Counter((row.op, row.name) for row in target.rows)
        rows = {(row.op, row.name): row for row in target.rows}
        problems: list[str] = []
        for node in graph.nodes:
            if OP[node.op].is_view:
                problems += [f"view %{node.name} names row {node.impl}"] if node.impl is not None else []
            elif node.impl is None or count[node.op, node.impl] != 1:
                found = "no row" if node.impl is None else f"{count[node.op, node.impl]} rows called {node.impl}"
                problems.append(
                    f"%{node.name} = {node.op} must have exactly one implementation on {target.name}, found {found}"
                )
            else:
                problems += _undeclared_layouts(graph, node, rows[node.op, node.impl])
        problems += [f"%{name} has no layout" for name, tensor in graph.types.items() if tensor.layout is None]
        if problems:
            raise BackendError(
                f"@{graph.name} cannot be lowered to {target.name}\n  " + "\n  ".join(problems),
                hint="run assign_layout and select_impl last",
            )
        return graph


def _undeclared_layouts(graph: Graph, node: Node, row: Impl) -> Iterator[str]:
    for name, tensor in _named_types(graph, node):
        declared = row.layouts_of(name)
        lies_so = NATURAL in declared if tensor.is_natural else tensor.layout in declared
        if not lies_so and not (name in row.strided and not tensor.is_packed):
            found = "the natural layout only" if declared == (NATURAL,) else " or ".join(declared)
            yield f"%{node.name} = {row.identity}: {name} is {tensor}, the row declares {found}"


def _named_types(graph: Graph, node: Node) -> Iterator[tuple[str, TensorType]]:
    opdef = OP[node.op]
    for spec, operand in zip(opdef.operands, node.operands, strict=False):
        if operand is not None:
            yield spec.name, graph.types[operand]
    for index, value in enumerate(node.results):
        yield opdef.result_name(index), value.type
