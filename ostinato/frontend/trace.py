"""Tracing: Python model code run over symbolic tensors becomes a graph.

A `Tensor` is a value of the graph being built. Every operator applied to one adds a node, runs the operator's type rule at once (so that an error points at the
line of model code that caused it) and records that line. Names come from the scope (`layers.0.attn`) and the operator unless the caller gives one; they are
unique by construction and stable between runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, LifecycleError, OstinatoError, ShapeError
from ostinato.ir.graph import (
    UPPER_BOUND_HINT,
    Attributes,
    Graph,
    GraphInput,
    Location,
    Node,
    Role,
    Value,
    trimmed,
    unbounded_dims,
)
from ostinato.ir.locations import location
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, Extent, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["GraphBuilder", "Tensor"]

_TRACING_FILES = frozenset({__file__, str(Path(__file__).with_name("functional.py"))})


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A symbolic tensor: a named, typed value of the graph that `builder` is building."""

    builder: GraphBuilder
    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __add__(self, other: Tensor) -> Tensor:
        return self.builder.apply("add", (self, other))

    def __mul__(self, other: Tensor) -> Tensor:
        return self.builder.apply("mul", (self, other))

    def __bool__(self) -> bool:
        raise LifecycleError(
            f"the value of {self.name} is not known while tracing",
            node=self.name,
            hint="branch on configuration or shapes, not on tensor values",
        )

    def __repr__(self) -> str:
        return f"Tensor(%{self.name}: {self.type})"


class GraphBuilder:
    """Builds one graph; `finish` returns it and closes the builder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inputs: dict[str, GraphInput] = {}
        self._tensors: dict[str, Tensor] = {}
        self._nodes: list[Node] = []
        self._taken: dict[str, int] = {}
        self._scope: tuple[str, ...] = ()
        self._extents: list[tuple[str, str]] = []
        self._finished = False

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside start with `name` and a dot."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def input(self, name: str, tensor_type: TensorType) -> Tensor:
        return self._add_input(GraphInput(Value(name, tensor_type), Role.INPUT))

    def state(self, name: str, tensor_type: TensorType) -> Tensor:
        return self._add_input(GraphInput(Value(name, tensor_type), Role.STATE))

    def weight(self, name: str, tensor_type: TensorType, parts: tuple[WeightPart, ...]) -> Tensor:
        """A weight input; asking for the same name again returns the same tensor (tied weights)."""
        known = self._tensors.get(name)
        if known is not None:
            if known.type != tensor_type:
                raise ShapeError(f"weight asked for as {tensor_type} and as {known.type}", node=name)
            return known
        return self._add_input(GraphInput(Value(name, tensor_type), Role.WEIGHT, parts=parts))

    def constant(self, name: str, data: Array, axes: tuple[str, ...] = ()) -> Tensor:
        """A constant with its data; the dtype is the array's. Asking for the same name and data again returns the same tensor."""
        tensor_type = TensorType(data.shape, DType.of(data.dtype), axes)
        known = self._inputs.get(name)
        same_type = known is not None and known.value.type == tensor_type
        if known is not None and same_type and known.data is not None and known.data.tobytes() == data.tobytes():
            return self._tensors[name]
        return self._add_input(GraphInput(Value(name, tensor_type), Role.CONSTANT, data=np.ascontiguousarray(data)))

    def carry(self, name: str) -> Tensor:
        """The input of that name, which a node is going to update in place: the next run goes on from there. Raises `LifecycleError` where there is none."""
        self._check_open()
        item = self._inputs.get(name)
        if item is None or item.role is not Role.INPUT:
            raise LifecycleError("no input of that name was declared", node=name, hint="declare it with input() first")
        self._inputs[name] = replace(item, carried=True)
        return self._tensors[name]

    def extent(self, axis: str, count: Tensor) -> None:
        """Declares that rows of a leading axis named `axis` past the value of `count` (int32[1]) are not valid."""
        self._extents.append((axis, count.name))

    def apply(
        self,
        op: str,
        operands: Sequence[Tensor | None],
        attrs: Mapping[str, Attr] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Adds a node with one result and returns it; raises the operator's typed error, with the user's line, for illegal operands."""
        return self.apply_many(op, operands, attrs, None if name is None else (name,))[0]

    def apply_many(
        self,
        op: str,
        operands: Sequence[Tensor | None],
        attrs: Mapping[str, Attr] | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[Tensor, ...]:
        """Adds a node and returns all its results, called `names` inside the current scope."""
        self._check_open()
        at = _user_location()
        if op not in OP:
            raise ConfigError(
                f"there is no operator {shown(op)}\n  at {at}", hint="`ost.extend` adds operators of your own"
            )
        opdef = OP[op]
        full = Attributes(opdef.attributes(attrs or {}))
        given = trimmed(operands)
        for tensor in given:
            if not isinstance(tensor, Tensor | None):
                raise ConfigError(f"{op} is given {shown(tensor)}, expected tensors of the graph\n  at {at}")
            if tensor is not None and tensor.builder is not self:
                raise LifecycleError(f"%{tensor.name} belongs to another graph than {op} at {at}", node=tensor.name)
        try:
            types = opdef.infer(tuple(None if t is None else t.type for t in given), full)
        except OstinatoError as error:
            inputs = ", ".join("_" if t is None else repr(t) for t in given)
            raise type(error)(
                f"{error.message}\n  in {op}({inputs})\n  at {at}", node=error.node, hint=error.hint
            ) from error.__cause__
        stems = (
            list(names) if names is not None else [op if len(types) == 1 else f"{op}.{i}" for i in range(len(types))]
        )
        results = tuple(Value(self._unique(stem), t) for stem, t in zip(stems, types, strict=True))
        node = Node(op, tuple(None if t is None else t.name for t in given), results, full, location=at)
        self._nodes.append(node)
        return tuple(Tensor(self, value.name, value.type) for value in results)

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        self._check_open()
        self._finished = True
        return Graph(
            self.name,
            tuple(self._inputs.values()),
            tuple(self._nodes),
            tuple(t.name for t in outputs),
            tuple(self._extents),
        )

    def _add_input(self, item: GraphInput) -> Tensor:
        self._check_open()
        name = item.value.name
        if unbounded := unbounded_dims(item.value.type):
            raise ShapeError(
                f"dimension {', '.join(unbounded)} of {item.role.value} {item.value.type} has no upper bound\n"
                f"  at {_user_location()}",
                node=name,
                hint=UPPER_BOUND_HINT,
            )
        if name in self._inputs:
            raise LifecycleError("this input was already declared", node=name, hint="give each input a name of its own")
        self._taken.setdefault(name, 0)
        self._inputs[name] = item
        self._tensors[name] = Tensor(self, name, item.value.type)
        return self._tensors[name]

    def _unique(self, stem: str) -> str:
        name = ".".join((*self._scope, stem))
        count = self._taken.get(name)
        self._taken[name] = 0 if count is None else count + 1
        if count is None:
            return name
        return self._unique(f"{stem}_{count + 1}")

    def _check_open(self) -> None:
        if self._finished:
            raise LifecycleError(f"graph {self.name} is finished", hint="start another GraphBuilder")


def _user_location() -> Location | None:
    """The nearest frame outside the tracing files."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _TRACING_FILES:
            return location(file, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
