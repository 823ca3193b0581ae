"""Bias, split-half rotation and the change to head-major order become one operator.

Taken where it saves something: a bias that is a step of its own goes, and one inside a projection moves out of it where the projection then gets a row of a
higher level (a vendor's library adds no float32 bias to results in bf16). Elsewhere a projection adds its bias at no cost, and stays as it is. Narrow: whole
sequences [B,T,H,D], one reader at every step from the bias to the rotation, and readers behind it that take heads in any order: a transpose, or a node whose
row reads strided operands.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.graph import Graph, Node, Value, trimmed
from ostinato.ir.ops import OP
from ostinato.ir.target import Level, Target
from ostinato.ir.types import TensorType
from ostinato.passes.attention_islands import HEADS_SWAPPED
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import Names, infer, new_node, rebuilt, result_dtype, sole_reader

__all__ = ["FuseRopeBias"]

_ROPE, _FUSED = "rope_split_half", "rope_split_half_bias_bthd"
_BIAS = OP["linear"].place("bias")


@dataclass(frozen=True, slots=True)
class FuseRopeBias:
    """A bias in front of a rotation over whole sequences is `rope_split_half_bias_bthd`, where that saves a step or a level."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_rope_bias"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        rotations = [node for node in graph.nodes if node.op == _ROPE and node.results[0].type.rank == 4]
        if not rotations or not target.rows_for(_FUSED):
            return graph
        rewriting = _Rewriting(graph, Levels(graph, target, self.choice))
        for node in rotations:
            rewriting.take(node)
        return rebuilt(graph, [new for node in graph.nodes for new in rewriting.replaced.get(node.name, (node,))])


class _Rewriting:
    def __init__(self, graph: Graph, levels: Levels) -> None:
        self.graph, self.levels = graph, levels
        self.names = Names(graph)
        self.types: dict[str, TensorType] = dict(graph.types)
        self.replaced: dict[str, tuple[Node, ...]] = {}

    def take(self, rope: Node) -> None:
        heads = self._only(rope.operands[0], rope, "reshape")
        if heads is None or rope.name in self.graph.outputs:
            return
        projected = self.graph.producers.get(heads.operands[0] or "")
        if projected is None or not sole_reader(self.graph, projected.name, heads):
            return
        split = self._without_bias(projected)
        users = self.graph.users.get(rope.name, ())
        turned = [user for user in users if user.op == "transpose" and user.attrs["order"] == HEADS_SWAPPED]
        others = [user for user in users if user not in turned]
        if split is None or len(turned) > 1 or not users or not all(self._takes_turned(user, rope) for user in others):
            return
        source, bias, plain = split
        view = replace(heads, operands=(source,))
        operands = (heads.name, bias, *rope.operands[1:])
        attrs = {"dtype": result_dtype(self.types[heads.name], rope.results[0].type)}
        (tensor,) = infer(_FUSED, operands, attrs, self.types)
        if turned and turned[0].results[0].type.with_layout(None) != tensor:
            return
        name = turned[0].name if turned else self.names.unique(f"{rope.name}.head_major")
        fused = new_node(_FUSED, operands, [Value(name, tensor)], attrs, rope.location)
        if self._level(fused) < self._level(rope):
            return
        self.types[name] = tensor
        back = new_node("transpose", (name,), rope.results, {"order": HEADS_SWAPPED}, rope.location)
        self.replaced[projected.name] = () if plain is None else (plain,)
        self.replaced[heads.name] = (view,)
        self.replaced[rope.name] = (fused, back) if others else (fused,)
        self.replaced.update((node.name, ()) for node in turned)

    def _without_bias(self, node: Node) -> tuple[str, str, Node | None] | None:
        """What the heads are views of without their bias, the bias, and the projection without it (None: the addition alone goes)."""
        if node.op == "add_bias":
            source, bias = node.operands
            assert source is not None
            assert bias is not None
            return source, bias, None
        if node.op != "linear" or len(node.operands) <= _BIAS or (bias := node.operands[_BIAS]) is None:
            return None
        kept = [*node.operands]
        kept[_BIAS] = None
        plain = replace(node, operands=trimmed(kept))
        return (node.name, bias, plain) if self._level(plain) > self._level(node) else None

    def _only(self, name: str | None, reader: Node, op: str) -> Node | None:
        """The node of that operator which makes a value that `reader` alone reads."""
        made = self.graph.producers.get(name or "")
        return made if made is not None and made.op == op and sole_reader(self.graph, made.name, reader) else None

    def _takes_turned(self, node: Node, rope: Node) -> bool:
        """Whether a node has as good a row where it reads the rotation as a strided view."""
        if OP[node.op].is_view:
            return False
        name, order = f"{rope.name}.turned", {"order": HEADS_SWAPPED}
        (turned,) = infer("transpose", (rope.name,), order, self.types)
        back = new_node("transpose", (name,), rope.results, order, None)
        strided = self.levels.of(node, {**self.types, name: turned}, (back,))
        return strided is not None and strided >= self._level(node)

    def _level(self, node: Node) -> Level:
        return self.levels.of(node, self.types) or Level.REFERENCE
