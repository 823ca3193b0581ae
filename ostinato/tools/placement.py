"""`ostinato plan problem.csv`: a placement problem solved, checked against the definition of a correct placement, drawn, and written back with offsets.

The file is `id,lower,upper,size[,alignment][,offset]`, the common form of static memory allocation problems. No model, graph or device is involved.

Whatever can be known to be wrong is refused before anything is solved: the file, fixed offsets that collide, and places that cannot be written.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ostinato.ir.errors import ConfigError, PlanError
from ostinato.ir.files import need_writable, read_text, write_text
from ostinato.planner.problem import (
    MAX_INTEGER,
    Buffer,
    Problem,
    ProblemError,
    align_up,
    alive_at,
    fixed_collisions,
    granule,
    problem_from_csv,
    problem_to_csv,
    violations,
)
from ostinato.planner.solvers import SOLVERS, Limits, Outcome, solve
from ostinato.tools.console import Steps, count, facts, milliseconds, processors
from ostinato.tools.schemas import BoundSource, PlacementReport
from ostinato.tools.view.arena import arena_to_svg, map_of_problem

__all__ = ["DEFAULT_SECONDS", "limits_of", "place_file", "show_placement"]

DEFAULT_SECONDS = 10.0
"""Of a solve that is given no limit."""

MOST_BYTES = 512 * 1024 * 1024
"""Size of a file: some 15 million buffers, which take 10 GiB of memory."""

MOST_IN_PYTHON = 5_000
"""Buffers for the solvers that are written in Python: their time and memory grow with the square."""

MOST_NAMED = 6
LONGEST_NAME = 40


def limits_of(seconds: float | None, nodes: int | None, threads: int, seed: int) -> Limits:
    """What a solve may take: `DEFAULT_SECONDS` where neither seconds nor nodes are given, one thread a processor for 0 threads."""
    if seconds is not None and math.isnan(seconds):
        raise ConfigError("--time is nan, expected seconds", hint="for example --time 20")
    if seconds is None and nodes is None:
        seconds = DEFAULT_SECONDS
    return Limits(nodes, seconds, threads or processors(), seed)


def place_file(
    path: Path,
    *,
    capacity: int | None = None,
    solver: str = "native",
    limits: Limits,
    write_to: Path | None = None,
    picture: Path | None = None,
    steps: Steps,
) -> PlacementReport:
    """Solves the problem in `path`; `write_to` receives the CSV with the offsets found, `picture` an SVG of the placement.

    Raises `ConfigError` for files, problems and solvers that cannot be used and `PlanError` when the solution breaks the definition, which is a bug in
    the solver.
    """
    if solver not in SOLVERS:
        raise ConfigError(f"solver {solver!r} is unknown", hint=f"known: {', '.join(SOLVERS)}")
    if write_to is not None and write_to == picture:
        raise ConfigError(f"{write_to} would be written twice", hint="give --output and --svg files of their own")
    for place in (write_to, picture):
        if place is not None:
            need_writable(place)
    steps.begin(f"reading {path}")
    problem = _read(path, capacity)
    buffers = problem.buffers
    if solver != "native" and len(buffers) > MOST_IN_PYTHON:
        raise ConfigError(
            f"solver {solver} takes at most {MOST_IN_PYTHON} buffers, {path} has {len(buffers)}", hint="use native"
        )
    steps.begin(f"placing {count(len(buffers))} buffers" + _up_to(limits))
    begin = time.perf_counter()
    try:
        outcome = solve(problem, solver, limits)
    except ProblemError as error:
        raise ConfigError(error.message, node=str(path), hint="sizes, times and offsets have 64 bits") from None
    seconds = time.perf_counter() - begin
    if outcome.solution.height > MAX_INTEGER:
        raise ConfigError(
            f"the placement would end above 2^63 - 1, at {outcome.solution.height}",
            node=str(path),
            hint="offsets have 64 bits: give sizes in larger units",
        )
    steps.begin("checking the placement")
    if wrong := violations(replace(problem, capacity=None), outcome.solution):
        raise PlanError(
            "the placement is not valid: " + "; ".join(wrong[:5]),
            node=str(path),
            hint="this is a fault of the solver: send the file with a report",
        )
    files = []
    if write_to is not None:
        files.append(write_text(write_to, problem_to_csv(problem, outcome.solution)))
    if picture is not None:
        steps.begin("drawing")
        drawing = map_of_problem(path.name, problem, outcome.solution, outcome.bound)
        files.append(write_text(picture, arena_to_svg(drawing)))
    alive = alive_at(problem.buffers, outcome.bound.step)
    return PlacementReport(
        problem=str(path),
        buffers=len(buffers),
        sum_bytes=sum(buffer.size for buffer in buffers),
        height=outcome.solution.height,
        lower_bound=outcome.bound.height,
        bound_by=_bound_source(problem, outcome, alive),
        gap=outcome.gap,
        status=outcome.status.value,
        checked=True,
        capacity=capacity,
        fits=capacity is None or outcome.solution.height <= capacity,
        missing_bytes=0 if capacity is None else max(0, outcome.bound.height - capacity),
        peak=outcome.bound.step,
        peak_bytes=sum(buffer.size for buffer in alive),
        peak_buffers=tuple(buffer.id for buffer in alive),
        peak_sizes=tuple(buffer.size for buffer in alive),
        solver=outcome.solver,
        seconds=seconds,
        nodes=outcome.nodes,
        time_limit=limits.seconds,
        node_limit=limits.nodes,
        threads=limits.threads,
        seed=limits.seed,
        files=tuple(files),
    )


def _read(path: Path, capacity: int | None) -> Problem:
    """The problem in a file, every buffer of which can be where it is fixed."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{path} is a folder, a pipe or a device, not a file", hint="name a .csv file")
    if os.path.isfile(path) and os.path.getsize(path) > MOST_BYTES:
        raise ConfigError(
            f"{path} has {os.path.getsize(path)} bytes; a problem has at most {MOST_BYTES}", hint="split the problem"
        )
    text = read_text(path)
    try:
        problem = problem_from_csv(text, capacity=capacity)
    except ProblemError as error:
        hint = "columns, separated by commas: id,lower,upper,size[,alignment][,offset]"
        raise ConfigError(str(error), node=str(path), hint=hint) from None
    if wrong := fixed_collisions(problem):
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ConfigError(f"fixed offsets collide: {wrong[0]}{more}", node=str(path), hint="move or free one of them")
    return problem


