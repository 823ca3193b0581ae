"""What else reaches the input of a norm is added by the norm's backward itself, which writes the sum instead of reading its own result once more.

That is every norm of a residual block: the gradient of the stream passes the block by, and the block's own joins it behind the norm. The fused node stands
where the norm's backward stood, so what is added has to be there by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import SUMS, infers, replace_nodes, sole_reader

__all__ = ["FuseNormBackward"]


@dataclass(frozen=True, slots=True)
class FuseNormBackward:
    """`add(g, rms_norm_backward(...))`, or of another norm, or in place, is `rms_norm_backward(..., addend=g)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_norm_backward"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        index = {value.name: place for place, node in enumerate(graph.nodes) for value in node.results}
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            if node.op not in SUMS:
                continue
            for made, added in (node.operands, node.operands[::-1]):
                norm = graph.producers.get(made or "")
                if norm is None or norm.name in replaced or not sole_reader(graph, norm.name, node):
                    continue
                fused = _with_addend(norm, added, node)
                if fused is None or index.get(added or "", -1) > index[norm.name]:
                    continue
                if infers(fused, graph.types) and levels.allow(fused, (norm,), also=(node,)):
                    replaced.update({norm.name: fused, node.name: None})
                    break
        return replace_nodes(graph, replaced, {})


def _with_addend(norm: Node, added: str | None, total: Node) -> Node | None:
    """The backward of a norm with something to add to its first result; None where it is no such operator or has an addend already."""
    specs = [spec.name for spec in OP[norm.op].operands]
    if "addend" not in specs or len(norm.operands) > specs.index("addend"):
        return None
    results = (*total.results, *norm.results[1:])
    return replace(norm, operands=(*norm.operands, added), results=results, location=norm.location)
