"""Casts go to where they cost nothing: the node that makes a value writes it in the dtype in which it is read.

A node whose result dtype may be chosen computes in float32 and rounds once, so writing a narrower dtype gives the bits of a cast behind it. That holds where
the value is float32 and the cast is all that reads it; views in between change their dtype with it. Casts of casts are canonicalize's.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infer, rebuilt, renamed_operands, sole_reader, with_attr, with_types

__all__ = ["SinkCasts"]


@dataclass(frozen=True, slots=True)
class SinkCasts:
    """No cast is the only reader of a float32 value that its producer could write in the cast's dtype, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "sink_casts"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        replaced: dict[str, Node] = {}
        renamed: dict[str, str] = {}
        for node in graph.nodes:
            chain = _chain(graph, node) if node.op == "cast" and node.name not in graph.outputs else []
            sunk = _sunk(graph, chain, node)
            if sunk and levels.allow(sunk[0], (chain[0],), also=(node,)):
                replaced.update((new.name, new) for new in sunk)
                renamed[node.name] = node.operands[0] or ""
        nodes = (replaced.get(node.name, node) for node in graph.nodes if node.name not in renamed)
        return rebuilt(graph, [renamed_operands(node, renamed) for node in nodes])


def _chain(graph: Graph, cast: Node) -> list[Node]:
    """The node that makes what a cast reads, and the views between them, each with no other reader; empty where there is none."""
    found: list[Node] = []
    reader = cast
    while True:
        name = reader.operands[0] or ""
        node = graph.producers.get(name)
        if node is None or not sole_reader(graph, name, reader):
            return []
        found.insert(0, node)
        if not OP[node.op].is_view:
            return found
        reader = node


def _sunk(graph: Graph, chain: list[Node], cast: Node) -> list[Node]:
    """The chain in the cast's dtype, empty where its first node cannot write this or would write other results so too."""
    chosen = chain and any(spec.name == "dtype" and spec.default is not None for spec in OP[chain[0].op].attrs)
    if not chosen or graph.types[cast.operands[0] or ""].dtype is not DType.F32:
        return []
    first = with_attr(chain[0], "dtype", cast.results[0].type.dtype.value)
    types = ChainMap[str, TensorType]({}, dict(graph.types))
    made: list[Node] = []
    for node in (first, *chain[1:]):
        try:
            found = infer(node.op, node.operands, node.attrs, types)
        except OstinatoError:
            return []
        made.append(with_types(node, [tensor.with_layout(None) for tensor in found]))
        types.update((value.name, value.type) for value in made[-1].results)
    read = chain[1].operands[0] if len(chain) > 1 else cast.operands[0]
    others = (value for value in made[0].results if value.name != read)
    fits = all(value.type == graph.types[value.name] for value in others)
    return made if fits and types[cast.operands[0] or ""] == cast.results[0].type else []
