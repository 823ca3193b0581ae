"""What the checker works out anew about a graph: where the bytes of each value lie, and what each operand of a node's step must be.

Part of the proof: written apart from the planner, from the graph, the operator table and the implementation rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import WORKSPACE
from ostinato.ir.target import Impl
from ostinato.ir.views import StorageView, extent_input

__all__ = ["Fact", "Use", "facts_of", "uses_of"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A value's bytes: `size` of them from byte `offset` of the value `content` (itself, or what it is a view of).

    Its storage, the aligned one, begins `anchor` bytes before it.
    """

    content: str
    offset: int
    size: int
    anchor: int
    dense: bool


def facts_of(graph: Graph, ops: Mapping[str, OpDef], views: Mapping[str, StorageView]) -> dict[str, Fact]:
    """The bytes of every value of a graph."""
    content = {item.value.name: item.value.name for item in graph.inputs}
    for node in graph.nodes:
        viewed = next(name for name in node.operands if name is not None) if ops[node.op].is_view else None
        content.update({value.name: content[viewed] if viewed else value.name for value in node.results})
    facts: dict[str, Fact] = {}
    for name, view in views.items():
        tensor = graph.types[name]
        natural = view.contiguous and tensor.is_natural
        dense = tensor.is_packed or natural or view.strides == tensor.strides
        size = tensor.nbytes
        if not dense and size:
            assert view.strides is not None
            last = sum((extent - 1) * stride for extent, stride in zip(tensor.static_shape, view.strides, strict=True))
            size = tensor.dtype.nbytes(last + 1)
        anchor = tensor.dtype.nbytes(view.offset)
        start = anchor - graph.types[content[name]].dtype.nbytes(views[content[name]].offset)
        facts[name] = Fact(content[name], start, size, anchor, dense)
    return facts


@dataclass(frozen=True, slots=True)
class Use:
    """What one kernel operand must be: value, schema name, the value it reads, the value its bytes hold afterwards; `updates`: written by must-alias.

    Its `size` bytes lie `anchor` bytes after an aligned address.
    """

    value: str
    name: str
    size: int
    anchor: int
    reads: str | None
    becomes: str | None
    updates: bool = False

    @property
    def writes(self) -> bool:
        return self.becomes is not None or self.value == WORKSPACE


def uses_of(
    graph: Graph, node: Node, row: Impl, workspace: int, facts: Mapping[str, Fact], ops: Mapping[str, OpDef]
) -> tuple[list[Use | None], list[str]]:
    """The row's operand list with this node's values (None: absent), and what the row leaves out or names wrongly."""

    def use(value: str, name: str, reads: str | None, becomes: str | None, *, updates: bool = False) -> Use:
        return Use(value, name, facts[value].size, facts[value].anchor, reads, becomes, updates)

    opdef = ops[node.op]
    operands = {s.name: v for s, v in zip(opdef.operands, node.operands, strict=False) if v is not None}
    variadic = opdef.results[-1].removesuffix("*") if opdef.results[-1].endswith("*") else None
    fixed = len(opdef.results) - (variadic is not None)
    results = {
        opdef.results[i] if i < fixed else f"{variadic}{i - fixed}": value.name for i, value in enumerate(node.results)
    }
    result_names = list(results)
    source_of = {result_names[r]: opdef.operands[o].name for r, o in opdef.aliased(node.operands)}
    result_of = {source: result for result, source in source_of.items()}
    absent = {spec.name for spec in opdef.operands} | {"count", "-"}
    uses: list[Use | None] = []
    problems: list[str] = []
    for name in row.operands:
        found: Use | None = None
        if name in operands:
            becomes = results[result_of[name]] if name in result_of else None
            found = use(operands[name], name, operands[name], becomes, updates=name in result_of)
        elif name in results:
            source = source_of.get(name, "")  # the kernel sees the shared bytes once: read here if not there
            reads = None if source in row.operands else operands.get(source)
            found = use(results[name], name, reads, results[name], updates=name in source_of)
        elif name == "workspace":
            found = Use(WORKSPACE, name, workspace, 0, None, None)
        elif name == "count" and (count := extent_input(graph, node, ops=ops)) is not None:
            found = use(count, name, count, None)
        elif name not in absent and not (variadic is not None and name.removeprefix(variadic).isdigit()):
            problems.append(f"row {row.identity} names {name}, which {opdef.name} does not have")
        uses.append(found)
    twins = source_of | result_of
    for name, value in (*operands.items(), *results.items()):
        if name not in row.operands and twins.get(name) not in row.operands:
            problems.append(f"row {row.identity} takes no {name}, but the node has %{value}")
    if workspace and "workspace" not in row.operands:
        problems.append(f"row {row.identity} needs {workspace} bytes of workspace and has no operand for it")
    return uses, problems
