"""Casts go to where they cost nothing: the node that makes a value writes it in the dtype in which it is read.

A node whose result dtype may be chosen computes in float32 and rounds once, so writing a narrower dtype gives the bits of a cast behind it. That holds where
the value is float32 and the cast is all that reads it; views in between change their dtype with it. Where a node has one dtype for several results, all of them
are cast, or none. A cast back to the dtype that a value had before it was widened undoes that: what lies between are then views of the value itself.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import (
    infer,
    overwritten_values,
    rebuilt,
    renamed_operands,
    sole_reader,
    with_attr,
    with_types,
)

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
        overwritten = overwritten_values(graph)
        for maker, casts in _casts_of_makers(graph):
            source = maker.operands[0] or ""
            undone = _undone(graph, maker, casts) if source not in overwritten else None
            if undone is not None:
                renamed[maker.name] = source
                made: list[Node] = undone
            else:
                made = _sunk(graph, maker, casts)
                if not made or not levels.allow(made[0], (maker,), also=tuple(casts.values())):
                    continue
            replaced.update((new.name, new) for new in made)
            for cast in casts.values():
                read = cast.operands[0] or ""
                renamed[cast.name] = renamed.get(read, read)
        nodes = (replaced.get(node.name, node) for node in graph.nodes if node.name not in renamed)
        return rebuilt(graph, [renamed_operands(node, renamed) for node in nodes])


def _casts_of_makers(graph: Graph) -> list[tuple[Node, dict[str, Node]]]:
    """Nodes whose results are cast and not read otherwise, with the cast at the end of each such result, by the result's name."""
    found: dict[str, tuple[Node, dict[str, Node]]] = {}
    for node in graph.nodes:
        chain = _chain(graph, node) if node.op == "cast" and node.name not in graph.outputs else []
        if chain:
            read = (*chain[1:], node)[0].operands[0] or ""
            found.setdefault(chain[0].name, (chain[0], {}))[1][read] = node
    return list(found.values())


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


def _sunk(graph: Graph, maker: Node, casts: Mapping[str, Node]) -> list[Node]:
    """The maker and the views behind it in the dtype of the casts, empty where it cannot write this or would write other results so too."""
    (dtype, *others) = {cast.results[0].type.dtype for cast in casts.values()}
    chosen = any(spec.name == "dtype" and spec.default is not None for spec in OP[maker.op].attrs)
    if others or not chosen or any(graph.types[name].dtype is not DType.F32 for name in casts):
        return []
    views = [node for cast in casts.values() for node in _chain(graph, cast)[1:]]
    types = ChainMap[str, TensorType]({}, dict(graph.types))
    made = _retyped((with_attr(maker, "dtype", dtype.value), *views), types)
    if not made or any(types[cast.operands[0] or ""] != cast.results[0].type for cast in casts.values()):
        return []
    kept = all(value.type == graph.types[value.name] for value in made[0].results if value.name not in casts)
    return made if kept else []


def _undone(graph: Graph, maker: Node, casts: Mapping[str, Node]) -> list[Node] | None:
    """The views between a cast that widens to float32 and the one that undoes it, as those of what was widened; None where nothing is undone."""
    (cast,) = casts.values() if maker.op == "cast" else (None,)
    if cast is None or graph.types[maker.name].dtype is not DType.F32:
        return None
    before = graph.types[maker.operands[0] or ""]
    types = ChainMap[str, TensorType]({maker.name: before}, dict(graph.types))
    views = _chain(graph, cast)[1:]
    made = _retyped(views, types)
    undone = before.dtype is not DType.F32 and types[cast.operands[0] or ""] == cast.results[0].type
    return made if undone and len(made) == len(views) else None


def _retyped(nodes: Sequence[Node], types: ChainMap[str, TensorType]) -> list[Node]:
    """The nodes with the types that follow from those of their operands, which `types` learns; empty where they do not go together."""
    made: list[Node] = []
    for node in nodes:
        try:
            found = infer(node.op, node.operands, node.attrs, types)
        except OstinatoError:
            return []
        made.append(with_types(node, [tensor.with_layout(None) for tensor in found]))
        types.update((value.name, value.type) for value in made[-1].results)
    return made
