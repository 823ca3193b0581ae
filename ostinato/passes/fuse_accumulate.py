"""Contributions to one gradient come together in its bytes: a product that is added to something is added by the product itself, and the rows that an embedding
gives back are added to the gradient of its table where they belong.

The gradient of what several projections read is a sum of products, that of a tied head a sum of a product and of rows: each term but the first would be
written, read again and added. What is added to must be nobody else's: it is made by a node, and the sum is all that reads it. Reshapes lie between products,
which are of matrices, and gradients, which have the axes of their values; the sum moves in front of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import (
    SUMS,
    Names,
    infers,
    new_node,
    overwritten_values,
    rebuilt,
    reshape_node,
    sole_reader,
)

__all__ = ["FuseAccumulate"]

_IN_PLACE = {"matmul": "matmul_add", "embedding_backward": "embedding_backward_add"}
"""What makes a term, and what adds that term to its first operand."""


@dataclass(frozen=True, slots=True)
class FuseAccumulate:
    """Sums of a value with a product, or with the rows of an embedding, are made in the bytes of that value, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_accumulate"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        return _Sums(graph, Levels(graph, target, self.choice)).fused()


@dataclass(frozen=True, slots=True)
class _Source:
    """A value, who makes it, and the reshapes between it and a reader, outermost first; nothing else reads any of them."""

    name: str
    maker: Node
    views: tuple[Node, ...]


class _Sums:
    """The graph node by node; `made` are the rewritten makers of values so far, so that a sum of three terms is two products in the bytes of the third."""

    def __init__(self, graph: Graph, levels: Levels) -> None:
        self._graph, self._levels = graph, levels
        self._types = dict(graph.types)
        self._names = Names(graph)
        self._overwritten = overwritten_values(graph)
        self._made: dict[str, Node] = {}
        self._gone: set[str] = set()

    def fused(self) -> Graph:
        nodes: list[Node] = []
        for node in self._graph.nodes:
            found = next(self._candidates(node), [node]) if node.op in SUMS else [node]
            nodes += found
            self._made.update((value.name, new) for new in found for value in new.results)
        return rebuilt(self._graph, [node for node in nodes if node.name not in self._gone])

    def _candidates(self, total: Node) -> Iterator[list[Node]]:
        """What a sum may become, best first."""
        for kept, term in (total.operands, total.operands[::-1]):
            of, into = self._source(term, total), self._source(kept, total)
            if of is None or into is None or of.maker.op not in _IN_PLACE or kept == term:
                continue
            if of.maker.name in self._gone or self._overwritten.intersection(of.maker.operands):
                continue
            # the bytes of an input that is updated are not given away
            if OP[into.maker.op].must_alias and into.maker.op not in (*_IN_PLACE.values(), "accumulate"):
                continue
            made = self._in_place(total, kept or "", into, of)
            if made is not None:
                yield made

    def _source(self, name: str | None, reader: Node) -> _Source | None:
        """Where a value comes from, through reshapes; None where something else reads it on the way, or no node makes it."""
        views: list[Node] = []
        while name is not None:
            own = name not in self._graph.types or sole_reader(self._graph, name, reader)
            maker = self._made.get(name)
            if not own or maker is None:
                return None
            if maker.op != "reshape":
                return None if OP[maker.op].is_view else _Source(name, maker, tuple(views))
            views.append(maker)
            name, reader = maker.operands[0], maker
        return None

    def _in_place(self, total: Node, kept: str, into: _Source, of: _Source) -> list[Node] | None:
        """The sum as a term that is added to what is kept, with reshapes in front and behind where the shapes differ."""
        term = self._types[of.name]
        if term.dtype is not DType.F32 or not term.is_static or not term.elements:
            return None
        chain = [kept, *(view.operands[0] or "" for view in into.views)]
        place = next((name for name in chain if self._types[name].shape == term.shape), None)
        before: list[Node] = []
        if place is None:
            place = self._names.unique(f"{total.name}.rows")
            like = self._types[kept]
            rows = Value(place, TensorType(term.shape, like.dtype, ("",) * term.rank))
            before.append(reshape_node(kept, rows, total.location))
            self._types[place] = rows.type
        wanted, found = total.results[0], self._types[place]
        result = wanted if wanted.type == found else Value(self._names.unique(f"{total.name}.sum"), found)
        attrs = {key: value for key, value in of.maker.attrs.items() if key not in ("dtype", "rows")}
        fused = new_node(_IN_PLACE[of.maker.op], (place, *of.maker.operands), (result,), attrs, total.location)
        self._types[result.name] = found
        gone = [of.maker, *of.views, *([] if before else into.views[: chain.index(place)])]
        if not infers(fused, self._types) or not self._levels.allow(fused, (of.maker,), self._types, (total, *gone)):
            return None
        self._gone.update(node.name for node in gone)
        return [*before, fused, *([] if result is wanted else [reshape_node(result.name, wanted, total.location)])]
