"""`ostinato plan problem.csv`: a placement problem solved, checked against the definition of a correct placement, and written back with offsets.

The file is `id,lower,upper,size[,alignment][,offset]`, the common form of static memory allocation problems. No model, graph or device is involved.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ostinato.ir.errors import ConfigError, PlanError
from ostinato.ir.files import read_text, write_text
from ostinato.planner.problem import ProblemError, problem_from_csv, problem_to_csv, violations
from ostinato.planner.solvers import SOLVERS, solve
from ostinato.tools.console import count, facts, milliseconds
from ostinato.tools.schemas import PlacementReport
from ostinato.tools.view.arena import arena_to_svg, map_of_problem

__all__ = ["place_file", "show_placement"]


def place_file(
    path: Path, *, capacity: int | None, solver: str, write_to: Path | None, picture: Path | None = None
) -> PlacementReport:
    """Solves the problem in `path`; `write_to` receives the CSV with the offsets found, `picture` an SVG of the placement.

    Raises `ConfigError` for a file or solver that cannot be used and `PlanError` when the solution breaks the definition, which is a bug in the
    solver.
    """
    if solver not in SOLVERS:
        raise ConfigError(f"solver {solver!r} is unknown", hint=f"known: {', '.join(SOLVERS)}")
    text = read_text(path)
    try:
        problem = problem_from_csv(text, capacity=capacity)
    except ProblemError as error:
        raise ConfigError(
            str(error), node=str(path), hint="columns: id,lower,upper,size[,alignment][,offset]"
        ) from None
    begin = time.perf_counter()
    outcome = solve(problem, solver)
    seconds = time.perf_counter() - begin
    over = outcome.status.value in ("over_capacity", "infeasible")
    wrong = [text for text in violations(problem, outcome.solution) if not (over and "exceeds the capacity" in text)]
    if wrong:
        raise PlanError("the placement is not valid: " + "; ".join(wrong[:5]), node=str(path))
    if write_to is not None:
        write_text(write_to, problem_to_csv(problem, outcome.solution))
    if picture is not None:
        drawing = map_of_problem(path.name, problem, outcome.solution, outcome.bound)
        write_text(picture, arena_to_svg(drawing))
    return PlacementReport(
        problem=str(path),
        buffers=len(problem.buffers),
        height=outcome.solution.height,
        lower_bound=outcome.bound.height,
        gap=outcome.gap,
        status=outcome.status.value,
        seconds=seconds,
        peak=outcome.bound.step,
        peak_buffers=outcome.bound.tenants,
        solver=outcome.solver,
        capacity=capacity,
    )


def show_placement(report: PlacementReport, console: Console) -> None:
    """The report for people."""
    peak = ", ".join(report.peak_buffers[:6]) + (
        f" and {len(report.peak_buffers) - 6} more" if len(report.peak_buffers) > 6 else ""
    )
    rows = [
        ("problem", f"{report.problem} ({count(report.buffers)} buffers)"),
        ("height", count(report.height)),
        ("lower bound", count(report.lower_bound)),
        ("gap", f"{report.gap:.2%}"),
        ("status", report.status.replace("_", " ")),
        ("seconds", milliseconds(report.seconds)),
        ("peak", f"at time {report.peak}: {peak}"),
        ("solver", report.solver),
    ]
    if report.capacity is not None:
        rows.insert(3, ("capacity", count(report.capacity)))
    console.print(facts(rows))
