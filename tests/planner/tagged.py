"""The judge of harm: executes a plan of the fake operators on tagged bytes, in every interleaving that its lanes, signals and waits allow.

Every byte of every value has its own tag, and an operator is "write the tags of the results". A step is two moments: at its begin it fills its results
and workspace with its own junk (except bytes it legally takes over), at its end it looks whether its operands, its junk and its workspace are untouched
and writes the results. A plan is harmful if any order of moments finds a foreign tag, or ends with a foreign tag in an output or in state. Shares
nothing with planner or checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.step import WORKSPACE, Region, Step, StepOperand
from ostinato.ir.target import Target
from ostinato.planner.plan import EntryPlan, ProgramPlan

__all__ = ["is_harmful"]

Tag = tuple[str, int]
Memory = dict[tuple[Region, int], Tag]


def is_harmful(graph: Graph, entry: EntryPlan, program: ProgramPlan, target: Target) -> bool:
    """Whether some interleaving gives wrong bytes."""
    return _Execution(graph, entry, program, target).explore()


def _tags(graph: Graph) -> dict[str, list[Tag]]:
    """What each value's elements must be, in order."""
    tags = {item.value.name: [(item.value.name, i) for i in range(item.value.type.nbytes)] for item in graph.inputs}
    for node in graph.nodes:
        if node.op == "part":
            start, step = node.attrs["start"], node.attrs["step"]
            assert isinstance(start, int)
            assert isinstance(step, int)
            source = tags[node.operands[0] or ""]
            count = node.results[0].type.elements
            tags[node.name] = [source[start + i * step] for i in range(count)]
        else:
            tags.update({v.name: [(v.name, i) for i in range(v.type.elements)] for v in node.results})
    return tags


def _strides(graph: Graph) -> dict[str, int]:
    """Bytes between the elements of each value, through views."""
    strides = dict.fromkeys(graph.types, 1)
    for node in graph.nodes:
        if node.op == "part":
            step = node.attrs["step"]
            assert isinstance(step, int)
            strides[node.name] = strides[node.operands[0] or ""] * step
    return strides


