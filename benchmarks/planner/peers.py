"""One solver on one problem in a process of its own: what `python -m benchmarks.planner` starts, so that time and memory are each solver's alone.

    python -m benchmarks.planner.peers SOLVER PROBLEM.csv --seconds S --threads N --seed K    (one line of JSON: seconds, mib, status, offsets)

`ostinato` is ours; `omni` is omnimalloc's default allocator, which takes no time limit; `supermalloc` its branch and bound with that limit; `cp_sat` a model
of OR-Tools with intervals of fixed size that may not overlap and a height to minimise. Reading the problem is not timed; making the solver's own objects is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ostinato.planner.problem import Problem, problem_from_csv
from ostinato.planner.solvers import Limits, solve

__all__ = ["NEEDS", "SOLVERS", "is_here"]

NEEDS = {"ostinato": "ostinato", "omni": "omnimalloc", "supermalloc": "omnimalloc", "cp_sat": "ortools"}
"""The package that each solver comes from."""

Answer = tuple[list[int] | None, str]
"""Offsets (None: nothing was found) and what the solver says of them."""


def is_here(solver: str) -> bool:
    """Whether the solver's package is installed."""
    return importlib.util.find_spec(NEEDS[solver]) is not None


def ostinato(problem: Problem, seconds: float, threads: int, seed: int) -> Answer:
    outcome = solve(problem, "native", Limits(seconds=seconds, threads=threads, seed=seed))
    return list(outcome.solution.offsets), outcome.status.value


def _omnimalloc(problem: Problem, allocator: Any) -> Answer:
    package = importlib.import_module("omnimalloc")
    entries = [
        package.Allocation(id=index, size=b.size, start=b.lower, end=b.upper) for index, b in enumerate(problem.buffers)
    ]
    placed = {entry.id: entry.offset for entry in package.allocate(entries, allocator)}
    return [placed[index] for index in range(len(entries))], ""


def omni(problem: Problem, seconds: float, threads: int, seed: int) -> Answer:
    del seconds, threads, seed
    return _omnimalloc(problem, None)


def supermalloc(problem: Problem, seconds: float, threads: int, seed: int) -> Answer:
    del seed
    allocators = importlib.import_module("omnimalloc.allocators")
    return _omnimalloc(problem, allocators.SupermallocAllocator(timeout=seconds, num_threads=threads))


def cp_sat(problem: Problem, seconds: float, threads: int, seed: int) -> Answer:
    cp_model = importlib.import_module("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    most = sum(b.size for b in problem.buffers)
    height = model.new_int_var(0, most, "height")
    across, up, starts = [], [], []
    for index, b in enumerate(problem.buffers):
        start = model.new_int_var(0, most - b.size, f"offset {index}")
        starts.append(start)
        across.append(model.new_fixed_size_interval_var(b.lower, b.upper - b.lower, f"life {index}"))
        up.append(model.new_fixed_size_interval_var(start, b.size, f"bytes {index}"))
        model.add(start + b.size <= height)
    model.add_no_overlap_2d(across, up)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, solver.status_name(status).lower()
    return [solver.value(start) for start in starts], solver.status_name(status).lower()


SOLVERS: Mapping[str, Callable[[Problem, float, int, int], Answer]] = {
    "ostinato": ostinato,
    "omni": omni,
    "supermalloc": supermalloc,
    "cp_sat": cp_sat,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("solver", choices=SOLVERS)
    parser.add_argument("problem", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problem = problem_from_csv(options.problem.read_text())
    begin = time.perf_counter()
    offsets, status = SOLVERS[options.solver](problem, options.seconds, options.threads, options.seed)
    seconds = time.perf_counter() - begin
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mib": mib, "status": status, "offsets": offsets}))


if __name__ == "__main__":
    main()
