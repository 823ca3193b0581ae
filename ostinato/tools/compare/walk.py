"""A planned entry walked step by step: what each node was given and what it gave, and whether its operands were still as they had been made.

Operands are the recorded results of the nodes before, not what lies in memory when a step reads them: so the step that computes wrongly and the step whose
operand somebody else had written over are told apart. What lies in memory is compared with the record before each step; a difference is a fault of lifetimes
or of in-place results, and the node that wrote there is named. Nothing that runs is changed: the steps, bytes and order are those of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.evaluate import Rows, evaluate, leading, read_only
from ostinato.ir.graph import Node, Role
from ostinato.ir.ops import OP
from ostinato.ir.rounding import plain_arithmetic, round_to, widen
from ostinato.ir.step import WORKSPACE, ByteRange, Step, StepKind, StepOperand
from ostinato.ir.types import Array, TensorType
from ostinato.ir.views import ViewTable, extent_of
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.runners import PlannedRunner
from ostinato.tools.compare.differences import bits_equal, first_changed

__all__ = ["Spoilt", "Visit", "Walk"]


@dataclass(frozen=True, slots=True)
class Spoilt:
    """An operand that is not as it was made: `writer` is the node of the last step that wrote in its bytes, where the plan has one."""

    value: str
    index: tuple[int, ...]
    made: float
    found: float
    writer: str | None


@dataclass(frozen=True, slots=True)
class Visit:
    """A node and what happened at it. `operands` and `results` have their full extents and the dtypes of their types; `rows` says how many are valid.

    `in_place` is an operand whose bytes a result takes, where the operator does not say so itself.
    """

    node: Node
    position: int
    operands: tuple[Array | None, ...]
    results: tuple[Array, ...]
    rows: Rows | None
    spoilt: tuple[Spoilt, ...]
    in_place: str | None = None

    def valid(self, array: Array, tensor: TensorType) -> Array:
        """The valid rows of a result."""
        return array if self.rows is None else leading(array, tensor, self.rows)

    @property
    def valid_results(self) -> tuple[Array, ...]:
        """All results, valid rows only."""
        pairs = zip(self.results, self.node.results, strict=True)
        return tuple(self.valid(array, value.type) for array, value in pairs)


class Walk:
    """Walks entries of `executable`: the one that is given where its mode is "planned", otherwise a clone in that mode. State carries over from run to run."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable if executable.mode == "planned" else executable.clone("planned")
        self._views: dict[str, ViewTable] = {}

    def run(self, entry: str, inputs: Mapping[str, Array]) -> Iterator[Visit]:
        """Runs an entry once; each node that is no view as its steps are done. The walk must be finished for the state to be that behind the run."""
        runner = self.executable.runner(entry)
        assert isinstance(runner, PlannedRunner), "a planned executable has planned runners"
        for name, array in inputs.items():
            runner.inputs[name][...] = array
        runner.loaded.exchange.give()
        if entry not in self._views:
            self._views[entry] = ViewTable(runner.graph)
        yield from _Run(self.executable, entry, runner, self._views[entry], inputs).visits()

    def reference(self, entry: str, visit: Visit) -> tuple[Array, ...]:
        """What the operator's reference gives for what the node was given, valid rows only, in the dtypes of the results."""
        graph = self.executable.program.graphs[entry]
        widened = self.executable.reference_weights.widened
        operands = [
            None
            if array is None or name is None
            else widened[name]
            if name in widened
            else read_only(widen(array, graph.types[name].dtype))
            for name, array in zip(visit.node.operands, visit.operands, strict=True)
        ]
        return tuple(evaluate(visit.node, OP[visit.node.op], graph.types, operands, visit.rows))

    def plain(self, entry: str, visit: Visit) -> tuple[Array, ...]:
        """The same composed in float32, the precision that kernels compute in."""
        with plain_arithmetic(), np.errstate(all="ignore"):
            return self.reference(entry, visit)


