"""The graph: nodes in program order, in SSA form, immutable.

A graph is values only. Weights, constants and caches are inputs with a role; a pass returns a new graph. Names are given by the frontend and kept by
passes, so that two graphs can be compared by eye. `extents` says that the leading axis of a given name is only partly valid in a run: it names the int32[1]
input that holds how many rows are; rows past it are unspecified and nobody reads them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import ShapeError
from ostinato.ir.opdef import Attr
from ostinato.ir.types import Array, Dim, TensorType
from ostinato.ir.weights import WeightPart

__all__ = [
    "UPPER_BOUND_HINT",
    "Attributes",
    "Graph",
    "GraphInput",
    "Location",
    "Node",
    "Role",
    "Value",
    "trimmed",
    "unbounded_dims",
]


_T = TypeVar("_T")


class Role(enum.Enum):
    """Who owns an input and whether it changes. A weight is frozen; a parameter comes from the checkpoint too, and training updates it in place."""

    INPUT = "input"
    WEIGHT = "weight"
    PARAMETER = "parameter"
    STATE = "state"
    CONSTANT = "constant"


class Attributes(Mapping[str, Attr]):
    """Immutable, hashable attributes in schema order.

    Equal means that the text is equal: 0.0 differs from -0.0 and 1 from True and 1.0, while NaN equals NaN.
    """

    __slots__ = ("_compared", "_hash", "_items")

    def __init__(self, items: Mapping[str, Attr] | None = None) -> None:
        self._items: dict[str, Attr] = dict(items or {})
        self._compared: tuple[tuple[str, type, Attr], ...] | None = None
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Attr:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, Attributes) and self._key() == other._key())

    def _key(self) -> tuple[tuple[str, type, Attr], ...]:
        """What is compared and hashed, made once."""
        if self._compared is None:
            self._compared = tuple(
                (name, type(value), repr(value) if isinstance(value, float) else value)
                for name, value in self._items.items()
            )
        return self._compared

    def __repr__(self) -> str:
        return f"Attributes({self._items!r})"


@dataclass(frozen=True, slots=True)
class Location:
    """The line of user code that made a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Value:
    """A named, typed value: made by exactly one input or node."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `operands` are value names in schema order, None for an absent optional one (absent ones at the end are left out).

    `impl` names the chosen implementation row once one is chosen. A node is called by the name of its first result.
    """

    op: str
    operands: tuple[str | None, ...]
    results: tuple[Value, ...]
    attrs: Attributes = field(default_factory=Attributes)
    impl: str | None = None
    location: Location | None = None

    @property
    def name(self) -> str:
        return self.results[0].name


UPPER_BOUND_HINT = "give every dimension the largest extent that it may have: memory is planned for that"


def unbounded_dims(tensor: TensorType) -> tuple[str, ...]:
    """Names of a type's dimensions that have no upper bound."""
    return tuple(extent.name for extent in tensor.shape if isinstance(extent, Dim) and extent.high is None)


def trimmed(operands: Iterable[_T | None]) -> tuple[_T | None, ...]:
    """Operands without absent ones at the end: how a node stores them."""
    kept = list(operands)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class GraphInput:
    """An input value with its role. Weights say which tensors they are made of; constants carry their data.

    `carried`: a node updates this input in place, so that a run which is given nothing new goes on from where the last one ended.
    """

    value: Value
    role: Role
    parts: tuple[WeightPart, ...] = ()
    data: Array | None = None
    carried: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphInput):
            return NotImplemented
        same_data = (self.data is None) == (other.data is None)
        if same_data and self.data is not None and other.data is not None:
            same_data = (
                self.data.dtype == other.data.dtype
                and self.data.shape == other.data.shape
                and self.data.tobytes() == other.data.tobytes()
            )
        mine, theirs = ((item.value, item.role, item.parts, item.carried) for item in (self, other))
        return same_data and mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.data is not None:
            frozen = np.array(self.data, order="C", copy=True)
            frozen.flags.writeable = False
            object.__setattr__(self, "data", frozen)


