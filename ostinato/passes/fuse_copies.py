"""A value that is read in float32 and rounded as well is written in both dtypes by who makes it.

In a backward pass under bf16 that is the gradient of the residual stream, which the next norm's backward adds and a product reads rounded, and that of a
projection with a bias. `sink_casts` has what is only read rounded. Left alone: values of nodes that have no second dtype to write, and a second such cast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infers, replace_nodes, with_attr

__all__ = ["FuseCopies"]


@dataclass(frozen=True, slots=True)
class FuseCopies:
    """A cast of what a node makes that can write a copy is a further result of that node, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_copies"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        for cast in graph.nodes:
            maker = graph.producers.get(cast.operands[0] or "") if cast.op == "cast" else None
            if maker is None or maker.name in replaced or cast.operands[0] != maker.name:
                continue
            if not any(spec.name == "copy" for spec in OP[maker.op].attrs) or maker.attrs["copy"]:
                continue
            copying = replace(with_attr(maker, "copy", cast.attrs["dtype"]), results=(*maker.results, *cast.results))
            if infers(copying, graph.types) and levels.allow(copying, (maker,), also=(cast,)):
                replaced.update({maker.name: copying, cast.name: None})
        return replace_nodes(graph, replaced, {})
