"""Several address spaces: on which device each storage lies, and which values need a copy on another one.

A node runs where its turn says; what it makes lies in the arena of that device. Inputs, weights, constants, state and outputs stay with the entry's own device.
A value that is read on another device than its own gets a replica there: a storage of its own, in the arena of the reader's device, filled by one copy step
just before its first reader and shared by all of its readers on that device (and by every other name of the same bytes). An output made elsewhere is copied
home like one that is part of a storage.

Refuses: names that are no device, and must-alias writes that run on another device than the bytes they update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import is_device_name
from ostinato.ir.views import extent_input
from ostinato.planner.order import Scheduled
from ostinato.planner.storage import Storages

__all__ = ["spread"]


def spread(
    graph: Graph, schedule: Sequence[Scheduled], storages: Storages, device: str, ops: Mapping[str, OpDef]
) -> Storages:
    """The storages with the devices they lie on when the schedule's nodes run where it says, `device` being the entry's own; raises `PlanError` as above."""
    storages = replace(storages, device=device)
    runs = {turn.node.name: turn.device for turn in schedule if turn.device is not None and turn.device != device}
    if not runs:
        return storages
    if wrong := sorted(name for name in set(runs.values()) if not is_device_name(name)):
        raise PlanError(f"the schedule names {wrong}, which are no devices", hint='write one like "host:1"')
    devices: dict[str, str] = {}
    problems: list[str] = []
    for node in graph.nodes:
        found = runs.get(node.name)
        updated = {result: node.operands[operand] for result, operand in ops[node.op].aliased(node.operands)}
        for result, value in enumerate(node.results):
            storage = storages.places[value.name].storage
            if storage == value.name and found is not None:
                devices[storage] = found
            there = devices.get(storage, device)
            if result in updated and there != (found or device):
                problems.append(
                    f"%{value.name}: {node.op} writes %{updated[result]} in place, which lies on {there}; "
                    f"the schedule runs it on {found or device}"
                )
    if problems:
        raise PlanError(f"graph {graph.name} cannot be spread over devices:\n  " + "\n  ".join(problems))
    kinds, sizes = dict(storages.kinds), dict(storages.sizes)
    outputs = []
    for output in storages.outputs:
        storage = storages.places[output.name].storage
        if not output.copied and storage in devices:
            kinds[storage] = "arena"
            output = replace(output, copied=True)
        outputs.append(output)
    replicas: dict[tuple[str, str], str] = {}
    imports: dict[str, tuple[str, ...]] = {}
    known: dict[tuple[str, int, int, str], str] = {}  # the same bytes on the same device are one replica
    for turn in schedule:
        there = turn.device or device
        reads = (*turn.node.operands, extent_input(graph, turn.node, ops=ops))
        for name in dict.fromkeys(name for name in reads if name is not None):
            place = storages.places[name]
            if devices.get(place.storage, device) == there:
                continue
            content = storages.content[name]
            key = (content, place.offset - storages.places[content].offset, place.size, there)
            replica = known.setdefault(key, f"{name} on {there}")
            replicas[name, there] = replica
            kinds[replica], sizes[replica], devices[replica] = "arena", place.size, there
            imports[turn.node.name] = (*imports.get(turn.node.name, ()), name)
    return replace(
        storages,
        kinds=kinds,
        sizes=sizes,
        outputs=tuple(outputs),
        devices=devices,
        replicas=replicas,
        imports=imports,
    )
