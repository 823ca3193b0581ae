"""What the panels of a page know of a plan: steps, slots of the arenas, values and regions, as columns of numbers over the page's table of texts.

Columns because a training step of many layers has thousands of slots: a page holds each text once, and its panels read typed arrays. Everything is worked out
here that needs the graph or the operator table (who makes and who reads a value, what a slot is for, which layer it belongs to); a page only draws.

`role` is what a slot's bytes are for (`roles.py`). `layer` is a repeated layer's number, from the names of the values or, where these say nothing, from the
repeats found by structure; -1 for what belongs to none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, Region, Step
from ostinato.ir.types import TensorType
from ostinato.ir.weights import WeightSlot
from ostinato.planner.plan import ArenaStats, Binding, ConstantSlot, EntryPlan, ProgramPlan
from ostinato.planner.usage import usage_changes
from ostinato.tools.view.repeats import find_repeats
from ostinato.tools.view.roles import ROLES, Touches
from ostinato.tools.view.strings import Strings

__all__ = ["layers_of", "memory_data", "plan_data"]

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def layers_of(graph: Graph | None, names: Iterable[str]) -> Callable[[str], int]:
    """A function from the name of a value or node to its layer's number."""
    if graph is None or any(_NUMBER.search(name) for name in names):
        return _named_layer
    repeated: dict[str, int] = {}
    for repeat in find_repeats(graph):
        for index in range(repeat.start, repeat.stop):
            for value in graph.nodes[index].results:
                repeated[value.name] = (index - repeat.start) // repeat.period
    return lambda name: repeated.get(name, -1)


