"""From offsets to the plan of one entry: every storage at its place, every action as a step, and the figures that say how good it is.

Steps carry what the device needs and nothing else: kernel, byte ranges in the kernel's operand order, parameters as the row computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.calls import NodeCall, result_names
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import WORKSPACE, ByteRange, Launch, Region, Step, StepKind, StepOperand
from ostinato.ir.target import Target
from ostinato.planner.liveness import StorageClass
from ostinato.planner.order import Action
from ostinato.planner.plan import ArenaStats, Binding, EntryPlan, PlanStats, Slot, workspace_of
from ostinato.planner.problem import Problem, align_up
from ostinato.planner.regions import SharedRegions
from ostinato.planner.solvers import Outcome
from ostinato.planner.storage import Storages
from ostinato.planner.usage import ByteSet, reuse_count, usage_of

__all__ = ["Prepared", "Space"]


@dataclass(frozen=True, slots=True)
class Space:
    """The arena of one device. `problem` has a buffer for each of `classes`, then one for each workspace (`workspaces`: action position -> bytes)."""

    device: str
    classes: tuple[StorageClass, ...]
    workspaces: Mapping[int, int]
    problem: Problem

    @property
    def region(self) -> Region:
        return Region(self.device, "arena")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph ready to be placed, in one or several address spaces: that of the target's device first."""

    graph: Graph
    graph_hash: str
    target: Target
    ops: Mapping[str, OpDef]
    shared: SharedRegions
    storages: Storages
    actions: tuple[Action, ...]
    calls: Mapping[str, NodeCall]
    spaces: tuple[Space, ...]
    in_place: int
    early: bool

    @property
    def problem(self) -> Problem:
        """The placement problem of the target's device."""
        return self.spaces[0].problem

    def emit(self, *outcomes: Outcome, name: str, dims: Mapping[str, int], options: Mapping[str, str]) -> EntryPlan:
        """The plan with each buffer at its offset; `outcomes` are those of the spaces, in their order."""
        return _emit(self, outcomes, name, dims, options)


class _Emitter:
    """Turns actions into steps, given where every storage and workspace lies."""

    def __init__(
        self, prepared: Prepared, bases: Mapping[str, tuple[Region, int]], outputs: Sequence[ByteRange]
    ) -> None:
        self._prepared = prepared
        self._bases = bases
        self._outputs = outputs
        self._written: dict[Region, ByteSet] = {}

    def range_of(self, value: str, device: str) -> ByteRange:
        """The bytes of a value for a step on that device."""
        place = self._prepared.storages.at(value, device)
        region, offset = self._bases[place.storage]
        return ByteRange(region, offset + place.offset if place.size else offset, place.size)

    def launch(self, action: Action, node: Node, workspace: ByteRange | None) -> Step:
        call = self._prepared.calls[node.name]
        opdef = self._prepared.ops[node.op]
        results = result_names(node, opdef)
        pairs = [
            (list(results)[result], opdef.operands[operand].name) for result, operand in opdef.aliased(node.operands)
        ]
        # read and written: operands updated in place, or the results that stand for them where the row names only those
        updated = {operand if operand in call.row.operands else result for result, operand in pairs}
        operands: list[StepOperand | None] = []
        for name, value in zip(call.row.operands, call.operands, strict=True):
            if value is None:
                operands.append(None)
            elif value == WORKSPACE:
                place = workspace or ByteRange(Region(action.device, "arena"), 0, 0)
                operands.append(StepOperand(WORKSPACE, place, reads=False, writes=True))
            else:
                reads, writes = name not in results or name in updated, name in results or name in updated
                place = self.range_of(value, action.device)
                operands.append(self._operand(value, place, reads=reads, writes=writes))
        return self._done(action, call.kind, call.kernel, operands, call.params, self._launch(call, operands))

    def _launch(self, call: NodeCall, operands: Sequence[StepOperand | None]) -> Launch | None:
        """Early only where the bytes that the kernel reads ahead are those that no step above has written."""
        if call.launch is None or not call.launch.early:
            return call.launch
        named = zip(call.row.operands, operands, strict=True)
        lawful = all(operand.early for name, operand in named if operand is not None and name in call.row.ahead)
        return call.launch if self._prepared.early and lawful else replace(call.launch, early=False)

    def copy(self, action: Action) -> Step:
        own = self.range_of(action.source, self._prepared.storages.home_of(action.source))
        to = self._outputs[action.output] if action.output >= 0 else self.range_of(action.source, action.device)
        source = self._operand(action.source, own, reads=True, writes=False)
        return self._done(action, StepKind.COPY, "", [source, StepOperand(action.source, to, reads=False, writes=True)])

    def _operand(self, name: str, place: ByteRange, *, reads: bool, writes: bool) -> StepOperand:
        """`early`: nothing above wrote these bytes in this run (a concurrent writer would be a race, which the checker refuses)."""
        written = self._written.get(place.region)
        fresh = written is None or not place.size or not written.meets(place.offset, place.end)
        return StepOperand(name, place, reads, writes, early=reads and fresh)

    def _done(
        self,
        action: Action,
        kind: StepKind,
        kernel: str,
        operands: Sequence[StepOperand | None],
        params: tuple[int | float, ...] = (),
        launch: Launch | None = None,
    ) -> Step:
        for operand in operands:
            if operand is not None and operand.writes and operand.range.size:
                place = operand.range
                self._written.setdefault(place.region, ByteSet()).add(place.offset, place.end)
        return Step(
            node=action.source,
            kind=kind,
            device=action.device,
            kernel=kernel,
            operands=tuple(operands),
            params=params,
            launch=launch,
            lane=action.lane,
            waits=action.waits,
            signals=action.signals,
        )


