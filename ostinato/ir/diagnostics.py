"""Collecting the verifier's findings: each broken rule with its statement in text form, the neighbours of it and the user's line."""

from __future__ import annotations

from ostinato.ir.errors import OstinatoError, TextError, Violation
from ostinato.ir.graph import Graph
from ostinato.ir.text import format_extent, format_input, format_node, format_return
from ostinato.ir.types import TensorType

__all__ = ["Diagnostics", "plain"]


def plain(tensor: TensorType) -> str:
    """A type without its layout, for messages about everything else."""
    return str(tensor if tensor.layout is None else tensor.with_layout(None))


class Diagnostics:
    """The findings about one graph. A statement is counted as in the text form: inputs, extents, nodes, then return, from 0."""

    def __init__(self, graph: Graph) -> None:
        self.found: list[Violation] = []
        self.cause: OstinatoError | None = None
        """The first typed error that an operator's rule raised."""
        self.first_node = len(graph.inputs) + len(graph.extents)
        self.last = self.first_node + len(graph.nodes)
        """The statement that returns."""
        self._graph = graph

    def report(
        self,
        rule: str,
        statement: int,
        message: str,
        expected: str = "",
        found: str = "",
        hint: str | None = None,
        code: str = "verification",
    ) -> None:
        name, location = self._subject(statement)
        around = range(max(0, statement - 1), min(statement + 2, self.last + 1))
        lines = [f"  {'>' if index == statement else '|'} {self._text(index)}" for index in around]
        excerpt = "\n".join(lines)
        violation = Violation(rule, statement, name, message, expected, found, hint or "", location, excerpt, code)
        self.found.append(violation)

    def report_error(self, rule: str, statement: int, error: OstinatoError) -> None:
        self.cause = self.cause or error
        self.report(rule, statement, error.message, hint=error.hint, code=error.code)

    def _subject(self, statement: int) -> tuple[str | None, str]:
        graph = self._graph
        if statement < len(graph.inputs):
            return graph.inputs[statement].value.name, ""
        if self.first_node <= statement < self.last:
            node = graph.nodes[statement - self.first_node]
            return node.name if node.results else None, str(node.location or "")
        return None, ""

    def _text(self, statement: int) -> str:
        graph = self._graph
        if statement < len(graph.inputs):
            return format_input(graph.inputs[statement], data=False)
        if statement < self.first_node:
            return format_extent(*graph.extents[statement - len(graph.inputs)])
        if statement == self.last:
            return format_return(graph.outputs)
        node = graph.nodes[statement - self.first_node]
        try:
            return format_node(node)
        except TextError:
            return repr(node)
