"""Which values share bytes, and in which kind of region these live.

Values that lie in one storage (through views, however nested, and must-alias results) are one class; each value has a place in it. Storages of inputs,
weights, parameters, constants and state belong to the caller or the program and are never planned. An output lives in the `io` region from the start when it is
all of a storage that the graph makes itself; an output that is something else (part of a storage, an input, a weight, a value returned before) is copied there.

Refuses, as one `PlanError` that lists everything found: dimensions that are unbound or have no upper bound, must-alias writes to anything but state,
parameters, carried inputs or the graph's own values, must-alias through strided views or with another size, outputs that are strided views (a copy step cannot
gather).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import UPPER_BOUND_HINT, Graph, Node, Role
from ostinato.ir.opdef import OpDef
from ostinato.ir.types import TensorType
from ostinato.ir.views import StorageView, ViewTable, viewed

__all__ = ["Output", "Place", "Storages", "is_dense", "resolve_storages"]

KIND_OF_ROLE = {
    Role.INPUT: "io",
    Role.WEIGHT: "weights",
    Role.PARAMETER: "state",
    Role.STATE: "state",
    Role.CONSTANT: "constants",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A value's bytes: `size` of them from byte `offset` of the storage that the value `storage` owns. A strided view's size spans first to last element."""

    storage: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Output:
    """Output number `index` of the graph; `copied` unless its storage itself is in `io`."""

    index: int
    name: str
    copied: bool


@dataclass(frozen=True, slots=True)
class Storages:
    """Places of all values; for each storage its bytes and kind of region; for each value the one whose bytes it reads (itself, or what it is a view of).

    Storages lie on `device` but for those in `devices`. `replicas` names the storage of a value's copy on another device, by value and device; `imports`
    lists for a node the values that it reads from such copies. `spaces.spread` fills these four.
    """

    views: Mapping[str, StorageView]
    places: Mapping[str, Place]
    content: Mapping[str, str]
    sizes: Mapping[str, int]
    kinds: Mapping[str, str]
    outputs: tuple[Output, ...]
    device: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[tuple[str, str], str] = field(default_factory=dict)
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def at(self, value: str, device: str) -> Place:
        """Where a step on `device` finds a value: in its own storage, or in its copy there."""
        place = self.places[value]
        replica = self.replicas.get((value, device)) if self.replicas else None
        return place if replica is None else Place(replica, 0, place.size)

    def is_planned(self, storage: str) -> bool:
        """Whether that is a storage with bytes in an arena."""
        return self.kinds.get(storage) == "arena" and self.sizes[storage] > 0

    def device_of(self, storage: str) -> str:
        """The device whose memory holds a storage."""
        return self.devices.get(storage, self.device)

    def home_of(self, value: str) -> str:
        """The device on which a value lies without being copied there."""
        return self.device_of(self.places[value].storage)


def is_dense(tensor: TensorType, view: StorageView) -> bool:
    """Whether the value's elements fill its bytes in the order of its own layout."""
    return tensor.is_packed or view.strides == tensor.strides or (view.contiguous and tensor.is_natural)


def _span(tensor: TensorType, view: StorageView) -> int:
    """Bytes from the first to the last element, that one included."""
    if is_dense(tensor, view) or not tensor.elements:
        return tensor.nbytes
    assert view.strides is not None
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.static_shape, view.strides, strict=True))
    return tensor.dtype.nbytes(last + 1)


def resolve_storages(graph: Graph, ops: Mapping[str, OpDef]) -> Storages:
    """Storage classes, places and outputs of a graph with bound dimensions; raises `PlanError` as listed in the module text."""
    if graph.unbounded:
        raise PlanError(
            f"graph {graph.name} cannot be planned: {'; '.join(graph.unbounded)}: no upper bound", hint=UPPER_BOUND_HINT
        )
    if graph.dims:
        names = [f"{dim.name} in {dim.bounds}" for dim in graph.dims]
        raise PlanError(
            f"graph {graph.name} has unbound dimensions {', '.join(names)}; a plan needs every one as an integer",
            hint="bind the graph to a bucket first (graph.bind)",
        )
    if unknown := sorted({node.op for node in graph.nodes} - set(ops)):
        raise PlanError(f"graph {graph.name} has operators {unknown} that the table lacks")
    problems: list[str] = []
    views = ViewTable(graph, ops=ops)
    places = {
        name: Place(view.base, graph.types[name].dtype.nbytes(view.offset), _span(graph.types[name], view))
        for name, view in views.items()
    }
    kinds = {item.value.name: KIND_OF_ROLE[item.role] for item in graph.inputs}
    content = {item.value.name: item.value.name for item in graph.inputs}
    for node in graph.nodes:
        opdef = ops[node.op]
        for value in node.results:
            content[value.name] = content[viewed(node)] if opdef.is_view else value.name
            if views[value.name].base == value.name:
                kinds[value.name] = "arena"
        problems += _must_alias_problems(graph, node, opdef, views, kinds)
    sizes = {name: graph.types[name].nbytes for name in kinds}
    # the value whose bytes a storage holds in the end
    final = {
        views[value.name].base: value.name for node in graph.nodes if not ops[node.op].is_view for value in node.results
    }
    outputs, refused = _outputs(graph, views, places, content, sizes, kinds, final)
    problems += refused
    if problems:
        raise PlanError(f"graph {graph.name} cannot be planned:\n  " + "\n  ".join(problems))
    for output in outputs:
        if not output.copied:
            kinds[places[output.name].storage] = "io"
    return Storages(views, places, content, sizes, kinds, outputs)


def _must_alias_problems(
    graph: Graph, node: Node, opdef: OpDef, views: Mapping[str, StorageView], kinds: Mapping[str, str]
) -> list[str]:
    problems: list[str] = []
    for result, operand in opdef.aliased(node.operands):
        value, name = node.results[result], node.operands[operand]
        assert name is not None
        source = graph.types[name]
        base = views[name].base
        if (value.type.dtype, value.type.nbytes) != (source.dtype, source.nbytes):
            problems.append(f"%{value.name}: {value.type} must be the bytes of %{name}, found {source}")
        if not is_dense(source, views[name]):
            problems.append(f"%{value.name}: {node.op} writes %{name} in place, which is a strided view of %{base}")
        if kinds[base] not in ("arena", "state") and not graph.inputs_by_name[base].carried:
            problems.append(
                f"%{value.name}: {node.op} writes %{name} in place, which lies in the {kinds[base]} region (%{base}); "
                "give that input the role state or parameter, or say that it is carried"
            )
    return problems


def _outputs(
    graph: Graph,
    views: Mapping[str, StorageView],
    places: Mapping[str, Place],
    content: Mapping[str, str],
    sizes: Mapping[str, int],
    kinds: Mapping[str, str],
    final: Mapping[str, str],
) -> tuple[tuple[Output, ...], Sequence[str]]:
    claimed: set[str] = set()
    outputs: list[Output] = []
    problems: list[str] = []
    for index, name in enumerate(graph.outputs):
        place = places[name]
        if not is_dense(graph.types[name], views[name]):
            problems.append(
                f"output {index} %{name} is a strided view of %{place.storage}; return a contiguous value (contiguous(x)) instead"
            )
        direct = (
            kinds[place.storage] == "arena"
            and place.storage not in claimed
            and (place.offset, place.size) == (0, sizes[place.storage])
            and final[place.storage] == content[name]
        )
        if direct:
            claimed.add(place.storage)
        outputs.append(Output(index, name, not direct))
    return tuple(outputs), problems
