"""Operator order on irregular graphs: the given order, the best there is, ours, and the common heuristic.

    python -m benchmarks.planner.order [--count 9] [--seed 0] [--moves 5000000]

Bytes alive at the peak, with in-place results and workspaces as the planner counts them. The optimum is that of the exact search with `--moves` moves; where
these do not do, what they prove is shown with a sign. The peer is "least peak memory first", the list scheduler that compilers ship: of the operators that
can run, one that raises no peak and leaves the fewest bytes; where there is none, the one with the lowest peak. The last columns are the planned arenas.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from rich.console import Console
from rich.table import Table

from benchmarks.planner.graphs import OPS, TARGET, graphs
from ostinato.ir.graph import Graph
from ostinato.planner.check import check_program
from ostinato.planner.liveness import taken_over
from ostinato.planner.lower import plan_entry, prepare
from ostinato.planner.order_model import OrderModel, order_model
from ostinato.planner.order_piece_search import Budget, exact_order
from ostinato.planner.order_pieces import piece_of
from ostinato.planner.order_search import best_steps
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings

KIB = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """One graph: bytes at the peak of each order, whether `optimum` is proven (else no order is lower), our seconds, and the planned arenas in bytes."""

    family: str
    operators: int
    given: int
    optimum: int
    proven: bool
    ours: int
    peer: int
    seconds: float
    arena_given: int
    arena_ours: int


def least_peak_first(model: OrderModel) -> list[int]:
    """The peer's order of all steps."""
    waiting = [len(needed) for needed in model.before]
    behind: list[list[int]] = [[] for _ in waiting]
    for step, needed in enumerate(model.before):
        for other in needed:
            behind[other].append(step)
    uses = [len(steps) for steps in model.users()]
    ready = [step for step, number in enumerate(waiting) if not number]
    order: list[int] = []
    live = highest = 0
    while ready:
        moves = [(*_cost(model, step, uses, live), step) for step in ready]
        below = [move for move in moves if move[0] <= highest]
        during, after, step = min(below, key=lambda move: move[1]) if below else min(moves)
        highest, live = max(highest, during), after
        order.append(step)
        ready.remove(step)
        for storage in model.touches[step]:
            uses[storage] -= 1
        for other in behind[step]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


def _cost(model: OrderModel, step: int, uses: Sequence[int], live: int) -> tuple[int, int]:
    """Bytes alive during a step and after it; `uses` counts for each storage the steps to come that touch it."""
    dying = {storage for storage in model.touches[step] if uses[storage] == 1}
    held = live + sum(model.sizes[storage] for storage in model.touches[step] if model.maker[storage] == step)
    during = held + model.workspaces[step] - taken_over(model.takes[step], dying, model.sizes)
    return during, held - sum(model.sizes[storage] for storage in dying)


def measure(family: str, graph: Graph, moves: int) -> Measured:
    """All orders of one graph. The optimum is searched over the graph as a whole: no cuts, no steps set aside, no bound. Both plans are proven."""
    prepared = prepare(graph, TARGET, ops=OPS)
    model = order_model(graph, OPS, prepared.storages, prepared.calls, alignment=TARGET.alignment, in_place=True)
    count = len(model.before)
    given = model.peak(range(count))
    begin = time.perf_counter()
    steps = best_steps(model)
    seconds = time.perf_counter() - begin
    whole = piece_of(model, [False] * count, model.users(), 0, count)
    best = exact_order(whole, 0, given + 1, Budget(moves))
    arenas: list[int] = []
    for order in ("program", "search"):
        plan = plan_entry(graph, TARGET, name=graph.name, settings=PlanSettings(order=order), ops=OPS)
        check_program(build_program({graph.name: (graph, plan)}), {graph.name: graph}, TARGET, ops=OPS)
        arenas.append(plan.stats.arena_bytes)
    return Measured(
        family,
        count,
        given,
        best.bound,
        best.order is not None,
        given if steps is None else model.peak(steps),
        model.peak(least_peak_first(model)),
        seconds,
        *arenas,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=9, help="graphs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--moves", type=int, default=5_000_000, help="moves of the exact search that gives the optimum")
    options = parser.parse_args()
    table = Table(
        "family", "operators", "given", "optimum", "ours", "peer", "seconds", "arena", "arena, ours", title="KiB"
    )
    found: list[Measured] = []
    for family, graph in graphs(options.count, options.seed):
        item = measure(family, graph, options.moves)
        found.append(item)
        peaks = [f"{size / KIB:.0f}" for size in (item.given, item.optimum, item.ours, item.peer)]
        peaks[1] = peaks[1] if item.proven else f"> {peaks[1]}"
        arenas = [f"{size / KIB:.0f}" for size in (item.arena_given, item.arena_ours)]
        table.add_row(family, str(item.operators), *peaks, f"{item.seconds:.3f}", *arenas)
    console = Console(width=120)
    console.print(table)
    exact = [item for item in found if item.proven]
    worst = max(item.ours / item.optimum - 1 for item in exact)
    console.print(f"{len(found)} graphs, the optimum is known of {len(exact)}: ours is at most {worst:.2%} above it")
    for name, other in (("given order", "given"), ("peer", "peer")):
        savings = [1 - item.ours / getattr(item, other) for item in found]
        console.print(
            f"saved against the {name}: {mean(savings):.1%} on average, from {min(savings):.1%} to {max(savings):.1%}"
        )
    above = [item.peer / item.optimum - 1 for item in exact]
    console.print(f"the peer is {mean(above):.1%} above the optimum on average, at most {max(above):.1%}")
    arenas_saved = [1 - item.arena_ours / item.arena_given for item in found]
    console.print(
        f"planned arena against the given order's: {mean(arenas_saved):.1%} less, at worst {min(arenas_saved):.1%}"
    )
    console.print(
        f"seconds: {mean(item.seconds for item in found):.3f} on average, at most {max(i.seconds for i in found):.3f}"
    )


if __name__ == "__main__":
    main()
