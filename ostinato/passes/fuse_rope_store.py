"""The rotations of a token's q and k and the store of its k and v become one node, and with the joint projection before them one node still.

Found from the store: its k is rotated, and the attention that reads the stored k rotates its q by the same tables. The node stands where the store stood, the
rotated q keeps its name. Left alone: a rotated k that something else reads too, a q that is read before the store, other pairings of elements than halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infers, new_node, overwritten_values, replace_nodes, result_dtype, sole_reader

__all__ = ["FuseQkvRopeStore", "FuseRopeStore"]


@dataclass(frozen=True, slots=True)
class FuseRopeStore:
    """`kv_store(rope_split_half(k), v)` and the `rope_split_half(q)` of its attention are `rope_store(q, k, v)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_rope_store"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        index = {value.name: i for i, node in enumerate(graph.nodes) for value in node.results}
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            turns = _turns(graph, node, index) if node.op == "kv_store" else None
            if turns is None:
                continue
            q, k = turns
            operands = (q.operands[0], k.operands[0], node.operands[1], *k.operands[1:], *node.operands[2:])
            fused = new_node("rope_store", operands, (*q.results, *node.results), {}, node.location)
            if infers(fused, graph.types) and levels.allow(fused, (q, k, node)):
                replaced.update({q.name: None, k.name: None, node.name: fused})
        return replace_nodes(graph, replaced, {})


def _turns(graph: Graph, store: Node, index: dict[str, int]) -> tuple[Node, Node] | None:
    """The rotations of q and of k that belong to a store."""
    k = graph.producers.get(store.operands[0] or "")
    if k is None or k.op != "rope_split_half" or not sole_reader(graph, k.name, store):
        return None
    here = index[store.name]
    for reader in graph.users.get(store.name, ()):
        q = graph.producers.get(reader.operands[0] or "") if reader.op == "attention_packed" else None
        if q is None or q is k or q.op != "rope_split_half" or q.operands[1:] != k.operands[1:]:
            continue
        # the node stands at the store: what it reads is there already, what reads it comes later
        known = index.get(q.operands[0] or "", -1) < here
        if known and all(index[user.name] > here for user in graph.users[q.name]):
            return q, k
    return None


@dataclass(frozen=True, slots=True)
class FuseQkvRopeStore:
    """`rope_store` of the heads of a `linear_split` is `qkv_rope_store`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_qkv_rope_store"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        overwritten = overwritten_values(graph)
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            split = _projection(graph, node) if node.op == "rope_store" else None
            if split is None or split.operands[0] in overwritten:
                continue
            fused = _fused(graph, node, split)
            if infers(fused, graph.types) and levels.allow(fused, (split, node)):
                heads = {name: None for name in node.operands[:3] if name is not None}
                replaced.update({split.name: None, **heads, node.name: fused})
        return replace_nodes(graph, replaced, {})


def _projection(graph: Graph, store: Node) -> Node | None:
    """The `linear_split` whose three results, as heads, are q, k and v of a store and nothing else."""
    found: list[Value] = []
    reader = store
    for name in store.operands[:3]:
        heads = graph.producers.get(name or "")
        if heads is None or heads.op != "reshape" or not sole_reader(graph, heads.name, reader):
            return None
        source = heads.operands[0]
        shape = heads.results[0].type.shape
        if source is None or not sole_reader(graph, source, heads):
            return None
        if len(shape) != 3 or graph.types[source].rank != 2 or graph.types[source].shape[0] != shape[0]:
            return None
        found.append(Value(source, graph.types[source]))
    split = graph.producers.get(found[0].name)
    return split if split is not None and split.op == "linear_split" and split.results == tuple(found) else None


def _fused(graph: Graph, store: Node, split: Node) -> Node:
    x, weight, bias, gain = (*split.operands, None, None)[:4]
    q = store.results[0].type
    attrs: Mapping[str, Attr] = {
        "heads": q.static_shape[1],
        "dtype": result_dtype(graph.types[x or ""], q),
        "eps": split.attrs["eps"],
    }
    operands = (x, weight, *store.operands[3:], bias, gain)
    return new_node("qkv_rope_store", operands, store.results, attrs, store.location)
