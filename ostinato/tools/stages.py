"""`ostinato trace`, `passes` and `compile --dump`: every stage as text, since every stage is a value that prints.

A dump holds the plan, as text and as JSON, and each entry's graph after the passes: what a bug report needs, and nothing of the weights.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ostinato.ir.files import write_text
from ostinato.ir.text import print_graph
from ostinato.passes.runner import PipelineReport
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.plan_text import print_program
from ostinato.planner.problem import problem_to_csv
from ostinato.planner.saved import program_to_json
from ostinato.runtime.program import Program
from ostinato.tools.console import count, milliseconds, table
from ostinato.tools.schemas import PassesReport

__all__ = ["dump_program", "dump_stages", "export_problems", "file_stem", "passes_report", "show_passes"]


def passes_report(
    found: PipelineReport, model: str, target: str, diff: str | None, files: tuple[str, ...]
) -> PassesReport:
    """What each pass did, what was compared ("cse" or "canonicalize:cse"), and what was written."""
    rows = tuple(
        PassesReport.Row(
            name=item.name,
            nodes_before=item.nodes_before,
            nodes_after=item.nodes_after,
            seconds=item.seconds,
            changed=item.changed,
        )
        for item in found.stages
    )
    since, _, stage = (diff or "").rpartition(":")
    return PassesReport(
        model=model,
        entry=found.graph.name,
        target=target,
        rows=rows,
        seconds=found.seconds,
        options=dict(found.options),
        policies={name: (use.taken, use.bypassed) for name, use in found.policies.items()},
        diff=None if diff is None else found.diff(stage, since or None),
        files=files,
    )


def show_passes(report: PassesReport, console: Console) -> None:
    """The report for people."""
    rows = [
        (row.name, count(row.nodes_before), count(row.nodes_after), milliseconds(row.seconds)) for row in report.rows
    ]
    rows.append(("all", "", "", milliseconds(report.seconds)))
    title = f"passes of {report.entry} for {report.target}"
    console.print(table(title, ("pass", "nodes before", "after", "time"), rows))
    for name, (taken, bypassed) in report.policies.items():
        console.print(f"policy {name}: taken {count(taken)}, bypassed {count(bypassed)}", markup=False)
    for file in report.files:
        console.print(f"wrote {file}", markup=False)


def dump_stages(found: PipelineReport, directory: Path) -> tuple[str, ...]:
    """Writes the text after every stage, which must have been kept, into `directory` (made if need be), numbered in order, and returns the paths. Raises as
    `dump_program` does."""
    files: list[str] = []
    for number, stage in enumerate(found.stages):
        assert stage.text is not None, "the passes ran with texts=True"
        files.append(write_text(directory / f"{number:02d}_{file_stem(stage.name)}.graph", stage.text))
    return tuple(files)


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
    """An entry's name as part of a file name: not empty, and not longer than file systems take."""
    text = "".join(character if character.isalnum() else "_" for character in entry).strip("_")
    return text.encode()[:120].decode(errors="ignore") or "unnamed"