class _Run:
    """One run of a walk."""

    def __init__(
        self, executable: Executable, entry: str, runner: PlannedRunner, views: ViewTable, inputs: Mapping[str, Array]
    ) -> None:
        self._executable, self._runner, self._views = executable, runner, views
        self._graph = executable.program.graphs[entry]
        self._nodes = {node.name: node for node in self._graph.nodes}
        self._plan: EntryPlan = runner.loaded.plan
        self._counts = self._graph.counts(inputs)
        self._values: dict[str, Array] = {name: np.array(array) for name, array in inputs.items()}
        self._values |= {
            item.value.name: item.data for item in self._graph.with_role(Role.CONSTANT) if item.data is not None
        }
        self._weights = executable.reference_weights.of(self._graph)
        self._stateful = {item.value.name for item in self._graph.updated if item.role is not Role.INPUT}
        self._last_step = {step.node: number for number, step in enumerate(self._plan.steps) if _computes(step)}
        regions = executable.regions
        self._memory = {"arena": regions.arena, "io": regions.io, "state": regions.state}

    def visits(self) -> Iterator[Visit]:
        for position, step in enumerate(self._plan.steps):
            node = self._nodes.get(step.node)
            if node is None or not _computes(step):
                self._runner.loaded.table.run(position, 1)
                continue
            operands = tuple(None if name is None else self._value(name) for name in node.operands)
            spoilt = tuple(self._spoilt(position, step))
            self._runner.loaded.table.run(position, 1)
            if self._last_step[node.name] == position:
                yield self._visit(node, position, step, operands, spoilt)

    def _visit(
        self, node: Node, position: int, step: Step, operands: tuple[Array | None, ...], spoilt: tuple[Spoilt, ...]
    ) -> Visit:
        written = {item.value: item for item in step.operands if item is not None and item.writes}
        sources = _updated(node)
        for value in node.results:
            place = written.get(value.name) or written.get(sources.get(value.name) or "")
            found = None if place is None else self._read(place, value.name)
            self._values[value.name] = (
                np.zeros(value.type.static_shape, value.type.dtype.numpy) if found is None else found
            )
        extent = extent_of(self._graph, node)
        rows = None if extent is None else (extent[0], self._counts[extent[0]])
        results = tuple(self._values[value.name] for value in node.results)
        return Visit(node, position, operands, results, rows, spoilt, _in_place(step))

    def _value(self, name: str) -> Array:
        """A value as it was made; views are worked out from what they look into, state is read before the first step that is given it."""
        if name in self._weights:
            return self._weights[name]
        pending = [name]
        while pending:
            current = pending[-1]
            if current in self._values or current in self._weights:
                pending.pop()
                continue
            if current in self._stateful:
                # a parameter is read in its widest dtype, which its mirror in a narrower one is rounded from
                self._values[current] = round_to(self._executable.read_state(current), self._graph.types[current].dtype)
                continue
            node = self._graph.producers[current]
            missing = [item for item in node.operands if item is not None and not self._known(item)]
            if missing:
                pending += missing
                continue
            given = [None if item is None else read_only(self._held(item)) for item in node.operands]
            for value, array in zip(
                node.results, evaluate(node, OP[node.op], self._graph.types, given, None), strict=True
            ):
                self._values[value.name] = array
        return self._values[name]

    def _known(self, name: str) -> bool:
        return name in self._values or name in self._weights

    def _held(self, name: str) -> Array:
        return self._weights[name] if name in self._weights else self._values[name]

    def _read(self, place: StepOperand, name: str) -> Array | None:
        """The values of a name as they lie in memory; None where they cannot be read as they are (packed, or of no bytes)."""
        tensor, strides = self._graph.types[name], self._views[name].strides
        memory = self._memory.get(place.range.region.kind)
        if memory is None or strides is None or tensor.dtype.is_block:
            return None
        kind = tensor.dtype.numpy
        flat = memory.read(kind, (place.range.size // kind.itemsize,), place.range.offset)
        if not flat.size:
            return np.zeros(tensor.static_shape, kind)
        steps = tuple(stride * kind.itemsize for stride in strides)
        return np.array(np.lib.stride_tricks.as_strided(flat, tensor.static_shape, steps, writeable=False))

    def _spoilt(self, position: int, step: Step) -> Iterator[Spoilt]:
        """The operands in the arena whose bytes are not what was recorded when they were made."""
        node = self._nodes[step.node]
        # a row may name the result for the operand that it updates
        updated = _updated(node)
        for operand in step.operands:
            if operand is None or not operand.reads or operand.range.region.kind != "arena":
                continue
            name = updated.get(operand.value, operand.value)
            if name is None or name == WORKSPACE:
                continue
            made, found = self._value(name), self._read(operand, name)
            if found is None or bits_equal(made, found):
                continue
            index = first_changed(made, found)
            writer = self._writer(position, operand.range, name)
            yield Spoilt(name, index, float(made[index]), float(found[index]), writer)

    def _writer(self, position: int, place: ByteRange, value: str) -> str | None:
        """The node of the last step before `position` that wrote in these bytes, unless it is the one that made the value."""
        producer = self._graph.producers.get(self._views[value].base)
        for step in reversed(self._plan.steps[:position]):
            for item in step.operands:
                if item is not None and item.writes and item.range.size and item.range.overlaps(place):
                    return None if producer is not None and step.node == producer.name else step.node
        return None


def _updated(node: Node) -> dict[str, str | None]:
    """Results that are operands updated, each with its operand."""
    return {node.results[result].name: node.operands[place] for result, place in OP[node.op].aliased(node.operands)}


def _in_place(step: Step) -> str | None:
    """An operand in the arena that is read where another is written."""
    here = [item for item in step.operands if item is not None and item.range.size and item.value != WORKSPACE]
    for read in here:
        if read.reads and not read.writes and any(item.writes and item.range.overlaps(read.range) for item in here):
            return read.value
    return None


def _computes(step: Step) -> bool:
    return step.kind is not StepKind.COPY
