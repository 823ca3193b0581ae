"""What stands beside a joint product is made for all of its columns by one node, in training.

Forward, q and k are turned and all three of q, k and v rounded on their way from their joint product to attention: `rope_split_half_joint`. Backward, gradients
that would be put side by side for the joint product are written there in the first place: those of the three heads (`rope_split_half_joint_backward`), and
those of gate and up (`swiglu_joint_backward`). Left alone: parts that something else reads too, heads in another order, and a rotation that nobody rounds,
which attention reads where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infers, new_node, replace_nodes, result_dtype, sole_reader

__all__ = ["FuseJoint"]

_Fusion = tuple[str, Node, tuple[Node, ...], tuple[Node, ...]]
"""The node whose place the fused one takes, by name; the fused one; the heavy nodes that go; the others that go."""


@dataclass(frozen=True, slots=True)
class FuseJoint:
    """Rotations between a joint product and attention, and gradients side by side, are one node for all columns, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_joint"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node | None] = {}
        for place, fused, heavy, others in _fusions(graph):
            gone = {node.name for node in (*heavy, *others)}
            if gone.isdisjoint(replaced) and infers(fused, graph.types) and levels.allow(fused, heavy, also=others):
                replaced.update(dict.fromkeys(gone))
                replaced[place] = fused
        return replace_nodes(graph, replaced, {})


def _fusions(graph: Graph) -> Iterator[_Fusion]:
    index = {value.name: place for place, node in enumerate(graph.nodes) for value in node.results}
    for node in graph.nodes:
        if node.op == "attention_causal":
            found = _rotated(graph, node, index)
        elif node.op == "concat" and node.attrs["axis"] == node.results[0].type.rank - 1:
            found = _turned_back(graph, node) if len(node.operands) == 3 else _activated_back(graph, node)
        else:
            found = None
        if found is not None:
            yield found


def _rotated(graph: Graph, attention: Node, index: Mapping[str, int]) -> _Fusion | None:
    """q and k as rounded rotations of columns of one product, and v as its rounded columns behind them."""
    casts = [graph.producers.get(name or "") for name in attention.operands[:3]]
    if any(cast is None or cast.op != "cast" for cast in casts) or len({cast.name for cast in casts if cast}) < 3:
        return None
    made = [cast for cast in casts if cast is not None]
    turns = [graph.producers.get(cast.operands[0] or "") for cast in made[:2]]
    ropes = [rope for rope in turns if rope is not None and rope.op == "rope_split_half"]
    if len(ropes) < 2 or ropes[0].operands[1:] != ropes[1].operands[1:]:
        return None
    if not all(sole_reader(graph, rope.name, cast) for rope, cast in zip(ropes, made[:2], strict=True)):
        return None
    first = 0
    joint = ""
    for name in (ropes[0].operands[0], ropes[1].operands[0], made[2].operands[0]):
        found = _columns(graph, name or "")
        if found is None or found[1] != first or joint not in ("", found[0]):
            return None
        joint, first = found[0], found[2]
    x = graph.types[joint]
    place = min(made, key=lambda cast: index[cast.name])
    tables = ropes[0].operands[1:]
    if first != x.shape[-1] or any(index.get(name or "", -1) > index[place.name] for name in (joint, *tables)):
        return None
    q, k, v = (cast.results[0] for cast in made)
    attrs: dict[str, Attr] = {
        "heads": q.type.static_shape[-2],
        "groups": k.type.static_shape[-2],
        "dtype": result_dtype(x, q.type),
    }
    fused = new_node("rope_split_half_joint", (joint, *tables), (q, k, v), attrs, ropes[0].location)
    return place.name, fused, tuple(ropes), tuple(made)


def _columns(graph: Graph, name: str) -> tuple[str, int, int] | None:
    """Of which value that is a run of columns as heads, from where to where."""
    heads = graph.types[name]
    while (node := graph.producers.get(name)) is not None and node.op == "reshape":
        name = node.operands[0] or ""
    if node is None or node.op != "slice" or node.attrs["step"] != 1:
        return None
    source = graph.types[node.operands[0] or ""]
    start, stop = node.attrs["start"], node.attrs["stop"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    if node.attrs["axis"] != source.rank - 1 or source.shape[:-1] != heads.shape[:-2]:
        return None
    return node.operands[0] or "", start, stop


def _turned_back(graph: Graph, concat: Node) -> _Fusion | None:
    """The gradients of q and k turned back, and that of v, side by side."""
    turned: list[Node] = []
    views: list[Node] = []
    for name in concat.operands[:2]:
        chain = _made(graph, name or "", concat)
        if chain is None or chain[0].op != "rope_split_half_backward":
            return None
        turned.append(chain[0])
        views += chain[1:]
    of_v = _of_heads(graph, concat.operands[2] or "", concat)
    q, k = turned
    if of_v is None or q.operands[1:] != k.operands[1:] or any(_dtype(node) != _dtype(concat) for node in turned):
        return None
    operands = (q.operands[0], k.operands[0], of_v[0], *q.operands[1:])
    attrs = {"dtype": result_dtype(graph.types[of_v[0]], concat.results[0].type)}
    fused = new_node("rope_split_half_joint_backward", operands, concat.results, attrs, concat.location)
    return concat.name, fused, (q, k), (*views, *of_v[1], concat)


def _activated_back(graph: Graph, concat: Node) -> _Fusion | None:
    """The gradients of gate and up side by side."""
    node = graph.producers.get(concat.operands[0] or "")
    if node is None or node.op != "swiglu_backward" or concat.operands != tuple(value.name for value in node.results):
        return None
    if not all(sole_reader(graph, value.name, concat) for value in node.results):
        return None
    attrs = {"dtype": node.attrs["dtype"]}
    fused = new_node("swiglu_joint_backward", node.operands, concat.results, attrs, node.location)
    return concat.name, fused, (node,), (concat,)


def _made(graph: Graph, name: str, reader: Node) -> list[Node] | None:
    """The node that makes a value and the views between them, each with one reader."""
    found: list[Node] = []
    while (node := graph.producers.get(name)) is not None and sole_reader(graph, name, reader):
        found.insert(0, node)
        if not OP[node.op].is_view:
            return found
        name, reader = node.operands[0] or "", node
    return None


def _of_heads(graph: Graph, name: str, reader: Node) -> tuple[str, list[Node]] | None:
    """The float32 heads that a part of the columns is a view of, or a rounded view; and the nodes between, each with one reader."""
    heads = graph.types[name].rank + 1
    between: list[Node] = []
    while graph.types[name].rank < heads or graph.types[name].dtype is not DType.F32:
        node = graph.producers.get(name)
        if node is None or node.op not in ("reshape", "cast") or not sole_reader(graph, name, reader):
            return None
        between.append(node)
        name, reader = node.operands[0] or "", node
    return name, between


def _dtype(node: Node) -> DType:
    tensor: TensorType = node.results[0].type
    return tensor.dtype
