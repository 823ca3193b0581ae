"""A graph as DOT, with repeated layers drawn once.

What a reader looks for is the shape of a model: weights, constants and the inputs that several nodes read are lines in the boxes of their readers, and one
stretch stands for all of its repeats inside a frame that says how many there are; dashed arrows lead from one stretch to the next. DOT is text and is
always written; turning it into a picture is the `dot` program's work, which is asked for by `render`. Names are shown as the text form writes them, and
nothing else hangs on them: DOT reads markup, ports and escapes into an identifier, and a picture is XML, which has no place for control characters.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import graphviz

from ostinato.ir.errors import BackendError
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.text import format_name
from ostinato.ir.types import TensorType
from ostinato.tools.view.repeats import Repeat, find_repeats

__all__ = ["PATIENCE", "graph_to_dot", "render"]

PATIENCE = 60.0
"""Seconds that `dot` is waited for, for each picture."""

_INK, _PAPER, _FRAME, _WIRE = "#1f2933", "#ffffff", "#7b8794", "#52606d"
_COLOURS = {
    "linear": "#dbeafe",
    "attention": "#fde68a",
    "norm": "#dcfce7",
    "rope": "#fbcfe8",
    "rotary": "#fbcfe8",
    "kv": "#fed7aa",
    "embedding": "#e0e7ff",
    "sample": "#fecaca",
    "argmax": "#fecaca",
}
_PLAIN = "#f1f5f9"


def graph_to_dot(graph: Graph, repeats: tuple[Repeat, ...] | None = None) -> str:
    """DOT text of a graph of any phase. `repeats` are what to draw once, those that `find_repeats` finds by default; () draws everything."""
    return _Drawing(graph, find_repeats(graph) if repeats is None else repeats).text()


def render(dot: str, form: str = "svg") -> bytes:
    """The picture of DOT text ("svg", "png" or "pdf"). Raises `BackendError` where graphviz' `dot` is missing, refuses the text, or does not come to an end: it
    may take hours for some hundreds of nodes that read far back."""
    program = shutil.which("dot")
    if program is None:
        raise BackendError(
            "the program `dot` was not found",
            hint="install graphviz (Debian, Ubuntu: apt install graphviz); the DOT file does without it",
        )
    try:
        made = subprocess.run(
            [program, f"-T{form}"], input=dot.encode(), capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"`dot` has drawn no {form} within {PATIENCE:g} seconds",
            hint='the report draws a graph of any size: name a file that ends in ".html"; the DOT file is there',
        ) from None
    if made.returncode:
        said = made.stderr.decode(errors="replace").strip()
        raise BackendError(f"`dot` failed: {said}", hint="render the DOT file by hand to see more")
    return made.stdout


class _Drawing:
    """One graph on its way to DOT.

    `_shown` is the node that stands for each node (itself outside the repeats), `_home` its repeat and stretch. `_wired` are the inputs that have a box of
    their own: those with one reader, and those that are outputs as they are. `_input` is the identifier of each input; that of a node is its number.
    """

    def __init__(self, graph: Graph, repeats: tuple[Repeat, ...]) -> None:
        self._graph = graph
        self._repeats = repeats
        self._shown = list(range(len(graph.nodes)))
        for repeat in repeats:
            for index in range(repeat.start, repeat.stop):
                self._shown[index] = repeat.start + (index - repeat.start) % repeat.period
        shown = [graph.nodes[index] for index in range(len(graph.nodes)) if self._shown[index] == index]
        readers = Counter(name for node in shown for name in dict.fromkeys(node.operands) if name is not None)
        self._wired = {
            item.value.name
            for item in graph.inputs
            if item.value.name in graph.outputs
            or (item.role in (Role.INPUT, Role.STATE) and readers[item.value.name] == 1)
        }
        self._input = {item.value.name: f"input {index}" for index, item in enumerate(graph.inputs)}
        self._place = {value.name: index for index, node in enumerate(graph.nodes) for value in node.results}
        self._home = {
            index: (number, (index - repeat.start) // repeat.period)
            for number, repeat in enumerate(repeats)
            for index in range(repeat.start, repeat.stop)
        }

    def text(self) -> str:
        """The DOT text."""
        dot = graphviz.Digraph(_label(format_name(self._graph.name)))
        dot.attr(
            rankdir="TB",
            nodesep="0.25",
            ranksep="0.35",
            fontname="Helvetica",
            bgcolor=_PAPER,
            color=_FRAME,
            fontcolor=_INK,
        )
        dot.attr(
            "node",
            shape="box",
            style="rounded,filled",
            fontname="Helvetica",
            fontsize="10",
            color=_FRAME,
            fontcolor=_INK,
            margin="0.12,0.06",
        )
        dot.attr("edge", color=_WIRE, arrowsize="0.6", fontname="Helvetica", fontsize="8", fontcolor=_WIRE)
        self._inputs(dot)
        for repeat in self._repeats:
            first, last = (format_name(self._graph.nodes[at].name) for at in (repeat.start, repeat.stop - 1))
            with dot.subgraph(name=f"cluster_{repeat.start}") as frame:
                frame.attr(
                    label=_label(f"{repeat.count} times: {first} to {last}"),
                    style="rounded",
                    penwidth="1.5",
                    fontsize="11",
                    labeljust="l",
                )
                for index in range(repeat.start, repeat.start + repeat.period):
                    self._node(frame, index)
        for index in range(len(self._graph.nodes)):
            if index not in self._home:
                self._node(dot, index)
        self._edges(dot)
        self._outputs(dot)
        return str(dot.source)

    def _inputs(self, dot: graphviz.Digraph) -> None:
        for item in self._graph.inputs:
            if item.value.name in self._wired:
                colour = "#ccfbf1" if item.role is Role.STATE else "#e2e8f0"
                label = f"{format_name(item.value.name)}\n{item.role.value} {item.value.type}"
                name = self._input[item.value.name]
                dot.node(name, label=_label(label), shape="box", style="filled", fillcolor=colour)

    def _node(self, dot: graphviz.Digraph, index: int) -> None:
        node = self._graph.nodes[index]
        lines = [format_name(node.name), node.op if node.impl is None else f"{node.op} @ {node.impl}"]
        lines += [str(value.type) for value in node.results]
        for name in node.operands:
            item = self._graph.inputs_by_name.get(name) if name is not None else None
            if item is not None and item.value.name not in self._wired:
                named = item.role in (Role.INPUT, Role.STATE)
                lines.append(f"{item.role.value} {format_name(item.value.name) if named else _short(item.value.type)}")
        tooltip = f"{format_name(node.name)}: {node.op}" + (f" at {node.location}" if node.location else "")
        dot.node(str(index), label=_label("\n".join(lines)), fillcolor=_colour(node), tooltip=_label(tooltip))

    def _edges(self, dot: graphviz.Digraph) -> None:
        """Each arrow once. The second stretch says what the first hands on (dashed); later ones say it again."""
        edges: dict[tuple[str, str, bool], None] = {}
        for index, node in enumerate(self._graph.nodes):
            repeat, stretch = self._home.get(index, (-1, 0))
            for name in node.operands:
                source = self._place.get(name) if name is not None else None
                target = str(self._shown[index])
                if name is None or stretch > 1:
                    continue
                if source is None:
                    if stretch == 0 and name in self._wired:
                        edges[self._input[name], target, False] = None
                elif stretch == 0:
                    edges[str(self._shown[source]), target, False] = None
                elif self._home.get(source) == (repeat, 0):
                    edges[str(self._shown[source]), target, True] = None
        for source_name, target, handed_on in edges:
            if handed_on:
                dot.edge(source_name, target, style="dashed", constraint="false")
            else:
                dot.edge(source_name, target)

    def _outputs(self, dot: graphviz.Digraph) -> None:
        for index, name in enumerate(self._graph.outputs):
            key = f"output {index}"
            dot.node(
                key,
                label=_label(f"{format_name(name)}\noutput {self._graph.types[name]}"),
                style="filled",
                fillcolor="#cbd5e1",
            )
            source = self._place.get(name)
            dot.edge(self._input[name] if source is None else str(self._shown[source]), key)


def _colour(node: Node) -> str:
    return next((colour for part, colour in _COLOURS.items() if part in node.op), _PLAIN)


def _short(tensor: TensorType) -> str:
    return f"{tensor.dtype.value}[{','.join(str(extent) for extent in tensor.shape)}]"


def _label(text: str) -> str:
    """A text that DOT shows as it is, whatever it begins with."""
    shown: str = graphviz.nohtml(text.replace("\\", "\\\\").replace("\n", "\\n"))
    return shown
