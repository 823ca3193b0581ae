"""From a graph with chosen implementations to the plan of one entry: `graph → order → liveness → Problem → solve → steps`.

`prepare` works out everything but offsets; `Prepared.emit` turns offsets into the plan. Steps carry what the device needs and nothing else: kernel, byte
ranges in the kernel's operand order, parameters as the row computes them. Nothing is decided here that the row or the graph does not say.

Refuses, all problems of a graph in one `PlanError`: nodes without a row of the target, rows that leave out an operand or a result of their node, workspace
that no operand of the row takes, parameters that are not plain integers and floats. What it emits is proven by `check.py`, which shares none of this.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.calls import NodeCall, node_call, result_names
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, ByteRange, Region, Step, StepKind, StepOperand
from ostinato.ir.target import Target
from ostinato.ir.text import graph_hash
from ostinato.ir.views import is_contiguous
from ostinato.planner.liveness import HappensBefore, StorageClass, storage_classes_of
from ostinato.planner.order import Action, Scheduled, actions_of, program_order
from ostinato.planner.plan import Binding, EntryPlan, PlanStats, Slot, workspace_of
from ostinato.planner.problem import Buffer, Problem, align_up
from ostinato.planner.regions import SharedRegions, share_regions
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings
from ostinato.planner.solvers import Outcome, solve
from ostinato.planner.storage import Storages, resolve_storages

__all__ = ["Prepared", "plan_entry", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph ready to be placed. `problem` has a buffer for each of `classes`, then one for each workspace (`workspaces`: action position -> bytes)."""

    graph: Graph
    graph_hash: str
    target: Target
    ops: Mapping[str, OpDef]
    shared: SharedRegions
    storages: Storages
    actions: tuple[Action, ...]
    calls: Mapping[str, NodeCall]
    classes: tuple[StorageClass, ...]
    workspaces: Mapping[int, int]
    in_place: int
    problem: Problem

    def emit(self, outcome: Outcome, *, name: str, dims: Mapping[str, int], options: Mapping[str, str]) -> EntryPlan:
        """The plan with each buffer at the outcome's offset."""
        return _emit(self, outcome, name, dims, options)


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
    (default: as `settings` say, on one lane).
    """
    prepared = prepare(graph, target, schedule=schedule, settings=settings, ops=ops)
    outcome = solve(prepared.problem, settings.solver, settings.limits)
    return prepared.emit(outcome, name=name, dims=dims or {}, options={**(options or {}), **settings.printed()})


def prepare(
    graph: Graph,
    target: Target,
    *,
    schedule: Sequence[Scheduled] | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
    ops: Mapping[str, OpDef] = OP,
) -> Prepared:
    """Everything before placement: storages, order, calls, lifetimes and the placement problem."""
    storages = resolve_storages(graph, ops)
    calls = _calls(graph, target, storages, ops)
    actions = actions_of(graph, program_order(graph, ops) if schedule is None else schedule, storages)
    order = HappensBefore(actions)
    rows = {node: call.row for node, call in calls.items()}
    in_place = settings.in_place and settings.reuse
    classes, joined = storage_classes_of(graph, actions, order, storages, ops, rows, in_place=in_place)
    workspaces = {
        position: calls[action.node.name].workspace
        for position, action in enumerate(actions)
        if action.node is not None and calls[action.node.name].workspace
    }
    unit = target.alignment
    buffers = [Buffer(c.storages[0], c.first, c.last, align_up(c.size, unit), unit) for c in classes]
    for position, size in workspaces.items():
        first, last = order.earliest(position), order.latest(position) + 1
        buffers.append(Buffer(workspace_of(actions[position].source), first, last, align_up(size, unit), unit))
    if not settings.reuse:
        buffers = [replace(buffer, lower=0, upper=len(actions)) for buffer in buffers]
    return Prepared(
        graph,
        graph_hash(graph),
        target,
        ops,
        share_regions([(graph.name, graph)], target.device, target.alignment),
        storages,
        actions,
        calls,
        classes,
        workspaces,
        joined,
        Problem(tuple(buffers)),
    )


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
    sources = {node.results[result].name: opdef.operands[operand].name for result, operand in opdef.must_alias}
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


class _ByteSet:
    """Bytes written so far, as disjoint sorted intervals."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def meets(self, start: int, end: int) -> bool:
        place = bisect_right(self._ends, start)
        return place < len(self._starts) and self._starts[place] < end