def _named_layer(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else -1


def plan_data(plan: EntryPlan, strings: Strings, graph: Graph | None = None) -> dict[str, Any]:
    """The plan of an entry for a page. With its graph it says types of intermediate values, operators, and the work that the operator table models."""
    return _PlanData(plan, strings, graph).data()


class _PlanData:
    def __init__(self, plan: EntryPlan, strings: Strings, graph: Graph | None) -> None:
        self._plan, self._strings, self._graph = plan, strings, graph
        self._nodes: Mapping[str, Node] = {node.name: node for node in graph.nodes} if graph is not None else {}
        self._types: Mapping[str, TensorType] = graph.types if graph is not None else {}
        self._layer = layers_of(graph, [step.node for step in plan.steps])
        self._touches = Touches(plan)

    def data(self) -> dict[str, Any]:
        plan = self._plan
        arenas = {stats.device: index for index, stats in enumerate(plan.stats.arenas)}
        steps, slots = self._steps(), self._slots(arenas)
        return {
            "device": plan.device,
            "target": plan.target,
            "hash": plan.hash,
            "alignment": plan.alignment,
            "dims": dict(plan.dims),
            "options": dict(plan.options),
            "clones": dict(plan.clones),
            "arenas": [self._arena(stats) for stats in plan.stats.arenas],
            "counts": {
                "steps": plan.stats.steps,
                "launches": plan.stats.launches,
                "copies": plan.stats.copies,
                "strided copies": plan.stats.strided_copies,
                "results in place": plan.stats.in_place,
                "recomputed": plan.stats.recomputed,
            },
            "extra_work": plan.stats.extra_work,
            "io": {
                "device": plan.device,
                "kind": "io",
                "bytes": plan.io_bytes,
                "items": [
                    *(_item(item, "input", self._strings) for item in plan.inputs),
                    *(_item(item, "output", self._strings) for item in plan.outputs),
                ],
            },
            "steps": steps,
            "slots": slots,
            "elsewhere": self._elsewhere(),
            "roles": list(ROLES),
        }

    def _arena(self, stats: ArenaStats) -> dict[str, Any]:
        found = stats.model_dump(exclude={"elsewhere", "peak_values"} | set(_COUNTS))
        changes = usage_changes(slot.tenancy for slot in self._plan.slots_on(stats.device))
        found["usage"] = {
            "step": [step for step, _ in changes],
            "live": [usage.live for _, usage in changes],
            "extent": [usage.extent for _, usage in changes],
        }
        return found

    def _steps(self) -> dict[str, Any]:
        steps = self._plan.steps
        work = [_work(step, self._nodes.get(step.node), self._types) for step in steps]
        return {
            "node": [self._strings(step.node) for step in steps],
            "op": [self._strings(self._op(step.node)) for step in steps],
            "kernel": [self._strings(step.kernel or step.kind.value) for step in steps],
            "device": [self._strings(step.device) for step in steps],
            "lane": [step.lane for step in steps],
            "layer": [self._layer(step.node) for step in steps],
            "flops": [flops for flops, _ in work],
            "bytes": [nbytes for _, nbytes in work],
        }

    def _elsewhere(self) -> list[list[int]]:
        """Values outside the arenas that steps touch: name, first and last step that does."""
        touched: dict[str, list[int]] = {}
        for table in (self._touches.made, self._touches.read):
            for name, positions in table.items():
                if self._touches.places[name].region.kind != "arena":
                    touched.setdefault(name, []).extend((positions[0], positions[-1]))
        return [[self._strings(name), min(positions), max(positions)] for name, positions in touched.items()]

    def _op(self, node: str) -> str:
        return self._nodes[node].op if node in self._nodes else ""

    def _slots(self, arenas: Mapping[str, int]) -> dict[str, Any]:
        """The slots, and the values of slot i at [first_value[i], first_value[i + 1]) of the columns of `values`."""
        plan, touches = self._plan, self._touches
        columns: dict[str, list[Any]] = {
            what: [] for what in ("arena", "first", "last", "offset", "bytes", "role", "op", "layer")
        }
        starts: list[int] = [0]
        values: dict[str, list[Any]] = {what: [] for what in ("name", "type", "offset", "bytes", "made", "read")}
        for slot in plan.slots:
            first = slot.values[0]
            producer = self._graph.producers.get(first) if self._graph is not None else None
            row = (
                arenas[slot.range.region.device],
                slot.first,
                slot.last,
                slot.range.offset,
                slot.range.size,
                ROLES.index(self._touches.role(slot)),
                self._strings(None if producer is None else producer.op),
                self._layer(first.removeprefix(f"{WORKSPACE} of ")),
            )
            for column, item in zip(columns.values(), row, strict=True):
                column.append(item)
            for value in slot.values:
                values["name"].append(self._strings(value))
                values["type"].append(self._strings(str(self._types[value]) if value in self._types else None))
                place = touches.places.get(value, slot.range)
                values["offset"].append(place.offset)
                values["bytes"].append(place.size)
                values["made"].append(next(iter(touches.made.get(value, ())), -1))
                values["read"].append(touches.read.get(value, []))
            starts.append(len(values["name"]))
        return {**columns, "first_value": starts, "values": values}


_COUNTS = ("steps", "launches", "copies", "strided_copies", "in_place", "recomputed", "extra_work")


def _work(step: Step, node: Node | None, types: Mapping[str, TensorType]) -> tuple[int, int]:
    """Floating-point operations and bytes of a step: as the operator table has them, or the bytes of the operands where the graph is not known."""
    opdef: OpDef | None = OP.get(node.op) if node is not None else None
    if node is None or opdef is None:
        touched = (op.range.size * (op.reads + op.writes) for op in step.operands if op is not None)
        return 0, sum(touched)
    operands = [None if name is None else types[name] for name in node.operands]
    cost = opdef.cost(operands, [value.type for value in node.results], node.attrs)
    return cost.flops, cost.bytes


def _item(slot: Binding | WeightSlot | ConstantSlot, what: str, strings: Strings) -> list[int]:
    """Name, type, offset, bytes, what it is."""
    return [strings(slot.name), strings(str(slot.type)), slot.range.offset, slot.range.size, strings(what)]


def memory_data(
    program: ProgramPlan, strings: Strings, addresses: Mapping[Region, int] | None = None
) -> list[dict[str, Any]]:
    """The regions of a program, for a page: bytes, what lies there for all entries alike, and the address of the first byte where `addresses` has one.

    Addresses are hexadecimal text: a number of a page holds no 64 bits.
    """
    bases = addresses or {}
    items: dict[Region, list[list[int]]] = {}
    tables: tuple[tuple[str, Iterable[Binding | WeightSlot | ConstantSlot]], ...] = (
        ("weight", program.weights),
        ("parameter", program.parameters),
        ("state", program.state),
        ("constant", program.constants),
    )
    for what, slots in tables:
        for slot in slots:
            items.setdefault(slot.range.region, []).append(_item(slot, what, strings))
    return [
        {
            "device": found.region.device,
            "kind": found.region.kind,
            "bytes": found.bytes,
            "base": hex(bases[found.region]) if found.region in bases else None,
            "items": sorted(items.get(found.region, ()), key=lambda item: item[2:4]),
        }
        for found in program.regions
    ]