@dataclass(frozen=True)
class Graph:
    """A program over values; `outputs` are value names in order. See the module text for `extents`."""

    name: str
    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    extents: tuple[tuple[str, str], ...] = ()

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """Type of every value by name."""
        found = {item.value.name: item.value.type for item in self.inputs}
        for node in self.nodes:
            for value in node.results:
                found[value.name] = value.type
        return found

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that makes each non-input value."""
        return {value.name: node for node in self.nodes for value in node.results}

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in program order, once each; values nobody reads are absent."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for operand in dict.fromkeys(node.operands):
                if operand is not None:
                    found.setdefault(operand, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def inputs_by_name(self) -> Mapping[str, GraphInput]:
        return {item.value.name: item for item in self.inputs}

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """Symbolic dimensions in order of first appearance."""
        found: dict[str, Dim] = {}
        values = [item.value for item in self.inputs] + [value for node in self.nodes for value in node.results]
        for value in values:
            for extent in value.type.shape:
                if isinstance(extent, Dim) and found.setdefault(extent.name, extent) != extent:
                    raise ShapeError(f"dimension {extent.name} appears with different bounds")
        return tuple(found.values())

    @cached_property
    def unbounded(self) -> tuple[str, ...]:
        """Dimensions without an upper bound, each with the value that has it first and the user's line where one is known."""
        found: dict[str, str] = {}
        for item in self.inputs:
            for dim in unbounded_dims(item.value.type):
                found.setdefault(dim, f"dimension {dim} of {item.role.value} %{item.value.name}")
        for node in self.nodes:
            for value in node.results:
                for dim in unbounded_dims(value.type):
                    at = f" ({node.location})" if node.location is not None else ""
                    found.setdefault(dim, f"dimension {dim} of %{value.name}{at}")
        return tuple(found.values())

    def with_role(self, role: Role) -> tuple[GraphInput, ...]:
        return tuple(item for item in self.inputs if item.role is role)

    @cached_property
    def updated(self) -> tuple[GraphInput, ...]:
        """The inputs whose bytes a node may take over: state, parameters, and inputs that are carried from run to run."""
        return tuple(item for item in self.inputs if item.carried or item.role in (Role.STATE, Role.PARAMETER))

    def counts(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """How many rows of each counted axis are valid, as these inputs say."""
        return {axis: int(inputs[name][0]) for axis, name in self.extents}

    def operand_types(self, node: Node) -> tuple[TensorType | None, ...]:
        return tuple(None if name is None else self.types[name] for name in node.operands)

    def bind(self, dims: Mapping[str, int]) -> Graph:
        """The graph with its symbolic dimensions replaced; raises `ShapeError` for a missing, unknown, out-of-bounds or unbounded one."""
        if self.unbounded:
            raise ShapeError(f"{'; '.join(self.unbounded)}: no upper bound", hint=UPPER_BOUND_HINT)
        known = {dim.name for dim in self.dims}
        dims = {name: integer(value, f"dimension {name}", error=ShapeError) for name, value in dims.items()}
        if unknown := sorted(set(dims) - known):
            raise ShapeError(f"unknown dimensions {unknown}", hint=f"the graph has {sorted(known)}")
        if missing := sorted(known - set(dims)):
            raise ShapeError(f"dimensions {missing} are not bound", hint=f"pass integers for {missing}")
        if not known:
            return self
        inputs = tuple(replace(item, value=Value(item.value.name, item.value.type.bind(dims))) for item in self.inputs)
        nodes = tuple(
            replace(
                node,
                results=tuple(Value(value.name, value.type.bind(dims)) for value in node.results),
            )
            for node in self.nodes
        )
        return Graph(self.name, inputs, nodes, self.outputs, self.extents)
