"""The native solver agrees with the exact reference and with trying everything, keeps its limits, and answers when it is told to stop."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from ostinato.planner.problem import Buffer, Problem, ProblemError, align_up, lower_bound, violations
from ostinato.planner.solvers import SOLVERS, Limits, Outcome, Status, solve

ALIGNMENTS: tuple[tuple[int, ...], ...] = ((1,), (4,), (1, 4, 16), (2, 3), (8,), (6, 4))
ENOUGH = Limits(nodes=200_000)


def small_problem(rng: random.Random, count: int, *, fixed: bool) -> Problem:
    """Buffers that crowd a few steps; fixed ones (a quarter, if any) do not collide."""
    buffers: list[Buffer] = []
    alignments, largest, span = rng.choice(ALIGNMENTS), rng.choice((4, 12, 40)), rng.choice((3, 8, 12))
    for index in range(count):
        lower, alignment = rng.randrange(span), rng.choice(alignments)
        buffer = Buffer(f"b{index}", lower, lower + rng.randint(1, 5), rng.randrange(largest), alignment)
        if fixed and rng.random() < 0.25:
            buffer = replace(buffer, offset=alignment * rng.randrange(max(1, 24 // alignment)))
            if any(collide(buffer, other) for other in buffers):
                buffer = replace(buffer, offset=None)
        buffers.append(buffer)
    return Problem(tuple(buffers))


def collide(a: Buffer, b: Buffer) -> bool:
    if a.offset is None or b.offset is None or not a.size or not b.size:
        return False
    return a.overlaps(b) and a.offset < b.offset + b.size and b.offset < a.offset + a.size


def lowest_by_trying_everything(problem: Problem) -> int:
    """Every order of the movable buffers, each at the first offset where it collides with nothing: the optimal solution is among them."""
    fixed = [(b, b.offset) for b in problem.buffers if b.offset is not None]
    pinned = max((offset + b.size for b, offset in fixed), default=0)
    best: int | None = None
    for order in permutations(b for b in problem.buffers if b.offset is None):
        placed = list(fixed)
        for buffer in order:
            taken = sorted((o, o + b.size) for b, o in placed if b.size and b.overlaps(buffer))
            free = 0
            for low, high in taken if buffer.size else ():
                if low < free + buffer.size and free < high:
                    free = align_up(high, buffer.alignment)
            placed.append((buffer, free))
        height = max([pinned, *(offset + b.size for b, offset in placed)])
        best = height if best is None else min(best, height)
    return best or 0


def crowd(count: int, seed: int) -> Problem:
    """Alignments that do not divide each other: the best solution lies above the load, and neither is it found soon nor soon proven."""
    rng = random.Random(seed)
    buffers: list[Buffer] = []
    for index in range(count):
        lower = rng.randrange(8)
        buffers.append(Buffer(f"b{index}", lower, lower + rng.randint(1, 6), rng.randint(5, 40), rng.choice((4, 6, 9))))
    return Problem(tuple(buffers))


def test_it_agrees_with_trying_everything(seed: int) -> None:
    rng = random.Random(seed)
    above = 0
    for _ in range(600):
        problem = small_problem(rng, rng.randint(0, 5), fixed=rng.random() < 0.5)
        outcome = solve(problem, "native", ENOUGH)
        assert violations(problem, outcome.solution) == ()
        assert outcome.status is Status.OPTIMAL
        assert outcome.solution.height == outcome.bound.height == lowest_by_trying_everything(problem), problem
        above += outcome.bound.height > lower_bound(problem).height
    assert above > 30


def test_it_agrees_with_the_exact_reference(seed: int) -> None:
    rng = random.Random(seed)
    unproven = above = 0
    for _ in range(1500):
        problem = small_problem(rng, rng.randint(4, 9), fixed=rng.random() < 0.4)
        mine, reference = solve(problem, "native", ENOUGH), solve(problem, "exact", Limits(nodes=3000))
        assert violations(problem, mine.solution) == violations(problem, reference.solution) == ()
        if Status.FEASIBLE in (mine.status, reference.status):
            unproven += 1
            continue
        assert (mine.solution.height, mine.bound, mine.status) == (
            reference.solution.height,
            reference.bound,
            Status.OPTIMAL,
        ), problem
        above += mine.bound.height > lower_bound(problem).height
    assert unproven < 30
    assert above > 100


def test_a_proof_goes_on_from_round_to_round() -> None:
    """It takes more nodes than a search has in one round; with fewer in all nothing is claimed."""
    problem = crowd(11, 1)
    outcome, reference = solve(problem, "native", ENOUGH), solve(problem, "exact", ENOUGH)
    assert outcome.nodes > 20_000
    assert outcome.status is reference.status is Status.OPTIMAL
    assert outcome.solution.height == reference.solution.height == outcome.bound.height
    few = solve(problem, "native", Limits(nodes=4_000))
    assert few.status is Status.FEASIBLE
    assert few.bound.height < few.solution.height == outcome.solution.height


def test_a_capacity_is_kept_or_refuted(seed: int) -> None:
    rng = random.Random(seed)
    refuted = 0
    for _ in range(400):
        problem = small_problem(rng, rng.randint(1, 8), fixed=rng.random() < 0.4)
        free = solve(problem, "native", ENOUGH)
        for capacity in (free.solution.height - 1, free.solution.height, free.solution.height + 3):
            if capacity < 0:
                continue
            outcome = solve(replace(problem, capacity=capacity), "native", ENOUGH)
            if free.status is not Status.OPTIMAL:
                continue
            if capacity >= free.solution.height:
                assert (outcome.status, outcome.solution.height) == (Status.OPTIMAL, free.solution.height)
            else:
                assert outcome.status is Status.INFEASIBLE
                assert outcome.bound.height > capacity
                refuted += lower_bound(problem).height <= capacity
    assert refuted > 30


def test_a_capacity_below_the_load_is_refuted_at_once_and_the_peak_is_named() -> None:
    outcome = solve(Problem((Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 9), Buffer("c", 2, 3, 1)), 16), "native")
    assert (outcome.status, outcome.nodes) == (Status.INFEASIBLE, 0)
    assert (outcome.bound.height, outcome.bound.step, outcome.bound.tenants) == (17, 1, ("b", "a"))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_nodes_and_seed_give_the_same_outcome(threads: int) -> None:
    problem = crowd(60, 4)
    first = solve(problem, "native", Limits(nodes=60_000, seed=5))
    again = solve(problem, "native", Limits(nodes=60_000, seed=5, threads=threads))
    assert first.status is Status.FEASIBLE
    assert first.nodes == 60_000
    assert again == first


def test_another_seed_looks_elsewhere() -> None:
    problem = crowd(60, 1)
    found = {solve(problem, "native", Limits(nodes=50_000, seed=seed)).solution.offsets for seed in range(6)}
    assert len(found) > 1


def test_more_nodes_are_never_worse(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        problem = crowd(50, rng.randrange(2**32))
        heights = [solve(problem, "native", Limits(nodes=nodes)).solution.height for nodes in (0, 5_000, 50_000)]
        assert heights == sorted(heights, reverse=True)


def test_no_nodes_and_no_time_still_give_a_solution() -> None:
    problem = crowd(60, 4)
    assert solve(problem, "native", Limits(nodes=0)).status is Status.FEASIBLE
    for limits in (Limits(nodes=0), Limits(seconds=0), Limits(seconds=0, threads=2)):
        outcome = solve(problem, "native", limits)
        assert violations(problem, outcome.solution) == ()
        assert outcome.nodes == 0
    assert solve(problem, "native", Limits(seconds=0)).status is Status.TIMEOUT


def test_time_is_kept() -> None:
    begin = time.monotonic()
    outcome = solve(crowd(60, 4), "native", Limits(seconds=0.3, threads=2))
    assert outcome.status is Status.TIMEOUT
    assert time.monotonic() - begin < 30
    assert violations(crowd(60, 4), outcome.solution) == ()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_solve_ends_when_it_is_told_to(threads: int) -> None:
    event = threading.Event()
    timer = threading.Timer(0.1, event.set)
    timer.start()
    outcome = solve(crowd(60, 4), "native", Limits(seconds=600, threads=threads), event)
    timer.join()
    assert outcome.status is Status.TIMEOUT
    asked = iter([False, True])
    assert solve(crowd(60, 4), "native", Limits(seconds=600), lambda: next(asked)).status is Status.TIMEOUT


@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_stop_test_raises_comes_out(threads: int) -> None:
    def refuse() -> bool:
        raise LookupError("enough")

    before = threading.active_count()
    with pytest.raises(LookupError, match="enough"):
        solve(crowd(60, 4), "native", Limits(seconds=600, threads=threads), refuse)
    assert threading.active_count() == before


INTERRUPTED = """
import os, sys
from ostinato.planner.solvers import Limits, solve
from tests.planner.test_native import crowd
print("begun", flush=True)
try:
    solve(crowd(60, 4), "native", Limits(seconds=600, threads=int(sys.argv[1])))
except KeyboardInterrupt:
    print(len(os.listdir("/proc/self/task")), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_ends_a_solve_and_leaves_no_thread(threads: int) -> None:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(threads)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "1\n")


def test_several_threads_may_solve_at_once() -> None:
    problems = [crowd(40, seed) for seed in range(6)]
    alone = [solve(problem, "native", Limits(nodes=20_000)) for problem in problems]
    together: list[Outcome | None] = [None] * len(problems)

    def work(index: int) -> None:
        together[index] = solve(problems[index], "native", Limits(nodes=20_000, threads=2))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_the_solver_table() -> None:
    assert list(SOLVERS) == ["native", "best_fit", "exact"]
    assert solve(crowd(30, 1)).solver.startswith("native/")
    with pytest.raises(KeyError, match="use one of native, best_fit, exact"):
        solve(Problem(()), "none")
    with pytest.raises(ProblemError, match="does not fit 64 bits"):
        solve(Problem((Buffer("a", 0, 1, 2**63),)))
