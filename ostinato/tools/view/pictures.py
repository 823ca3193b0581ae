"""`ost.view`: the pictures of whatever stage a program has reached, as files in a folder.

The DOT text of a graph is always written; its SVG only where graphviz' `dot` is installed, which the result says. The arena needs no other program.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.compiler import Lowered, Planned, Traced
from ostinato.ir.errors import ConfigError, NotYetAvailable
from ostinato.ir.files import write_bytes, write_text
from ostinato.ir.graph import Graph
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.tools.stages import file_stem
from ostinato.tools.view.arena import arena_to_svg, map_of_plan
from ostinato.tools.view.dot import graph_to_dot, render
from ostinato.tools.view.repeats import Repeat, find_repeats

__all__ = ["DOT_MISSING", "EntryPicture", "Viewable", "view"]

Viewable = Graph | Traced | Lowered | Planned | Program | Executable
DOT_MISSING = "graphviz' `dot` is not installed: the graph was written as DOT text only"


@dataclass(frozen=True, slots=True)
class EntryPicture:
    """What was drawn of one graph: its nodes, those that were not hidden behind a repeat, the repeats, and the files written."""

    name: str
    nodes: int
    nodes_drawn: int
    repeats: tuple[Repeat, ...]
    files: tuple[str, ...]


def view(subject: Viewable, directory: str | os.PathLike[str]) -> tuple[EntryPicture, ...]:
    """Writes the pictures of a graph, traced, lowered or planned model, or executable into `directory` (made if need be), one set an entry.

    Files: `<entry>.graph.dot`, `<entry>.graph.svg` where `dot` is installed, and `<entry>.arena.svg` where there is a plan. Raises `ConfigError` for
    something that is none of these and for a place that cannot be written, `BackendError` when `dot` fails.
    """
    given: Any = directory  # callers are not type-checked
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"the directory is {given!r}, expected a path", hint="name a folder for the pictures")
    folder = Path(directory)
    if folder.suffix.lower() in (".html", ".htm"):
        raise NotYetAvailable("the report as one HTML file is not yet available", hint="name a folder for the pictures")
    return tuple(_write(name, graph, plan, folder) for name, graph, plan in _entries(subject))


def _entries(subject: Viewable) -> list[tuple[str, Graph, EntryPlan | None]]:
    if isinstance(subject, Graph):
        return [(subject.name, subject, None)]
    if isinstance(subject, Traced):
        return [(subject.graph.name, subject.graph, None)]
    if isinstance(subject, Lowered):
        return [(subject.name, subject.graph, None)]
    if isinstance(subject, Planned):
        return [(subject.lowered.name, subject.lowered.graph, subject.plan)]
    program = subject.program if isinstance(subject, Executable) else subject
    if not isinstance(program, Program):
        raise ConfigError(
            f"{type(subject).__name__} cannot be drawn",
            hint="give a graph, a traced, lowered or planned model, or an executable",
        )
    return [(name, graph, program.plan.entries[name]) for name, graph in program.graphs.items()]


def _write(name: str, graph: Graph, plan: EntryPlan | None, folder: Path) -> EntryPicture:
    repeats = find_repeats(graph)
    dot = graph_to_dot(graph, repeats)
    stem = file_stem(name)
    files = [write_text(folder / f"{stem}.graph.dot", dot)]
    if shutil.which("dot") is not None:
        files.append(write_bytes(folder / f"{stem}.graph.svg", render(dot)))
    if plan is not None:
        files.append(write_text(folder / f"{stem}.arena.svg", arena_to_svg(map_of_plan(plan, graph))))
    drawn = len(graph.nodes) - sum(repeat.hidden for repeat in repeats)
    return EntryPicture(name, len(graph.nodes), drawn, repeats, tuple(files))
