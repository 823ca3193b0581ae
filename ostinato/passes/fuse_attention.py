"""Composed attention over whole sequences becomes the operators that read heads where they lie.

For each island of `attention_islands.py`, the first of these that fits:
- a causal one whose scores and probabilities nobody else reads is one `attention_causal`: no square of scores in memory, no repeated heads, no transposes;
- one whose context only transposes back to token-major read becomes an `attention_probability_value_bthd`, which writes there; repeated heads become grouped
  ones, which read shared keys and values with a step of zero. Where the repeated form has rows of a higher level (a vendor's product takes one step between
  heads, not groups of them), keys and values are repeated by one `repeat_gqa_kv_bthd` instead.
Whatever is left stays as it was written: repeats and copies are materialised, and counted (`copies.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError
from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.target import Level, Target
from ostinato.ir.types import TensorType
from ostinato.ir.views import ViewTable
from ostinato.passes.attention_islands import HEADS_SWAPPED, Heads, Island, find_islands
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import Names, infer, new_node, rebuilt, result_dtype

__all__ = ["FuseAttention"]


@dataclass(frozen=True, slots=True)
class FuseAttention:
    """Composed attention reads and writes heads where they lie."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_attention"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        islands = [found for found in find_islands(graph) if isinstance(found, Island)]
        if not islands:
            return graph
        rewriting = _Rewriting(graph, Levels(graph, target, self.choice))
        for island in islands:
            rewriting.take(island)
        return rebuilt(graph, [new for node in graph.nodes for new in rewriting.replaced.get(node.name, (node,))])


class _Refused(Exception):
    """A form that does not fit an island."""


class _Rewriting:
    """Nodes that stand in for others, by the name of the node whose place they take."""

    def __init__(self, graph: Graph, levels: Levels) -> None:
        self.graph, self.levels = graph, levels
        self.views = ViewTable(graph)
        self.names = Names(graph)
        self.replaced: dict[str, Sequence[Node]] = {}
        self._place = {node.name: place for place, node in enumerate(graph.nodes)}

    def take(self, island: Island) -> None:
        for form in (self._whole, self._paired, self._grouped):
            draft = _Draft(self, island)
            try:
                form(island, draft)
            except (_Refused, ShapeError, DTypeError, LayoutError):  # a type rule says no
                continue
            self.replaced.update(draft.replaced)
            return

    def _whole(self, island: Island, draft: _Draft) -> None:
        if not (island.causal and island.alone and island.readers) or island.k.repeats != island.v.repeats:
            raise _Refused
        q = draft.token_major(island.q, "BTHD")
        k, v = (draft.token_major(heads, "BTGD") for heads in (island.k, island.v))
        attrs = {"scale": island.scores.attrs["scale"]}
        attention = draft.instead("attention_causal", (q, k, v), attrs, island.context)
        if draft.level(attention) < min(Level.TUNED, self.levels.highest((island.scores, island.context))):
            raise _Refused
        draft.finish(attention)

    def _grouped(self, island: Island, draft: _Draft) -> None:
        """Products that share keys and values, where the heads of the operators are those of the island."""
        if island.k.repeats > 1:
            self._scores(island, draft, draft.head_major(island.k))
        if island.readers:
            draft.finish(self._context(island, draft, draft.as_it_lies(island.v)))
        if not draft.replaced:
            raise _Refused

    def _paired(self, island: Island, draft: _Draft) -> None:
        """Keys and values repeated together, where that gives the products rows of a higher level than sharing them does."""
        k, v = island.k, island.v
        if k.repeats != v.repeats or k.repeats == 1 or k.token_major or not v.token_major or not island.readers:
            raise _Refused
        if not all(self.views[heads.source].contiguous for heads in (k, v)):
            raise _Refused
        shared = _Draft(self, island)
        grouped = self._products(island, shared, shared.head_major(k), shared.as_it_lies(v))
        attrs: dict[str, Attr] = {"repeats": k.repeats, "name": island.softmax.results[0].type.axes[1]}
        names = [self.names.unique(f"{island.context.name}.{part}_repeated") for part in ("k", "v")]
        draft.add("repeat_gqa_kv_bthd", (k.source, v.source), attrs, island.scores, *names)
        products = self._products(island, draft, *names)
        if min(map(draft.level, products)) <= min(map(shared.level, grouped)) or self._later(v.source, island.scores):
            raise _Refused
        draft.finish(products[1])

    def _products(self, island: Island, draft: _Draft, k: str, v: str) -> tuple[Node, Node]:
        return self._scores(island, draft, k), self._context(island, draft, v)

    def _scores(self, island: Island, draft: _Draft, k: str) -> Node:
        """The scores under their name and of their type, by shared keys [B,G,S,D]."""
        attrs = {"scale": island.scores.attrs["scale"]}
        made = draft.instead("attention_scores_gqa", (island.scores.operands[0], k), attrs, island.scores)
        if made.results[0].type.with_layout(None) != island.scores.results[0].type.with_layout(None):
            raise _Refused  # other names of axes
        draft.place(island.scores)
        return made

    def _context(self, island: Island, draft: _Draft, v: str) -> Node:
        return draft.instead("attention_probability_value_bthd", (island.softmax.name, v), {}, island.context)

    def _later(self, name: str, node: Node) -> bool:
        """Whether a value is made behind a node."""
        made = self.graph.producers.get(name)
        return made is not None and self._place[made.name] > self._place[node.name]


