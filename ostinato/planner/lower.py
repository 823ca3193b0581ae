"""From a graph with chosen implementations to the plan of one entry: `graph → order → liveness → Problem → solve → steps`.

`prepare` works out everything but offsets; `Prepared.emit` turns offsets into the plan (`emit.py`). There is one placement problem an address space: the
arena of the entry's own device, then those of the other devices that its schedule names. Nothing is decided here that the row or the graph does not say.

Refuses, all problems of a graph in one `PlanError`: nodes without a row of the target, rows that leave out an operand or a result of their node, workspace
that no operand of the row takes, parameters that are not plain integers and floats. What it emits is proven by `check.py`, which shares none of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ostinato.ir.calls import NodeCall, node_call, result_names
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE
from ostinato.ir.target import Target
from ostinato.ir.text import graph_hash
from ostinato.planner.emit import Prepared, Space
from ostinato.planner.liveness import HappensBefore, storage_classes_of
from ostinato.planner.order import Scheduled, actions_of, program_order
from ostinato.planner.order_search import search_order
from ostinato.planner.plan import EntryPlan, workspace_of
from ostinato.planner.problem import Buffer, Problem, Solution, align_up
from ostinato.planner.regions import share_regions
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings
from ostinato.planner.solvers import Outcome, solve
from ostinato.planner.spaces import spread
from ostinato.planner.storage import Storages, resolve_storages

__all__ = ["Prepared", "plan_entry", "prepare"]


def plan_entry(
    graph: Graph,
    target: Target,
    *,
    name: str,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, str] | None = None,
    schedule: Sequence[Scheduled] | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
    ops: Mapping[str, OpDef] = OP,
) -> EntryPlan:
    """Plans one graph whose nodes (views apart) all have an implementation of `target`; raises `PlanError` as listed in the module text.

    Weights, state and constants lie as this graph alone needs them, in order; `build_program` moves them to what all entries share. `schedule` orders the nodes
    (default: as `settings` say, on one lane: a searched order where it makes the arena smaller, else the program's) and says on which devices they run; each
    device's arena is placed by itself. A `memory_limit` is printed with the plan and not kept to here: that is what `recompute.fit.fit_entry` does.
    """
    prepared = prepare(graph, target, schedule=schedule, settings=settings, ops=ops)
    outcomes = [solve(space.problem, settings.solver, settings.limits) for space in prepared.spaces]
    if schedule is None and settings.order == "search" and settings.reuse:
        found = search_order(
            graph, ops, prepared.storages, prepared.calls, alignment=target.alignment, in_place=settings.in_place
        )
        if found is not None:
            reordered = prepare(graph, target, schedule=found, settings=settings, ops=ops)
            outcome = solve(reordered.problem, settings.solver, settings.limits)
            if outcome.solution.height < outcomes[0].solution.height:
                prepared, outcomes = reordered, [outcome]
    ahead = align_up(settings.guard, target.alignment)
    outcomes = [_behind(outcome, ahead) for outcome in outcomes]
    return prepared.emit(*outcomes, name=name, dims=dims or {}, options={**(options or {}), **settings.printed()})


def prepare(
    graph: Graph,
    target: Target,
    *,
    schedule: Sequence[Scheduled] | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
    ops: Mapping[str, OpDef] = OP,
) -> Prepared:
    """Everything before placement: storages, order, calls, lifetimes and the placement problem of each address space."""
    turns = program_order(graph, ops) if schedule is None else tuple(schedule)
    storages = spread(graph, turns, resolve_storages(graph, ops), target.device, ops)
    calls = _calls(graph, target, storages, ops)
    actions = actions_of(graph, turns, storages)
    order = HappensBefore(actions)
    rows = {node: call.row for node, call in calls.items()}
    in_place = settings.in_place and settings.reuse
    classes, joined = storage_classes_of(graph, actions, order, storages, ops, rows, in_place=in_place)
    workspaces = {
        position: calls[action.node.name].workspace
        for position, action in enumerate(actions)
        if action.node is not None and calls[action.node.name].workspace
    }
    unit, guard = target.alignment, settings.guard
    spaces: list[Space] = []
    for device in dict.fromkeys((target.device, *(action.device for action in actions))):
        here = tuple(item for item in classes if storages.device_of(item.storages[0]) == device)
        work = {position: size for position, size in workspaces.items() if actions[position].device == device}
        buffers = [Buffer(c.storages[0], c.first, c.last, align_up(c.size + guard, unit), unit) for c in here]
        for position, size in work.items():
            first, last = order.earliest(position), order.latest(position) + 1
            needed = align_up(size + guard, unit)
            buffers.append(Buffer(workspace_of(actions[position].source), first, last, needed, unit))
        if not settings.reuse:
            buffers = [replace(buffer, lower=0, upper=len(actions)) for buffer in buffers]
        spaces.append(Space(device, here, work, Problem(tuple(buffers))))
    shared = share_regions([(graph.name, graph)], target.device, unit)
    hashed = graph_hash(graph)
    return Prepared(graph, hashed, target, ops, shared, storages, actions, calls, tuple(spaces), joined, settings.early)


def _behind(outcome: Outcome, ahead: int) -> Outcome:
    """The placement behind `ahead` bytes that nobody owns: each buffer brings its guard behind it, this one is before the first."""
    if not ahead or not outcome.solution.offsets:
        return outcome
    offsets = tuple(offset + ahead for offset in outcome.solution.offsets)
    solution = Solution(offsets, outcome.solution.height + ahead)
    return replace(outcome, solution=solution, bound=replace(outcome.bound, height=outcome.bound.height + ahead))


def _calls(graph: Graph, target: Target, storages: Storages, ops: Mapping[str, OpDef]) -> dict[str, NodeCall]:
    """What each node's row says of it, by node name."""
    rows = {(row.op, row.name): row for row in target.rows}
    calls: dict[str, NodeCall] = {}
    problems: list[str] = []
    for node in graph.nodes:
        opdef = ops[node.op]
        if opdef.is_view:
            continue
        row = rows.get((node.op, node.impl or ""))
        if row is None:
            found = "no implementation" if node.impl is None else f"the implementation {node.op}@{node.impl}"
            problems.append(f"%{node.name}: has {found}; target {target.name} has {_row_names(target, node.op)}")
            continue
        call = node_call(graph, node, row, storages.views, ops=ops)
        problems += [f"%{node.name}: row {row.identity} {problem}" for problem in _call_problems(node, opdef, call)]
        calls[node.name] = call
    if problems:
        raise PlanError(
            f"graph {graph.name} cannot be lowered:\n  " + "\n  ".join(problems),
            hint="select implementations for this target before planning",
        )
    return calls


def _row_names(target: Target, op: str) -> str:
    return ", ".join(row.identity for row in target.rows_for(op)) or f"no row for {op}"


def _call_problems(node: Node, opdef: OpDef, call: NodeCall) -> list[str]:
    results = {value: name for name, value in result_names(node, opdef).items()}
    pairs = opdef.aliased(node.operands)
    sources = {node.results[result].name: opdef.operands[operand].name for result, operand in pairs}
    implied = {source for value, source in sources.items() if results[value] in call.row.operands}
    problems = [
        f"takes no operand {spec.name}, but the node has %{name}"
        for spec, name in zip(opdef.operands, node.operands, strict=False)
        if name is not None and spec.name not in call.row.operands and spec.name not in implied
    ]
    problems += [
        f"writes no result %{value}"
        for value, name in results.items()
        if name not in call.row.operands and sources.get(value) not in call.row.operands
    ]
    problems += [
        f"gives parameter {index} as {param!r} of type {type(param).__name__}; expected a plain int or float"
        for index, param in enumerate(call.params)
        if type(param) not in (int, float)
    ]
    if type(call.workspace) is not int or call.workspace < 0:
        problems.append(f"asks for a workspace of {call.workspace!r} bytes")
    elif call.workspace and WORKSPACE not in call.operands:
        problems.append(f"asks for {call.workspace} bytes of workspace, but none of its operands takes it")
    return problems
