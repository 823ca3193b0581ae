"""What stands around a projection becomes part of it: a bias and a residual that are added to its result, and the RMSNorm of its input.

Each of them spares a pass over memory and a launch. The sums are taken before the result is rounded, and the normalised input is never rounded at all, so
that the results differ in their last places. A norm goes only where all of its readers are projections that take it: otherwise it is there anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ostinato.ir.graph import Attributes, Graph, Node, trimmed
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.passes.choice import RowChoice
from ostinato.passes.levels import Levels
from ostinato.passes.rewrite import infers, overwritten_values, replace_nodes, result_dtype, sole_reader

__all__ = ["FuseBias", "FuseNorm", "FuseResidual"]


@dataclass(frozen=True, slots=True)
class FuseBias:
    """`add_bias(linear(x, weight), bias)` is `linear(x, weight, bias)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_bias"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        return _fused_sums(graph, Levels(graph, target, self.choice), "add_bias", "bias")


@dataclass(frozen=True, slots=True)
class FuseResidual:
    """`add(a, linear(x, weight))` is `linear(x, weight, residual=a)`, where no level is lost."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_residual"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        return _fused_sums(graph, Levels(graph, target, self.choice), "add", "residual")


def _fused_sums(graph: Graph, levels: Levels, op: str, operand: str) -> Graph:
    """Sums of that operator with the result of a linear as its `operand`; the node stands where the sum stood and has its name."""
    overwritten = overwritten_values(graph)
    replaced: dict[str, Node | None] = {}
    for node in graph.nodes:
        if node.op != op:
            continue
        first, second = node.operands
        for made, added in ((second, first), (first, second)) if op == "add" else ((first, second),):
            linear = graph.producers.get(made or "")
            if linear is None or linear.op != "linear" or linear.name in replaced or made == added:
                continue
            if not sole_reader(graph, linear.name, node) or linear.operands[0] in overwritten:
                continue
            fused = _with_operand(linear, operand, added)
            if fused is None:
                continue
            result = node.results[0].type
            attrs = Attributes({**linear.attrs, "axis": result.axes[-1]})
            fused = replace(fused, results=node.results, attrs=attrs, location=node.location)
            if infers(fused, graph.types) and levels.allow(fused, (linear,), also=(node,)):
                replaced.update({linear.name: None, node.name: fused})
                break
    return replace_nodes(graph, replaced, {})


def _with_operand(node: Node, operand: str, name: str | None) -> Node | None:
    """The node with an optional operand that it does not have, None where it has it or its operator knows none of that name."""
    specs = [spec.name for spec in OP[node.op].operands]
    if operand not in specs:
        return None
    place = specs.index(operand)
    operands = [*node.operands, *([None] * (len(specs) - len(node.operands)))]
    if operands[place] is not None:
        return None
    operands[place] = name
    return replace(node, operands=trimmed(operands))


@dataclass(frozen=True, slots=True)
class FuseNorm:
    """Projections of `rms_norm(x, gain)` are projections of x with this gain, where all of its readers are such and lose no level."""

    choice: RowChoice = field(default_factory=RowChoice)

    name: ClassVar[str] = "fuse_norm"
    requires: ClassVar[tuple[str, ...]] = ("bound", "canonical", "precision")
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        levels = Levels(graph, target, self.choice)
        overwritten = overwritten_values(graph)
        replaced: dict[str, Node | None] = {}
        for node in graph.nodes:
            if node.op != "rms_norm" or node.name in graph.outputs or node.operands[0] in overwritten:
                continue
            readers = graph.users.get(node.name, ())
            fused = [_normed(graph, reader, node) for reader in readers]
            whole = [
                new
                for new, old in zip(fused, readers, strict=True)
                if new is not None and infers(new, graph.types) and levels.allow(new, (old,), also=(node,))
            ]
            if readers and len(whole) == len(readers):
                replaced.update({new.name: new for new in whole})
                replaced[node.name] = None
        return replace_nodes(graph, replaced, {})


def _is_packable(graph: Graph, reader: Node) -> bool:
    """Whether all that read the weight of a projection read it as one: rows with a norm want it packed, which a product of gradients cannot read."""
    name = reader.operands[1]
    readers = graph.users.get(name or "", ())
    named = (zip(OP[other.op].operands, other.operands, strict=False) for other in readers)
    return all(spec.name == "weight" or operand != name for pairs in named for spec, operand in pairs)


def _normed(graph: Graph, reader: Node, norm: Node) -> Node | None:
    """The reader with the norm of its x inside, None where it has none."""
    if reader.operands[0] != norm.name or reader.operands.count(norm.name) != 1:
        return None
    fused = _with_operand(reader, "gain", norm.operands[1])
    if fused is None or not _is_packable(graph, reader):
        return None
    x = norm.operands[0]
    attrs = {**reader.attrs, "eps": norm.attrs["eps"]}
    attrs["dtype"] = result_dtype(graph.types[x or ""], reader.results[0].type)
    return replace(fused, operands=(x, *fused.operands[1:]), attrs=Attributes(attrs))