class _Emitter:
    """Turns actions into steps, given where every storage and workspace lies."""

    def __init__(
        self, prepared: Prepared, bases: Mapping[str, tuple[Region, int]], outputs: Sequence[ByteRange]
    ) -> None:
        self._prepared = prepared
        self._bases = bases
        self._outputs = outputs
        self._written: dict[Region, _ByteSet] = {}

    def range_of(self, value: str) -> ByteRange:
        place = self._prepared.storages.places[value]
        region, offset = self._bases[place.storage]
        return ByteRange(region, offset + place.offset if place.size else offset, place.size)

    def launch(self, action: Action, node: Node, workspace: ByteRange | None) -> Step:
        call = self._prepared.calls[node.name]
        opdef = self._prepared.ops[node.op]
        results = result_names(node, opdef)
        pairs = [(list(results)[result], opdef.operands[operand].name) for result, operand in opdef.must_alias]
        # read and written: operands updated in place, or the results that stand for them where the row names only those
        updated = {operand if operand in call.row.operands else result for result, operand in pairs}
        operands: list[StepOperand | None] = []
        for name, value in zip(call.row.operands, call.operands, strict=True):
            if value is None:
                operands.append(None)
            elif value == WORKSPACE:
                place = workspace or ByteRange(Region(self._prepared.target.device, "arena"), 0, 0)
                operands.append(StepOperand(WORKSPACE, place, reads=False, writes=True))
            else:
                reads, writes = name not in results or name in updated, name in results or name in updated
                operands.append(self._operand(value, self.range_of(value), reads=reads, writes=writes))
        step = Step(
            node=node.name,
            kind=StepKind.LAUNCH,
            device=self._prepared.target.device,
            kernel=call.kernel,
            operands=tuple(operands),
            params=call.params,
            lane=action.lane,
            waits=action.waits,
            signals=action.signals,
        )
        return self._done(step)

    def copy(self, action: Action) -> Step:
        source = self._operand(action.source, self.range_of(action.source), reads=True, writes=False)
        target = StepOperand(action.source, self._outputs[action.output], reads=False, writes=True)
        step = Step(
            node=action.source,
            kind=StepKind.COPY,
            device=self._prepared.target.device,
            kernel="",
            operands=(source, target),
            lane=action.lane,
            waits=action.waits,
            signals=action.signals,
        )
        return self._done(step)

    def _operand(self, name: str, place: ByteRange, *, reads: bool, writes: bool) -> StepOperand:
        """`early`: nothing above wrote these bytes in this run (a concurrent writer would be a race, which the checker refuses)."""
        written = self._written.get(place.region)
        fresh = written is None or not place.size or not written.meets(place.offset, place.end)
        return StepOperand(name, place, reads, writes, early=reads and fresh)

    def _done(self, step: Step) -> Step:
        for operand in step.operands:
            if operand is not None and operand.writes and operand.range.size:
                place = operand.range
                self._written.setdefault(place.region, _ByteSet()).add(place.offset, place.end)
        return step


