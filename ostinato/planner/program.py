"""A program: its entries over one weight table, one state table, one table of constants and one arena.

Each entry was planned alone, with its own weights, parameters, state and constants laid out in the order of its graph. Here the shared tables are made and the
entries' steps moved onto them; io and each device's arena are as large as the largest entry needs, never the sum. What comes out is proven by
`check.check_program`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import REGION_KINDS, ByteRange, Region, Step
from ostinato.planner.plan import EntryPlan, ProgramPlan, RegionSize
from ostinato.planner.problem import align_up
from ostinato.planner.regions import SharedRegions, share_regions

__all__ = ["build_program"]


def build_program(entries: Mapping[str, tuple[Graph, EntryPlan]]) -> ProgramPlan:
    """The program of these entries (name -> the graph and its plan); deterministic, not proven yet.

    Raises `PlanError` when entries disagree about a weight, a parameter or a state value (both are named), when they were planned for different targets or
    devices, and when a name is not its plan's.
    """
    plans = {name: plan for name, (_, plan) in entries.items()}
    if wrong := [f"{name} is the plan of {plan.name}" for name, plan in plans.items() if plan.name != name]:
        raise PlanError(f"entries are called by their plans' names: {'; '.join(wrong)}")
    targets = {(plan.target, plan.device, plan.alignment) for plan in plans.values()}
    if len(targets) > 1:
        found = ", ".join(
            f"{name}: {plan.target} on {plan.device} aligned to {plan.alignment}" for name, plan in plans.items()
        )
        raise PlanError(
            f"entries were planned for different targets ({found})",
            hint="lower all entries of a program for one target",
        )
    if not targets:
        return ProgramPlan(entries={}, regions=(), weights=(), parameters=(), state=(), constants=())
    ((_, device, alignment),) = targets
    shared = share_regions([(name, graph) for name, (graph, _) in entries.items()], device, alignment)
    sizes = {Region(device, kind): 0 for kind in REGION_KINDS} | dict(shared.sizes)
    sizes[Region(device, "io")] = max(plan.io_bytes for plan in plans.values())
    for stats in (stats for plan in plans.values() for stats in plan.stats.arenas):
        region = Region(stats.device, "arena")
        sizes[region] = max(sizes.get(region, 0), align_up(stats.arena_bytes, alignment))
    return ProgramPlan(
        entries={name: _move(plan, graph, shared) for name, (graph, plan) in entries.items()},
        regions=tuple(RegionSize(region=region, bytes=size) for region, size in sizes.items()),
        weights=shared.weights,
        parameters=shared.parameters,
        state=shared.state,
        constants=shared.constants,
    )


def _move(plan: EntryPlan, graph: Graph, shared: SharedRegions) -> EntryPlan:
    """The plan with its weights, parameters, state and constants where the program has them."""
    alone = share_regions([(plan.name, graph)], plan.device, plan.alignment)
    moves: dict[Region, list[tuple[int, int]]] = {}  # region -> (first byte before, how far it moves)
    for item in graph.inputs:
        if item.role is not Role.INPUT and item.value.type.nbytes:
            before, after = alone.locate(item), shared.locate(item)
            moves.setdefault(before.region, []).append((before.offset, after.offset - before.offset))
    moves = {region: sorted(found) for region, found in moves.items() if any(by for _, by in found)}
    if not moves:
        return plan
    return plan.model_copy(update={"steps": tuple(_moved(step, moves) for step in plan.steps)})


def _moved(step: Step, moves: Mapping[Region, list[tuple[int, int]]]) -> Step:
    operands = tuple(
        operand
        if operand is None or operand.range.region not in moves
        else replace(operand, range=_shifted(operand.range, moves))
        for operand in step.operands
    )
    return replace(step, operands=operands)


def _shifted(place: ByteRange, moves: Mapping[Region, list[tuple[int, int]]]) -> ByteRange:
    """The range, moved with the slot it starts in."""
    if not place.size:
        return ByteRange(place.region, 0, 0)
    found = moves[place.region]
    _, by = found[bisect_right(found, (place.offset, 2**64)) - 1]
    return ByteRange(place.region, place.offset + by, place.size)
