"""The rule of fusion: a fusion never puts a node where it would be served by a row of a lower level than the heavy nodes it replaces have.

So a prefill keeps its vendor's products beside norms and rotations of our own, and a decode step, which no vendor serves, has everything in few kernels; one
pipeline makes both. The level is that of the row which selection would take (`Candidates.best`), with the records and policies that there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Level, Target
from ostinato.ir.types import TensorType
from ostinato.ir.views import call_site
from ostinato.passes.choice import Candidates, RowChoice

__all__ = ["Levels"]


class Levels:
    """Levels of the rows that would serve nodes of a graph, each kind of call looked up once."""

    def __init__(self, graph: Graph, target: Target, choice: RowChoice) -> None:
        self._types = graph.types
        self._extents = graph.extents
        self._candidates = Candidates(target, choice)
        self._named = frozenset(name for name, _ in choice.forced if name not in OP)
        self._found: dict[Hashable, Level | None] = {}

    def of(self, node: Node, types: Mapping[str, TensorType] | None = None, views: Sequence[Node] = ()) -> Level | None:
        """The level of the row that would serve a node, None where none would, or the reference alone: nothing is fused for that.

        `types` has the operands that the graph does not have. Operands are contiguous but for those that `views`, nodes in their order, make of others.
        """
        known = self._types if types is None else types
        key = self._key(node, known, views)
        if key not in self._found:
            self._found[key] = self._level(_site(node, known, self._extents, views))
        return self._found[key]

    def allow(
        self,
        fused: Node,
        heavy: Sequence[Node],
        types: Mapping[str, TensorType] | None = None,
        also: Sequence[Node] = (),
    ) -> bool:
        """Whether `fused` may stand for nodes of the graph: for those that are `heavy`, whose level it keeps, and for those that go with them (`also`).

        A node that a rule by hand names never goes.
        """
        if self._named:
            gone = {node.name for node in (*heavy, *also)} - {fused.name}
            if gone & self._named:
                return False
        level = self.of(fused, types)
        return level is not None and level >= self.highest(heavy)

    def highest(self, nodes: Sequence[Node]) -> Level:
        """The highest level among nodes of the graph."""
        return max((self.of(node) or Level.REFERENCE for node in nodes), default=Level.REFERENCE)

    def _level(self, site: CallSite) -> Level | None:
        rows = [row for row in self._candidates.usable(site) if row.level is not Level.REFERENCE]
        strided = {OP[site.node.op].operands[index].name for index in site.strided}
        return next((row.level for row in rows if strided <= row.strided), None)

    def _key(self, node: Node, types: Mapping[str, TensorType], views: Sequence[Node]) -> Hashable:
        operands = tuple(None if name is None else types[name] for name in node.operands)
        results = tuple(value.type for value in node.results)
        name = node.name if node.name in self._named else ""
        made = [view.name for view in views]
        chain = tuple((view.op, view.attrs, view.results[0].type) for view in views)
        seen = tuple(made.index(item) if item in made else -1 for item in node.operands) if made else ()
        return node.op, node.attrs, operands, results, name, chain, seen


def _site(
    node: Node, types: Mapping[str, TensorType], extents: Sequence[tuple[str, str]], views: Sequence[Node]
) -> CallSite:
    """A node as rows see it, its operands contiguous but for those that `views` make; `types` has them, `extents` are the graph's."""
    made = {view.name for view in views}
    read = (name for item in (*views, node) for name in item.operands if name is not None and name not in made)
    inputs = tuple(GraphInput(Value(name, types[name]), Role.INPUT) for name in dict.fromkeys(read))
    return call_site(Graph("alone", inputs, (*views, node), (node.name,), tuple(extents)), node)