class _Execution:
    def __init__(self, graph: Graph, entry: EntryPlan, program: ProgramPlan, target: Target) -> None:
        self.graph, self.entry, self.program, self.target = graph, entry, program, target
        self.tags, self.strides = _tags(graph), _strides(graph)
        self.lanes: dict[int, list[int]] = {}
        for position, step in enumerate(entry.steps):
            self.lanes.setdefault(step.lane, []).append(position)
        self.signaller = {event: p for p, step in enumerate(entry.steps) for event in step.signals}
        self.nodes = {node.name: node for node in graph.nodes}

    def explore(self) -> bool:
        """Depth first over the next moment of each lane; stops at the first harm."""
        start: tuple[dict[int, int], Memory] = (dict.fromkeys(self.lanes, 0), self._initial())
        stack = [start]
        while stack:
            moments, memory = stack.pop()
            done = {p for lane, steps in self.lanes.items() for p in steps[: moments[lane] // 2]}
            ready = [lane for lane, steps in self.lanes.items() if self._ready(steps, moments[lane], done)]
            if not ready:
                if sum(moments.values()) < 2 * len(self.entry.steps) or self._wrong_at_end(memory):
                    return True
                continue
            for lane in ready:
                position, at_end = self.lanes[lane][moments[lane] // 2], moments[lane] % 2 == 1
                after = dict(memory) if len(ready) > 1 else memory
                step = self.entry.steps[position]
                if at_end:
                    if self._end(step, position, after):
                        return True
                else:
                    self._begin(step, position, after)
                stack.append(({**moments, lane: moments[lane] + 1}, after))
        return False

    def _ready(self, steps: Sequence[int], moment: int, done: set[int]) -> bool:
        if moment == 2 * len(steps):
            return False
        step = self.entry.steps[steps[moment // 2]]
        return moment % 2 == 1 or all(self.signaller.get(event) in done for event in step.waits)

    def _initial(self) -> Memory:
        memory: Memory = {}
        places = [(b.name, b.range.region, b.range.offset) for b in (*self.entry.inputs, *self.program.state)]
        places += [(slot.name, slot.range.region, slot.range.offset) for slot in self.program.weights]
        for name, region, offset in places:
            if name in self.tags:
                memory.update({(region, offset + i): tag for i, tag in enumerate(self.tags[name])})
        return memory

    def _bytes(self, operand: StepOperand, *, whole: bool = False) -> list[tuple[Region, int]]:
        """Addresses of the operand's elements."""
        place = operand.range
        if whole or operand.value == WORKSPACE:
            return [(place.region, place.offset + i) for i in range(place.size)]
        stride = self.strides[operand.value]
        return [(place.region, place.offset + i * stride) for i in range(len(self.tags[operand.value]))]

    def _taken_over(self, step: Step, node: Node | None) -> set[int]:
        """Operand positions whose old bytes the step may overwrite while it reads them."""
        if node is None:
            return set()
        row = self.target.row(node.op, node.impl or "")
        assert row is not None
        found = {
            i for i, operand in enumerate(step.operands) if operand is not None and operand.reads and operand.writes
        }
        for i, result in enumerate(step.operands):
            if result is None or not result.writes or result.value == WORKSPACE or i in found:
                continue
            readers = [
                j
                for j, other in enumerate(step.operands)
                if other is not None and other.reads and other.range.overlaps(result.range)
            ]
            allowed = [
                j
                for j in readers
                if (row.operands[i], row.operands[j]) in row.in_place
                and self._bytes(step.operands[j]) == self._bytes(result)  # type: ignore[arg-type]
            ]
            if readers and readers == allowed:
                found.add(i)
        return found

    def _begin(self, step: Step, position: int, memory: Memory) -> None:
        taken = self._taken_over(step, self._node(step))
        for index, operand in enumerate(step.operands):
            if operand is not None and operand.writes and index not in taken:
                memory.update({at: (f"#junk {position} {index}", i) for i, at in enumerate(self._bytes(operand))})

    def _end(self, step: Step, position: int, memory: Memory) -> bool:
        node = self._node(step)
        taken = self._taken_over(step, node)
        for index, operand in enumerate(step.operands):
            if operand is None:
                continue
            if operand.reads:
                expected = self.tags[self._read_value(node, operand)]
                if [memory.get(at) for at in self._bytes(operand)] != expected:
                    return True
            if operand.writes and index not in taken:
                junk = [(f"#junk {position} {index}", i) for i in range(len(self._bytes(operand)))]
                if [memory.get(at) for at in self._bytes(operand)] != junk:
                    return True
        for operand in step.operands:
            if operand is not None and operand.writes and operand.value != WORKSPACE:
                tags = self.tags[self._written_value(node, operand)]
                memory.update(zip(self._bytes(operand), tags, strict=True))
        return False

    def _node(self, step: Step) -> Node | None:
        return self.nodes[step.node] if step.kernel else None

    def _read_value(self, node: Node | None, operand: StepOperand) -> str:
        if node is not None and node.op == "update" and operand.value == node.name:
            return node.operands[0] or ""
        return operand.value

    def _written_value(self, node: Node | None, operand: StepOperand) -> str:
        return node.name if node is not None and node.op == "update" else operand.value

    def _wrong_at_end(self, memory: Memory) -> bool:
        for binding in self.entry.outputs:
            found = [memory.get((binding.range.region, binding.range.offset + i)) for i in range(binding.range.size)]
            if found != self.tags[binding.name]:
                return True
        latest: Mapping[str, str] = self._latest_state()
        for binding in self.program.state:
            if binding.name in latest:
                found = [
                    memory.get((binding.range.region, binding.range.offset + i)) for i in range(binding.range.size)
                ]
                if found != self.tags[latest[binding.name]]:
                    return True
        return False

    def _latest_state(self) -> dict[str, str]:
        """State input -> the last value that took over its bytes (whole states only)."""
        latest = {item.value.name: item.value.name for item in self.graph.with_role(Role.STATE)}
        owner = {name: name for name in latest}
        for node in self.graph.nodes:
            if node.op == "update" and (source := node.operands[0]) in owner:
                owner[node.name] = owner[source or ""]
                latest[owner[node.name]] = node.name
        return latest