class _Draft:
    """One island in one form: the nodes that it needs, before anything is decided."""

    def __init__(self, rewriting: _Rewriting, island: Island) -> None:
        self._in, self._island = rewriting, island
        self._types: dict[str, TensorType] = dict(rewriting.graph.types)
        self._nodes: dict[str, Node] = {}
        self._pending: list[Node] = []
        self.replaced: dict[str, Sequence[Node]] = {}

    def add(
        self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr], origin: Node, *names: str
    ) -> Node:
        """A node that `origin` asks for, with results of these names, or of one like that of `origin`."""
        types = infer(op, operands, attrs, self._types)
        results = names or (self._in.names.unique(f"{origin.name}.{op}"),)
        made = new_node(
            op, operands, [Value(*found) for found in zip(results, types, strict=True)], attrs, origin.location
        )
        self._types.update(zip(results, types, strict=True))
        self._nodes.update((name, made) for name in results)
        self._pending.append(made)
        return made

    def instead(self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr], origin: Node) -> Node:
        """A node that takes the name of `origin`, and the dtype of its result."""
        dtype = result_dtype(self._types[operands[0] or ""], origin.results[0].type)
        return self.add(op, operands, {**attrs, "dtype": dtype}, origin, origin.name)

    def place(self, origin: Node) -> None:
        """What was added since the last time stands where `origin` stood."""
        self.replaced[origin.name] = tuple(self._pending)
        self._pending = []

    def finish(self, context: Node) -> None:
        """The context's readers are what they read; where they call its axes otherwise, a reshape does, which changes nothing else."""
        readers = self._island.readers
        (value,) = context.results
        if [reader.results[0].type.with_layout(None) for reader in readers] == [value.type.with_layout(None)]:
            self._pending[-1] = replace(context, results=readers[0].results)
            self.replaced[readers[0].name] = ()
            self.place(self._island.context)
            return
        self.place(self._island.context)
        for reader in readers:
            axes = "".join(axis or "_" for axis in reader.results[0].type.axes)
            attrs: dict[str, Attr] = {"shape": reader.results[0].type.static_shape, "axes": axes}
            self.add("reshape", (context.name,), attrs, reader, reader.name)
            self.place(reader)

    def token_major(self, heads: Heads, letters: str) -> str:
        """The heads as [B,T,H,D] with these names of axes, or none."""
        swapped = letters if heads.token_major else "".join(letters[i] for i in HEADS_SWAPPED)
        name, tensor = heads.source, self._types[heads.source]
        if any(axis not in ("", letter) for axis, letter in zip(tensor.axes, swapped, strict=True)):
            if not self._in.views[name].contiguous:
                raise _Refused  # a reshape would have to copy
            attrs: dict[str, Attr] = {"shape": tensor.static_shape, "axes": swapped}
            name = self.add("reshape", (name,), attrs, self._island.context).name
        return name if heads.token_major else self._swapped(name)

    def as_it_lies(self, heads: Heads) -> str:
        """The heads as [B,T,G,D]."""
        return heads.source if heads.token_major else self._swapped(heads.source)

    def head_major(self, heads: Heads) -> str:
        """The heads as [B,G,T,D]."""
        return self._swapped(heads.source) if heads.token_major else heads.source

    def _swapped(self, name: str) -> str:
        return self.add("transpose", (name,), {"order": HEADS_SWAPPED}, self._island.context).name

    def level(self, node: Node) -> Level:
        """The level of the row that would serve a drafted node; the lowest where none would."""
        chain: dict[str, Node] = {}
        waiting = [name for name in node.operands if name is not None]
        while waiting:
            found = self._nodes.get(name := waiting.pop()) or self._in.graph.producers.get(name)
            if found is not None and OP[found.op].is_view:
                chain.pop(found.name, None)
                chain[found.name] = found  # behind all that read it
                waiting += [source for source in found.operands if source is not None]
        return self._in.levels.of(node, self._types, tuple(reversed(chain.values()))) or Level.REFERENCE
