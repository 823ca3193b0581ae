"""Why values lie as they do: the rows that write and read each, as far as they ask for a layout, and where a view or a copy of it comes from.

Worked out from the lowered graph, its decisions and the rows of the target, so that it holds for whatever pass made the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ostinato.ir.decision import Decision
from ostinato.ir.explain import one_for_all_layers, unknown_name
from ostinato.ir.graph import Graph, GraphInput, Location, Node, Role, Value
from ostinato.ir.naming import matches
from ostinato.ir.ops import OP
from ostinato.ir.target import NATURAL, Impl, Target
from ostinato.ir.views import StorageView, ViewTable, call_site, row_refusal

__all__ = ["ExplainedLayout", "LayoutAnswer", "explain_layout", "row_refusals"]

COPY = "contiguous"
"""The operator that only brings the elements of a view in order."""
_READERS = 4


@dataclass(frozen=True, slots=True)
class ExplainedLayout:
    """A value of an entry: its type with its layout, who makes it ("weight", "input", ... for what no node makes), and the reasons, one a line."""

    entry: str
    name: str
    type: str
    made_by: str
    location: Location | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location is not None else ""
        return "\n".join(
            (f"{self.entry}: %{self.name}: {self.type}, {self.made_by}{where}", *(f"  {text}" for text in self.reasons))
        )


@dataclass(frozen=True, slots=True)
class LayoutAnswer:
    """The values that a question found. Prints as text, a paragraph each; layers of which the same is to be said have one."""

    values: tuple[ExplainedLayout, ...]

    def __str__(self) -> str:
        return one_for_all_layers((value.name, str(value)) for value in self.values)


def explain_layout(
    graphs: Mapping[str, Graph], decisions: Mapping[str, Mapping[str, Decision]], target: Target, pattern: object
) -> LayoutAnswer:
    """Why the values of a name or pattern lie as they do, in every entry; weights, state and other inputs have names too.

    Raises `ConfigError` for a name that finds none, with names that are like it.
    """
    text = str(pattern).removeprefix("%")
    found: list[ExplainedLayout] = []
    known: dict[str, None] = {}
    for entry, graph in graphs.items():
        reading = _Reading(entry, graph, decisions.get(entry, {}), target, ViewTable(graph))
        for value, made_by in _values(graph):
            known[value.name] = None
            if matches(text, value.name):
                found.append(reading.explained(value, made_by))
    if not found:
        raise unknown_name(pattern, known, "value")
    return LayoutAnswer(tuple(found))


def row_refusals(
    graph: Graph,
    reader: Node,
    value: str,
    strides: tuple[int, ...],
    target: Target,
    storage: Mapping[str, StorageView],
) -> Iterator[tuple[str, str]]:
    """What each row of a reader says to an operand with these strides, in order of preference: (row, why it does not take them)."""
    opdef = OP[reader.op]
    if opdef.is_view:
        yield reader.op, "no strides describe this view of elements that are not one after another"
        return
    as_it_lies = call_site(graph, reader, storage).reading({value: strides})
    for row in target.ranked(reader.op):
        yield row.name, row_refusal(row, as_it_lies, opdef) or "takes it, but another row comes first"


def _values(graph: Graph) -> Iterator[tuple[Value, GraphInput | Node]]:
    for item in graph.inputs:
        yield item.value, item
    for node in graph.nodes:
        for value in node.results:
            yield value, node


@dataclass(frozen=True, slots=True)
class _Reading:
    """A lowered graph with what was decided about its nodes."""

    entry: str
    graph: Graph
    decisions: Mapping[str, Decision]
    target: Target
    storage: ViewTable

    def explained(self, value: Value, made_by: GraphInput | Node) -> ExplainedLayout:
        if isinstance(made_by, GraphInput):
            reasons = tuple(self._input(value, made_by))
            return ExplainedLayout(self.entry, value.name, str(value.type), made_by.role.value, None, reasons)
        reasons = tuple(self._result(value, made_by))
        return ExplainedLayout(self.entry, value.name, str(value.type), made_by.op, made_by.location, reasons)

    def _input(self, value: Value, item: GraphInput) -> Iterator[str]:
        if item.role is not Role.WEIGHT:
            yield f"in its logical order, as every {item.role.value} lies"
            return
        how = (
            "in its logical order"
            if value.type.is_natural
            else f"as {value.type.layout}, packed once while it is loaded"
        )
        yield f"{how}: what the rows of all its readers take"
        yield from self._readers(value.name)

    def _result(self, value: Value, node: Node) -> Iterator[str]:
        place = self.storage[value.name]
        if OP[node.op].is_view:
            step = f" and strides {list(place.strides)}" if place.strides is not None else ""
            yield f"a view: element {place.offset} of %{place.base} on{step}, no bytes of its own"
        elif place.base != value.name:
            yield f"written over %{place.base}, as {node.op} does"
        elif node.op == COPY:
            yield from self._copy(node)
        else:
            yield from self._written(value, node)
        if value.name in self.graph.outputs:
            yield "an output, which lies in its logical order"
        yield from self._copied(value.name)

    def _written(self, value: Value, node: Node) -> Iterator[str]:
        row = self._row(node)
        if row is None:
            yield "in its logical order, as the reference writes"
            return
        first = value.name == node.results[0].name
        wished = row.result_layout(call_site(self.graph, node, self.storage)) if first else None
        wished = None if wished in (None, NATURAL, value.type.natural_layout) else wished
        if wished is None:
            yield f"in its logical order: {row.identity} writes it so and asks for no other"
        elif value.type.layout == wished:
            yield f"as {wished}: {row.identity} likes to write it so, and every reader takes it"
        else:
            yield f"in its logical order: {row.identity} would like to write it as {wished}, which not every reader takes"
        if wished is not None:
            yield from self._readers(value.name)

    def _readers(self, name: str) -> Iterator[str]:
        """The rows of the nodes that read a value, with the layouts that they take it in."""
        readers = self.graph.users.get(name, ())
        for reader in readers[:_READERS]:
            opdef = OP[reader.op]
            row = self._row(reader)
            if row is None:
                how = (
                    "reads it through a view"
                    if opdef.is_view
                    else "runs by the reference, which takes the logical order"
                )
                yield f"  %{reader.name} {how}"
                continue
            for spec, operand in zip(opdef.operands, reader.operands, strict=False):
                if operand == name:
                    layouts = " or ".join("logical order" if at == NATURAL else at for at in row.layouts_of(spec.name))
                    strided = ", strided views too" if spec.name in row.strided else ""
                    yield f"  %{reader.name} runs {row.identity}, which takes {spec.name} in {layouts}{strided}"
        if len(readers) > _READERS:
            yield f"  and {len(readers) - _READERS} readers more"

    def _copy(self, node: Node) -> Iterator[str]:
        """Why a copy in order stands in the graph."""
        source = node.operands[0] or ""
        place = self.storage[source]
        name = node.name
        yield f"a copy in order of %{source}, whose elements have strides {list(place.strides or ())}, {node.results[0].type.nbytes} bytes"
        if name in self.graph.outputs or place.strides is None:
            return
        for reader in self.graph.users.get(name, ())[:1]:
            yield f"  for %{reader.name}, whose rows do not read it as it lies:"
            for row, reason in row_refusals(self.graph, reader, name, place.strides, self.target, self.storage):
                yield f"    {row}: {reason}"

    def _copied(self, name: str) -> Iterator[str]:
        """The copies in order that readers of a value need."""
        for reader in self.graph.users.get(name, ()):
            if reader.op == COPY and not self.storage[name].contiguous:
                yield f"copied in order as %{reader.name} for readers that do not take it as it lies"

    def _row(self, node: Node) -> Impl | None:
        decision = self.decisions.get(node.name)
        return self.target.row(node.op, decision.row if decision is not None else node.impl or "")