def _emit(
    prepared: Prepared, outcomes: Sequence[Outcome], name: str, dims: Mapping[str, int], options: Mapping[str, str]
) -> EntryPlan:
    inputs, outputs, io_bytes = _bindings(prepared)
    bases, workspaces = _bases(prepared, outcomes, inputs, outputs), _workspaces(prepared, outcomes)
    emitter = _Emitter(prepared, bases, [binding.range for binding in outputs])
    steps = tuple(
        emitter.copy(action) if action.node is None else emitter.launch(action, action.node, workspaces.get(position))
        for position, action in enumerate(prepared.actions)
    )
    slots = [_slots(prepared, space, outcome) for space, outcome in zip(prepared.spaces, outcomes, strict=True)]
    arenas = [
        _arena_stats(prepared, *found, len(steps)) for found in zip(prepared.spaces, outcomes, slots, strict=True)
    ]
    return EntryPlan(
        name=name,
        graph_hash=prepared.graph_hash,
        source_hash=prepared.graph_hash,
        clones={},
        target=prepared.target.name,
        target_rows=prepared.target.rows_hash,
        device=prepared.target.device,
        alignment=prepared.target.alignment,
        dims=dict(sorted(dims.items())),
        options=dict(sorted(options.items())),
        steps=steps,
        slots=tuple(slot for found in slots for slot in found),
        inputs=inputs,
        outputs=outputs,
        io_bytes=io_bytes,
        stats=PlanStats(
            **dict(arenas[0]),
            elsewhere=tuple(arenas[1:]),
            steps=len(steps),
            launches=sum(step.kind is StepKind.LAUNCH for step in steps),
            copies=sum(step.kind is StepKind.COPY for step in steps),
            strided_copies=sum(_is_strided_copy(call, prepared.ops[call.row.op]) for call in prepared.calls.values()),
            in_place=prepared.in_place,
            recomputed=0,
            extra_work=0.0,
        ),
    )


def _bindings(prepared: Prepared) -> tuple[tuple[Binding, ...], tuple[Binding, ...], int]:
    """Inputs, then outputs, one behind the other in io, each aligned; and the bytes of all."""
    graph, io = prepared.graph, Region(prepared.target.device, "io")
    inputs = [item.value.name for item in graph.with_role(Role.INPUT)]
    bindings: list[Binding] = []
    io_bytes = 0
    for name in (*inputs, *(output.name for output in prepared.storages.outputs)):
        tensor = graph.types[name]
        bindings.append(Binding(name=name, type=tensor, range=ByteRange(io, io_bytes, tensor.nbytes)))
        io_bytes = align_up(bindings[-1].range.end, prepared.target.alignment)
    return tuple(bindings[: len(inputs)]), tuple(bindings[len(inputs) :]), io_bytes