def _bound_source(problem: Problem, outcome: Outcome, alive: Sequence[Buffer]) -> BoundSource:
    """What says that nothing is lower than the bound."""
    unit = granule(problem)
    padding = max((align_up(buffer.size, unit) - buffer.size for buffer in alive), default=0)
    if outcome.bound.height <= sum(align_up(buffer.size, unit) for buffer in alive) - padding:
        return "load"
    fixed = max((buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None), default=0)
    return "fixed" if outcome.bound.height <= fixed else "search"


# the report for people


def show_placement(report: PlacementReport, console: Console) -> None:
    """The report for people."""
    rows = [
        ("problem", f"{report.problem}: {count(report.buffers)} buffers, {count(report.sum_bytes)} bytes in all"),
        ("height", count(report.height)),
        ("lower bound", f"{count(report.lower_bound)}, {_BOUND_WORDS[report.bound_by]}"),
        ("gap", f"{report.gap:.2%}"),
        ("status", f"{report.status.replace('_', ' ')}: {_status_words(report)}"),
        ("peak", _peak_words(report)),
        ("found by", f"{report.solver}, {count(report.nodes)} search nodes in {milliseconds(report.seconds)}"),
        ("limits", _limit_words(report)),
        ("checked", "yes: no two buffers share a byte, and alignments and fixed offsets are kept"),
    ]
    if report.capacity is not None:
        rows.insert(2, ("capacity", f"{count(report.capacity)}, {'kept' if report.fits else 'not kept'}"))
    console.print(facts(rows))
    if report.status == "infeasible":
        console.print(_why_infeasible(report), markup=False)
    for file in report.files:
        console.print(f"wrote {file}", markup=False)


_BOUND_WORDS = {
    "load": "the most that is alive at one time",
    "fixed": "the end of the highest fixed buffer",
    "search": "proven by search",
}


def _status_words(report: PlacementReport) -> str:
    short = "" if report.fits or report.capacity is None else f"{count(report.height - report.capacity)} too high"
    if report.status == "optimal":
        return "no placement is lower"
    if report.status == "infeasible":
        return "no placement fits"
    ended = "time ran out" if report.status == "timeout" else "the search ended"
    if short:
        return f"{ended}; the lowest placement found is {short}, whether one fits is not known"
    return f"{ended}; no placement is more than {report.gap / (1 + report.gap):.2%} lower"


def _peak_words(report: PlacementReport) -> str:
    if not report.peak_buffers:
        return "nothing is alive at any time"
    largest = zip(report.peak_buffers[:MOST_NAMED], report.peak_sizes, strict=False)
    named = ", ".join(f"{_short(name)} ({count(size)})" for name, size in largest)
    more = len(report.peak_buffers) - MOST_NAMED
    return f"at time {report.peak}, {count(report.peak_bytes)} bytes: {named}" + (
        f" and {more} more" if more > 0 else ""
    )


def _limit_words(report: PlacementReport) -> str:
    default = " (the default)" if report.time_limit == DEFAULT_SECONDS and report.node_limit is None else ""
    known = [] if report.time_limit is None else [f"{report.time_limit:g} s{default}"]
    known += [] if report.node_limit is None else [f"{count(report.node_limit)} nodes"]
    return f"{', '.join(known)}; {report.threads} threads, seed {report.seed}"


def _why_infeasible(report: PlacementReport) -> str:
    """One sentence: what does not fit, when, and by how much."""
    assert report.capacity is not None
    begin = f"No placement fits into {count(report.capacity)} bytes"
    missing = f"{count(report.missing_bytes)} more than the capacity"
    if report.bound_by == "fixed":
        return f"{begin}: a buffer is fixed so that it ends at {count(report.lower_bound)}, {missing}."
    peak = f"at time {report.peak}, {len(report.peak_buffers)} buffers of {count(report.peak_bytes)} bytes are alive"
    if report.bound_by == "search":
        return f"{begin}: a search proved that {count(report.lower_bound)} are needed, {missing}; {peak}."
    aligned = "" if report.lower_bound == report.peak_bytes else f" and take {count(report.lower_bound)} when aligned"
    return f"{begin}: {peak}{aligned}, {missing}."


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _up_to(limits: Limits) -> str:
    return "" if limits.seconds is None else f", {limits.seconds:g} s at most"
