"""The solver beside its peers, on public problems and generated ones.

    python -m benchmarks.planner [FOLDER] [--families guillotine,...] [--sizes 1000,10000] [--seconds 1,10] [--seeds 5] [--solvers ostinato,supermalloc,...]

FOLDER holds problems as CSV files, MiniMalloc's set for example, which are run before the generated families (`--families ''`: none of these). The peers
need the packages omnimalloc and ortools (`pip install omnimalloc ortools`); one that is missing is said and left out. Every run is a process of its own
with the same time limit and as many threads, and every answer is checked for overlaps before any figure of it is printed. Of a CSV file the seeds are the
solver's; of a family, the problem's too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.planner.generators import FAMILIES
from benchmarks.planner.peers import NEEDS, SOLVERS, is_here
from ostinato.planner.problem import Problem, Solution, lower_bound, problem_from_csv, problem_to_csv, violations

GRACE = 120.0
"""Seconds above its limit that a run gets before it is ended and counted as no answer."""


@dataclass(frozen=True, slots=True)
class Run:
    """One solver on one problem: height over bound (None: no valid answer), seconds, peak memory of the process, and what the solver or the check says."""

    case: str
    buffers: int
    solver: str
    limit: float
    seed: int
    ratio: float | None
    seconds: float
    mib: float
    status: str


@dataclass(frozen=True, slots=True)
class Case:
    """One or more problems (by seed) under one name."""

    name: str
    problems: tuple[Problem, ...]

    def problem(self, seed: int) -> Problem:
        return self.problems[seed % len(self.problems)]


def cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.folder is not None:
        for path in sorted(options.folder.glob("*.csv")):
            yield Case(path.name.partition(".")[0], (problem_from_csv(path.read_text()),))
    for family in options.families:
        for size in options.sizes:
            yield Case(f"{family} {size}", tuple(FAMILIES[family](size, seed) for seed in range(options.seeds)))


def run(case: Case, solver: str, seconds: float, seed: int, threads: int, file: Path) -> Run:
    """Solves in another process and checks the answer."""
    problem = case.problem(seed)
    file.write_text(problem_to_csv(problem))
    command = [sys.executable, "-m", "benchmarks.planner.peers", solver, str(file)]
    command += ["--seconds", str(seconds), "--threads", str(threads), "--seed", str(seed)]

    def no_answer(why: str) -> Run:
        return Run(case.name, len(problem.buffers), solver, seconds, seed, None, 0.0, 0.0, why)

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE, check=False)
    except subprocess.TimeoutExpired:
        return no_answer(f"ended after {seconds + GRACE:.0f} s")
    if done.returncode:
        return no_answer(f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["offsets"] is None:
        return no_answer(found["status"])
    height = max((o + b.size for o, b in zip(found["offsets"], problem.buffers, strict=True)), default=0)
    wrong = violations(problem, Solution(tuple(found["offsets"]), height))
    if wrong:
        return no_answer(f"wrong: {wrong[0]}")
    ratio = height / max(lower_bound(problem).height, 1)
    return Run(
        case.name, len(problem.buffers), solver, seconds, seed, ratio, found["seconds"], found["mib"], found["status"]
    )


def row(runs: list[Run]) -> list[str]:
    """Cells of one case, limit and solver: medians over the seeds, and the worst memory."""
    ratios = [item.ratio for item in runs if item.ratio is not None]
    statuses = sorted({item.status for item in runs if item.status})
    if len(ratios) < len(runs):
        return ["none", "", "", "; ".join(statuses)]
    return [
        f"{median(ratios):.4f}",
        f"{median(item.seconds for item in runs):.3f}",
        f"{max(item.mib for item in runs):.0f}",
        ", ".join(statuses),
    ]


def _folder(text: str) -> Path:
    path = Path(text)
    if not any(path.glob("*.csv")):
        raise argparse.ArgumentTypeError(f"{text} is no folder with .csv files")
    return path


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown, use some of {', '.join(known)}")
        return found

    return names


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,10") from None

    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=_folder, metavar="FOLDER")
    parser.add_argument("--families", type=_names(FAMILIES), default=list(FAMILIES), help=", ".join(FAMILIES))
    parser.add_argument("--sizes", type=_numbers(int), default=[1000, 10000], help="buffers; default: 1000,10000")
    parser.add_argument("--seconds", type=_numbers(float), default=[1.0, 10.0], help="time limits; default: 1,10")
    parser.add_argument("--solvers", type=_names(SOLVERS), default=list(SOLVERS), help=", ".join(SOLVERS))
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case; default: 5")
    parser.add_argument("--threads", type=int, default=2, help="of each solver; default: 2")
    parser.add_argument("--json", type=Path, help="write every run here")
    options = parser.parse_args()
    console = Console(width=120)
    for solver in options.solvers:
        if not is_here(solver):
            console.print(f"{solver} is left out: pip install {NEEDS[solver]}")
    solvers = [solver for solver in options.solvers if is_here(solver)]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(options):
            buffers = len(case.problem(0).buffers)
            table = Table("limit, s", "solver", "height / bound", "seconds", "MiB", "status")
            table.title = f"{case.name}: {buffers} buffers, median of {options.seeds}"
            for limit in options.seconds:
                for solver in solvers:
                    file = Path(folder) / "problem.csv"
                    found = [run(case, solver, limit, seed, options.threads, file) for seed in range(options.seeds)]
                    runs += found
                    table.add_row(f"{limit:g}", solver, *row(found))
            console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(item) for item in runs], indent=1) + "\n")
    ours = {_key(item): inf if item.ratio is None else item.ratio for item in runs if item.solver == "ostinato"}
    if ours:
        behind = [item for item in runs if item.ratio is not None and item.ratio < ours[_key(item)]]
        console.print(f"runs in which a peer's height is below ours: {len(behind)}")
        for item in behind:
            console.print(f"  {item.case}, {item.limit:g} s, seed {item.seed}: {item.solver} {item.ratio:.4f}")


def _key(item: Run) -> tuple[str, float, int]:
    return (item.case, item.limit, item.seed)


if __name__ == "__main__":
    main()