def _bases(
    prepared: Prepared, outcomes: Sequence[Outcome], inputs: Sequence[Binding], outputs: Sequence[Binding]
) -> dict[str, tuple[Region, int]]:
    """Where every storage begins."""
    storages = prepared.storages
    given = {binding.name: binding.range for binding in inputs}
    bases: dict[str, tuple[Region, int]] = {}
    for item in prepared.graph.inputs:
        place = given[item.value.name] if item.role is Role.INPUT else prepared.shared.locate(item)
        bases[item.value.name] = (place.region, place.offset)
    for output, binding in zip(storages.outputs, outputs, strict=True):
        if not output.copied:
            bases[storages.places[output.name].storage] = (binding.range.region, binding.range.offset)
    for space, outcome in zip(prepared.spaces, outcomes, strict=True):
        for found, offset in zip(space.classes, outcome.solution.offsets, strict=False):  # workspaces come behind
            bases.update((storage, (space.region, offset)) for storage in found.storages)
    for storage, kind in storages.kinds.items():
        if kind == "arena" and storage not in bases:
            bases[storage] = (Region(storages.device_of(storage), "arena"), 0)  # no bytes, or never touched
    return bases


def _workspaces(prepared: Prepared, outcomes: Sequence[Outcome]) -> dict[int, ByteRange]:
    """The workspace of each action that has one, by position."""
    workspaces: dict[int, ByteRange] = {}
    for space, outcome in zip(prepared.spaces, outcomes, strict=True):
        offsets = outcome.solution.offsets[len(space.classes) :]
        for (position, size), offset in zip(space.workspaces.items(), offsets, strict=True):
            workspaces[position] = ByteRange(space.region, offset, size)
    return workspaces


def _slots(prepared: Prepared, space: Space, outcome: Outcome) -> tuple[Slot, ...]:
    values = [tuple(item.values) for item in space.classes]
    sizes = [item.size for item in space.classes]
    for position, size in space.workspaces.items():
        values.append((workspace_of(prepared.actions[position].source),))
        sizes.append(size)
    buffers = space.problem.buffers
    slots = [
        Slot(values=names, range=ByteRange(space.region, offset, size), first=buffer.lower, last=buffer.upper)
        for names, size, buffer, offset in zip(values, sizes, buffers, outcome.solution.offsets, strict=True)
    ]
    return tuple(sorted(slots, key=lambda slot: (slot.first, slot.range.offset, slot.last)))


def _arena_stats(prepared: Prepared, space: Space, outcome: Outcome, slots: Sequence[Slot], steps: int) -> ArenaStats:
    unit, sizes = prepared.target.alignment, prepared.storages.sizes
    storage_bytes = sum(align_up(sizes[storage], unit) for item in space.classes for storage in item.storages)
    tenancies = [slot.tenancy for slot in slots]
    usage = usage_of(tenancies, steps)
    worst = max(range(len(usage)), key=lambda step: usage[step].fragmentation, default=0)
    used = [at.fragmentation for at in usage if at.extent]
    return ArenaStats(
        device=space.device,
        arena_bytes=outcome.solution.height,
        lower_bound=outcome.bound.height,
        gap=outcome.gap,
        status=outcome.status.value,
        solver=outcome.solver,
        sum_bytes=storage_bytes + sum(align_up(size, unit) for size in space.workspaces.values()),
        peak_step=outcome.bound.step,
        peak_values=outcome.bound.tenants,
        worst_fragmentation=usage[worst].fragmentation if usage else 0.0,
        worst_step=worst,
        mean_fragmentation=sum(used) / len(used) if used else 0.0,
        reused=reuse_count(tenancies),
    )


def _is_strided_copy(call: NodeCall, opdef: OpDef) -> bool:
    """Whether the node computes nothing and gathers an operand through strides into a value of its own; a store in a cache is no copy."""
    computes_nothing = call.cost(opdef).flops == 0
    return bool(call.site.strided) and computes_nothing and not opdef.must_alias