def _emit(
    prepared: Prepared, outcome: Outcome, name: str, dims: Mapping[str, int], options: Mapping[str, str]
) -> EntryPlan:
    graph, storages, unit = prepared.graph, prepared.storages, prepared.target.alignment
    arena, io = (Region(prepared.target.device, kind) for kind in ("arena", "io"))
    bases: dict[str, tuple[Region, int]] = {}
    inputs: list[Binding] = []
    io_bytes = 0
    for item in graph.inputs:
        if item.role is Role.INPUT:
            place = ByteRange(io, io_bytes, item.value.type.nbytes)
            inputs.append(Binding(name=item.value.name, type=item.value.type, range=place))
            io_bytes = align_up(place.end, unit)
        else:
            place = prepared.shared.locate(item)
        bases[item.value.name] = (place.region, place.offset)
    outputs: list[Binding] = []
    for output in storages.outputs:
        tensor = graph.types[output.name]
        place = ByteRange(io, io_bytes, tensor.nbytes)
        outputs.append(Binding(name=output.name, type=tensor, range=place))
        io_bytes = align_up(place.end, unit)
        if not output.copied:
            bases[storages.places[output.name].storage] = (io, place.offset)
    offsets = outcome.solution.offsets
    for found, offset in zip(prepared.classes, offsets, strict=False):
        bases.update((storage, (arena, offset)) for storage in found.storages)
    for storage, kind in storages.kinds.items():
        if kind == "arena" and storage not in bases:
            bases[storage] = (arena, 0)  # no bytes, or never touched
    workspaces = {
        position: ByteRange(arena, offset, size)
        for (position, size), offset in zip(prepared.workspaces.items(), offsets[len(prepared.classes) :], strict=True)
    }
    emitter = _Emitter(prepared, bases, [binding.range for binding in outputs])
    steps = tuple(
        emitter.copy(action) if action.node is None else emitter.launch(action, action.node, workspaces.get(position))
        for position, action in enumerate(prepared.actions)
    )
    return EntryPlan(
        name=name,
        graph_hash=prepared.graph_hash,
        target=prepared.target.name,
        device=prepared.target.device,
        alignment=unit,
        dims=dict(sorted(dims.items())),
        options=dict(sorted(options.items())),
        steps=steps,
        slots=_slots(prepared, outcome, arena),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        io_bytes=io_bytes,
        stats=_stats(prepared, outcome, steps),
    )


def _slots(prepared: Prepared, outcome: Outcome, arena: Region) -> tuple[Slot, ...]:
    values = [tuple(item.values) for item in prepared.classes]
    sizes = [item.size for item in prepared.classes]
    for position, size in prepared.workspaces.items():
        values.append((workspace_of(prepared.actions[position].source),))
        sizes.append(size)
    buffers = prepared.problem.buffers
    slots = [
        Slot(values=names, range=ByteRange(arena, offset, size), first=buffer.lower, last=buffer.upper)
        for names, size, buffer, offset in zip(values, sizes, buffers, outcome.solution.offsets, strict=True)
    ]
    return tuple(sorted(slots, key=lambda slot: (slot.first, slot.range.offset, slot.last)))


def _stats(prepared: Prepared, outcome: Outcome, steps: Sequence[Step]) -> PlanStats:
    unit, storages = prepared.target.alignment, prepared.storages
    storage_bytes = sum(
        align_up(storages.sizes[storage], unit) for item in prepared.classes for storage in item.storages
    )
    return PlanStats(
        arena_bytes=outcome.solution.height,
        lower_bound=outcome.bound.height,
        sum_bytes=storage_bytes + sum(align_up(size, unit) for size in prepared.workspaces.values()),
        gap=outcome.gap,
        solver=outcome.solver,
        steps=len(steps),
        launches=sum(step.kind is StepKind.LAUNCH for step in steps),
        copies=sum(step.kind is StepKind.COPY for step in steps),
        strided_copies=sum(_is_strided_copy(call, prepared.ops[call.row.op]) for call in prepared.calls.values()),
        in_place=prepared.in_place,
        peak_step=outcome.bound.step,
        peak_values=outcome.bound.tenants,
    )


def _is_strided_copy(call: NodeCall, opdef: OpDef) -> bool:
    """Whether the node computes nothing and gathers an operand through strides."""
    site = call.site
    strided = any(
        tensor is not None and strides is not None and not is_contiguous(tensor, strides)
        for tensor, strides in zip(site.operands, site.strides, strict=True)
    )
    return strided and opdef.cost(site.operands, site.results, site.node.attrs).flops == 0
