"""The regions that all entries of a program share: one weight table, one state table, one table of constants.

Parameters lie in the state region with what else is updated, and say what they are made of like weights. Entries that name the same weight, parameter or
state must mean the same bytes, so that what one entry trains is what another one reads; two that disagree are a `PlanError` that names both. Constants are told
apart by their content, so that equal ones of several entries are stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, GraphInput, Role
from ostinato.ir.step import ByteRange, Region
from ostinato.ir.weights import WeightPart, WeightSlot
from ostinato.planner.plan import Binding, ConstantSlot
from ostinato.planner.problem import align_up

__all__ = ["SharedRegions", "share_regions"]

_ConstantKey = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class SharedRegions:
    """The shared tables and the bytes of each region. Build with `share_regions`."""

    weights: tuple[WeightSlot, ...]
    parameters: tuple[WeightSlot, ...]
    state: tuple[Binding, ...]
    constants: tuple[ConstantSlot, ...]
    sizes: Mapping[Region, int]
    _named: Mapping[str, ByteRange] = field(repr=False)
    _by_content: Mapping[_ConstantKey, ByteRange] = field(repr=False)

    def locate(self, item: GraphInput) -> ByteRange:
        """The bytes of a weight, parameter, state or constant input; raises `PlanError` for one that was not among the shared graphs'."""
        name = item.value.name
        found = self._by_content.get(_key(item)) if item.role is Role.CONSTANT else self._named.get(name)
        if found is None:
            raise PlanError(
                f"{item.role.value} {name} is not in the shared regions",
                node=name,
                hint="share_regions needs the graph of every entry",
            )
        return found


def share_regions(graphs: Iterable[tuple[str, Graph]], device: str, alignment: int) -> SharedRegions:
    """Lays out a device's shared regions for (entry name, graph) pairs, in order of first appearance, every slot aligned.

    Raises `PlanError` when the graphs disagree.
    """
    sizes = {Region(device, kind): 0 for kind in ("weights", "state", "constants")}
    first_use: dict[str, tuple[str, GraphInput]] = {}
    named: dict[str, ByteRange] = {}
    by_content: dict[_ConstantKey, ByteRange] = {}
    weights: list[WeightSlot] = []
    parameters: list[WeightSlot] = []
    state: list[Binding] = []
    constants: list[ConstantSlot] = []
    constant_names: set[str] = set()
    conflicts: list[str] = []

    def take(kind: str, size: int) -> ByteRange:
        region = Region(device, kind)
        found = ByteRange(region, sizes[region], size)
        sizes[region] = align_up(found.end, alignment)
        return found

    for entry, graph in graphs:
        for item in graph.inputs:
            name, tensor = item.value.name, item.value.type
            if item.role is Role.CONSTANT:
                key = _key(item)
                if key not in by_content:
                    by_content[key] = take("constants", tensor.nbytes)
                    unique = name if name not in constant_names else f"{name}@{entry}"
                    constant_names.add(unique)
                    constants.append(ConstantSlot(name=unique, type=tensor, range=by_content[key], data=key[1]))
            elif item.role is not Role.INPUT:
                if name in first_use:
                    conflicts += _conflicts(entry, item, *first_use[name])
                    continue
                first_use[name] = (entry, item)
                named[name] = take("weights" if item.role is Role.WEIGHT else "state", tensor.nbytes)
                if item.role is Role.STATE:
                    state.append(Binding(name=name, type=tensor, range=named[name]))
                else:
                    table = weights if item.role is Role.WEIGHT else parameters
                    table.append(WeightSlot(name, tensor, named[name], item.parts))
    if conflicts:
        raise PlanError(
            "entries disagree about shared values:\n  " + "\n  ".join(conflicts),
            hint="all entries of a program are traced from one model and lowered with one set of options",
        )
    tables = (tuple(weights), tuple(parameters), tuple(state), tuple(constants))
    return SharedRegions(*tables, sizes, named, by_content)


def _key(item: GraphInput) -> _ConstantKey:
    if item.data is None:
        raise PlanError("constant without data", node=item.value.name)
    return str(item.value.type), item.data.tobytes()


def _conflicts(entry: str, item: GraphInput, other_entry: str, other: GraphInput) -> list[str]:
    name = item.value.name
    if item.role is not other.role:
        return [f"%{name} is a {other.role.value} in {other_entry} and a {item.role.value} in {entry}"]
    if item.value.type != other.value.type:
        return [f"{item.role.value} %{name} is {other.value.type} in {other_entry} and {item.value.type} in {entry}"]
    if item.parts != other.parts:
        return [
            f"{item.role.value} %{name} is made of {_parts(other.parts)} in {other_entry} and of {_parts(item.parts)} in {entry}"
        ]
    return []


def _parts(parts: tuple[WeightPart, ...]) -> str:
    return " + ".join(f"{part.tensor}[{part.start}:{part.stop}] {part.transform}" for part in parts) or "no tensor"
