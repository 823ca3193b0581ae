"""`ostinato trace`, `passes` and `compile --dump`: every stage as text, since every stage is a value that prints.

A dump holds the plan, as text and as JSON, and each entry's graph after the passes: what a bug report needs, and nothing of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from ostinato.compiler import Traced
from ostinato.ir.files import write_text
from ostinato.ir.text import print_graph
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.plan_text import print_program
from ostinato.planner.problem import problem_to_csv
from ostinato.planner.saved import program_to_json
from ostinato.runtime.program import Program
from ostinato.tools.console import count, milliseconds, table
from ostinato.tools.schemas import PassesReport

__all__ = ["dump_program", "export_problems", "file_stem", "lower_stages", "show_passes"]


def lower_stages(traced: Traced, model: str, dims: Mapping[str, int]) -> tuple[PassesReport, str]:
    """Lowers a traced graph for one bucket: what each pass did, and the resulting text."""
    lowered = traced.lower(dims=dims)
    rows = tuple(
        PassesReport.Row(
            name=item.name, nodes_before=item.nodes_before, nodes_after=item.nodes_after, seconds=item.seconds
        )
        for item in lowered.report.stages
    )
    return PassesReport(model=model, entry=lowered.name, rows=rows), print_graph(lowered.graph)


def show_passes(report: PassesReport, console: Console) -> None:
    """The report for people."""
    rows = (
        (row.name, count(row.nodes_before), count(row.nodes_after), milliseconds(row.seconds)) for row in report.rows
    )
    console.print(table(f"passes of {report.entry}", ("pass", "nodes before", "after", "time"), rows))


def dump_program(program: Program, directory: Path) -> tuple[str, ...]:
    """Writes the stages into `directory` (made if need be) and returns the paths. Raises `ConfigError` for a place that cannot be written."""
    files = [
        write_text(directory / "plan.txt", print_program(program.plan)),
        write_text(directory / "plan.json", program_to_json(program.plan, program.graphs)),
    ]
    for name, graph in program.graphs.items():
        files.append(write_text(directory / f"{file_stem(name)}.graph", print_graph(graph)))
        if program.plan.entries[name].clones:
            original = print_graph(program.original(name))
            files.append(write_text(directory / f"{file_stem(name)}.original.graph", original))
    return tuple(files)


def export_problems(plan: ProgramPlan, directory: Path) -> list[str]:
    """Writes each entry's placement problems, one a device, as CSV without offsets, and returns the paths. Raises `ConfigError` as `dump_program` does."""
    files: list[str] = []
    for name, entry in plan.entries.items():
        for arena in entry.stats.arenas:
            device = "" if arena.device == entry.device else f"_{file_stem(arena.device)}"
            path = directory / f"{file_stem(name)}{device}.csv"
            files.append(write_text(path, problem_to_csv(entry.problem(arena.device))))
    return files


def file_stem(entry: str) -> str:
    """An entry's name as part of a file name."""
    return "".join(character if character.isalnum() else "_" for character in entry).strip("_")
