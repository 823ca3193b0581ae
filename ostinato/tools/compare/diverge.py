"""The first node whose results differ between two sides, in program order.

Both sides run the same steps again with every node observed. Of a captured graph nothing can be seen while it is replayed: it is captured anew over a plan in
which no byte serves twice, so that all results are still there when a replay is done. Sides with other graphs are compared at the values that both have, which
passes keep the names of; sides with other buckets cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from ostinato.ir.ops import OP
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.planner.settings import DEFAULT_SETTINGS
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.differences import first_difference
from ostinato.tools.compare.examine import node_place
from ostinato.tools.compare.report import NodePlace
from ostinato.tools.compare.runs import poison_memory
from ostinato.tools.compare.sides import Side, Sides
from ostinato.tools.compare.variants import in_plan
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Divergence", "Seen", "first_divergence"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two sides part, and the two values; or why nothing can be said."""

    place: NodePlace | None
    left: float
    right: float
    note: str = ""


class Seen:
    """A side whose runs show the result of every node that is no view."""

    def __init__(self, sides: Sides, side: Side, poison: bool) -> None:
        self._values: dict[str, Array] = {}
        base = sides.program(side)
        mode = base.mode if side.mode == "auto" else side.mode
        self.captured = mode == "captured"
        self._poison = poison
        if self.captured:
            settings = replace(DEFAULT_SETTINGS, reuse=False)
            self.executable = in_plan(base, settings, mode, capture=side.capture)
        else:
            self.executable = sides.open(side, self._record)
        if poison:
            poison_memory(self.executable, state=True)

    def run(self, step: WorkStep) -> Mapping[str, Array]:
        """Runs a step and returns what nodes made, by the name of the value. State carries over."""
        self._values = {}
        if self._poison:
            poison_memory(self.executable, state=False)
        self.executable.run(step.entry, step.inputs, (step.output,))
        if self.captured:
            self._values = dict(_left_behind(self.executable, self.executable.entries[step.entry]))
        return self._values

    def _record(self, name: str, values: Array) -> None:
        self._values[name] = np.array(values)


def first_divergence(
    left: Seen, right: Seen, left_steps: Sequence[WorkStep], right_steps: Sequence[WorkStep], tolerance: float
) -> Divergence:
    """Runs both through their steps until a value differs: in a bit with `tolerance` 0, otherwise by more than that many root mean squares of the left one."""
    for number, (mine, theirs) in enumerate(zip_longest(left_steps, right_steps)):
        if mine is None or theirs is None or not _alike(mine, theirs):
            return Divergence(None, 0.0, 0.0, "the sides run other entries, so that their nodes are not compared")
        graph = left.executable.program.graphs[mine.entry]
        found = first_difference(graph, left.run(mine), right.run(theirs), graph.counts(mine.inputs), tolerance)
        if found is not None:
            node = graph.producers[found.name]
            place = node_place(graph, node, mine.entry, number, found.name, found.index)
            return Divergence(place, found.left, found.right)
    return Divergence(None, 0.0, 0.0, "no result of a node differs when nodes are observed")


def _alike(mine: WorkStep, theirs: WorkStep) -> bool:
    same = mine.entry == theirs.entry and mine.inputs.keys() == theirs.inputs.keys()
    return same and all(mine.inputs[name].shape == theirs.inputs[name].shape for name in mine.inputs)


def _left_behind(executable: Executable, plan: EntryPlan) -> Iterator[tuple[str, Array]]:
    """What nodes left in memory of their own, when all steps are done."""
    graph = executable.program.graphs[plan.name]
    memory = {"arena": executable.regions.arena, "io": executable.regions.io}
    for step in plan.steps:
        node = graph.producers.get(step.node)
        updates = set() if node is None else {result for result, _ in OP[node.op].aliased(node.operands)}
        own = set() if node is None else {v.name for i, v in enumerate(node.results) if i not in updates}
        for operand in step.operands:
            if operand is None or not operand.writes or operand.value not in own:
                continue
            buffer, tensor = memory.get(operand.range.region.kind), graph.types[operand.value]
            if buffer is not None and not tensor.dtype.is_block and not tensor.is_packed:
                flat = buffer.read(tensor.dtype.numpy, (tensor.elements,), operand.range.offset)
                strides = tuple(stride * flat.dtype.itemsize for stride in tensor.strides)
                yield operand.value, np.lib.stride_tricks.as_strided(flat, tensor.static_shape, strides)
