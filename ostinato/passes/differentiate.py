"""Reverse-mode differentiation, graph to graph: behind a forward graph the nodes that compute the gradients of one of its scalars (Speelpenning 1980, Griewank
and Walther 2008).

Nodes are visited from the last to the first. Each that the scalar depends on, and that something wanted reaches, is handed to the rule of its operator
(`ir/derivative.py`) with the gradients of its results, which are complete by then: every reader stands behind it. The first contribution to a gradient is taken
as it is, later ones are added: in place (`accumulate`) where nothing else reads the sum so far, as for a parameter that is used several times, else by `add`.
Nothing is filled with zeros, and what does not depend on a wanted value costs nothing.

A value that a later node updates in place is another value then; its gradient is that of the bytes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.derivative import NotDifferentiable
from ostinato.ir.errors import ConfigError, LayoutError, OstinatoError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value, trimmed
from ostinato.ir.opdef import Attr, OpDef
from ostinato.ir.ops import OP
from ostinato.ir.training import BACKWARD_PREFIX, GRADIENT_PREFIX
from ostinato.ir.types import DType, TensorType
from ostinato.ir.views import ViewTable
from ostinato.passes.rewrite import Names

__all__ = ["Differentiated", "differentiate"]

SEED = "one"
"""The constant 1.0: the gradient of the scalar by itself."""


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A graph with the nodes of its gradients behind its own. `gradients` names the gradient of each wanted value that the scalar depends on; the others have
    none, which is not the same as zeros: an optimizer leaves them alone. `added` counts the contributions that were added to another, `in_place` those of
    them that go into its bytes."""

    graph: Graph
    gradients: Mapping[str, str]
    added: int
    in_place: int


def differentiate(graph: Graph, scalar: str, wanted: Iterable[str]) -> Differentiated:
    """The graph with the gradients of the float32 scalar `scalar` by the values `wanted`, float32 each. Its outputs stay as they are.

    Raises `ConfigError` for a name that the graph does not have, a `scalar` that is none, a wanted value that is no float, and for an operator without a
    derivative between the two, with its line.
    """
    names = list(dict.fromkeys(wanted))
    for name in (scalar, *names):
        if name not in graph.types:
            raise ConfigError(f"the graph has no value %{name}", node=name, hint="name an input or a node's result")
    if graph.types[scalar].dtype is not DType.F32 or graph.types[scalar].shape:
        raise ConfigError(
            f"expected a float32 scalar to differentiate, found {graph.types[scalar]}",
            node=scalar,
            hint="end in a loss: one number",
        )
    for name in names:
        if not graph.types[name].dtype.is_float:
            raise ConfigError(f"{graph.types[name]} has no gradient", node=name, hint="only floats have")
    sweep = _Sweep(graph, names)
    sweep.run(scalar)
    found = {name: sweep.gradients[name] for name in names if name in sweep.gradients}
    inputs = graph.inputs if sweep.seed is None else (*graph.inputs, sweep.seed)
    nodes, renamed = _called_after(found, graph, sweep.nodes)
    made = Graph(graph.name, inputs, (*graph.nodes, *nodes), graph.outputs, graph.extents)
    return Differentiated(made, renamed, sweep.added, sweep.in_place)


def _called_after(found: Mapping[str, str], graph: Graph, nodes: Sequence[Node]) -> tuple[list[Node], dict[str, str]]:
    """The new nodes with each wanted gradient called `grad.<value>`, where it is a value of its own."""
    taken = set(graph.types) | {value.name for node in nodes for value in node.results}
    made = {value.name for node in nodes for value in node.results}
    renamed: dict[str, str] = {}
    for name, gradient in found.items():
        wished = f"{GRADIENT_PREFIX}{name}"
        if gradient in made and gradient not in renamed and wished not in taken:
            renamed[gradient] = wished
    called = [
        Node(
            node.op,
            tuple(None if name is None else renamed.get(name, name) for name in node.operands),
            tuple(Value(renamed.get(value.name, value.name), value.type) for value in node.results),
            node.attrs,
            node.impl,
            node.location,
        )
        for node in nodes
    ]
    return called, {name: renamed.get(gradient, gradient) for name, gradient in found.items()}


class _Sweep:
    """The walk from the last node to the first. `nodes` are those it added, in order; `gradients` the sums so far, by value."""

    def __init__(self, graph: Graph, wanted: Sequence[str]) -> None:
        self.graph = graph
        self.types: dict[str, TensorType] = dict(graph.types)
        self.names = Names(graph)
        self.nodes: list[Node] = []
        self.gradients: dict[str, str] = {}
        self.seed: GraphInput | None = None
        self.added = 0
        self.in_place = 0
        self._read: set[str] = set()  # values that a node we added reads
        self._given: dict[str, int] = {}  # to how many gradients a value contributes as it is
        self._makers: dict[str, str] = {}  # the operator that made a value we added
        self._views = ViewTable(graph)
        self._varies = _reached(graph, wanted)

    def run(self, scalar: str) -> None:
        if scalar not in self._varies:
            return
        one = TensorType((), DType.F32)
        self.seed = GraphInput(Value(self.names.unique(SEED), one), Role.CONSTANT, data=np.ones((), np.float32))
        self.types[self.seed.value.name] = one
        self._views.add(self.seed.value.name, one)
        self.gradients[scalar] = self.seed.value.name
        for node in reversed(self.graph.nodes):
            if any(value.name in self.gradients for value in node.results):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        if not any(self.varies(name) for name in node.operands):
            return
        rule = OP[node.op].derivative
        if rule is None or isinstance(rule, NotDifferentiable):
            reason = "its entry has no rule" if rule is None else rule.reason
            at = "" if node.location is None else f" ({node.location})"
            raise ConfigError(
                f"{node.op} has no derivative: {reason}{at}",
                node=node.name,
                hint="keep it out of what lies between the loss and what is trained, or give it a rule: docs/extend.md",
            )
        view = _Behind(self, node)
        for index, gradient in rule(view).items():
            name = node.operands[index]
            if name is not None and self.varies(name):
                self._contribute(name, gradient, node, frozenset(view.made))

    def varies(self, name: str | None) -> bool:
        """Whether a value is a float that depends on something wanted."""
        return name is not None and name in self._varies

    def _contribute(self, value: str, gradient: str, node: Node, made: frozenset[str]) -> None:
        before, after = self.types[value], self.types[gradient]
        if after.dtype is not DType.F32 or after.shape != before.shape:
            raise ConfigError(
                f"the derivative of {node.op} gives {after} as the gradient of {before}",
                node=node.name,
                hint="a gradient is float32 and has the shape of its value",
            )
        so_far = self.gradients.get(value)
        self._given[gradient] = self._given.get(gradient, 0) + (1 if gradient in made else 2)
        if so_far is None:
            self.gradients[value] = gradient
            return
        self.added += 1
        if self._is_own(so_far):
            self.in_place += 1
            total = self.apply("accumulate", (so_far, gradient), {}, node)
        else:
            total = self.apply("add", (so_far, gradient), {}, node)
        self._given[total[0]] = 1
        self.gradients[value] = total[0]

    def _is_own(self, gradient: str) -> bool:
        """Whether the bytes of a sum so far are nobody's but its own: a node made it for this value alone, and none has read it."""
        if self._given.get(gradient) != 1 or gradient in self._read:
            return False
        maker = self._makers.get(gradient)
        return maker is not None and not OP[maker].is_view

    def apply(self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr], node: Node) -> tuple[str, ...]:
        """Adds a node behind what is there, with the line of the forward `node`; returns its results."""
        opdef = OP[op]
        full, given = Attributes(opdef.attributes(attrs)), trimmed(operands)
        try:
            types = opdef.infer(tuple(None if name is None else self.types[name] for name in given), full)
        except OstinatoError as error:
            message = f"the derivative of {node.op} is not well formed: {error.message}"
            raise type(error)(message, node=node.name, hint=error.hint) from error.__cause__
        if opdef.view is not None and not self._is_described(opdef, given, full):
            given = self.apply("contiguous", given, {}, node)
        stem = f"{BACKWARD_PREFIX}{node.name}.{op}"
        results = tuple(
            Value(self.names.unique(stem if len(types) == 1 else f"{stem}.{opdef.result_name(index)}"), tensor)
            for index, tensor in enumerate(types)
        )
        made = Node(op, given, results, full, location=node.location)
        self.types.update((value.name, value.type) for value in results)
        places = self._views.results(made, self.types)
        for value in results:
            self._views.add(value.name, value.type, places.get(value.name))
        self.nodes.append(made)
        self._makers.update((value.name, op) for value in results)
        self._read.update(name for name in given if name is not None)
        return tuple(value.name for value in results)

    def _is_described(self, opdef: OpDef, operands: Sequence[str | None], attrs: Mapping[str, Attr]) -> bool:
        """Whether strides describe a view of operands that may be views themselves."""
        assert opdef.view is not None
        types = tuple(None if name is None else self.types[name] for name in operands)
        strides = self._views[operands[0] or ""].strides
        try:
            return strides is None or opdef.view(types, attrs, strides) is not None
        except LayoutError:
            return False


@dataclass(slots=True)
class _Behind:
    """A node as its rule sees it (`ir/derivative.py`); `made` are the results of what the rule added."""

    sweep: _Sweep
    node: Node
    made: list[str] = field(default_factory=list)

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def attrs(self) -> Mapping[str, Attr]:
        return OP[self.op].attributes(self.node.attrs)

    def has(self, operand: int) -> bool:
        return operand < len(self.node.operands) and self.node.operands[operand] is not None

    def wants(self, operand: int) -> bool:
        return operand < len(self.node.operands) and self.sweep.varies(self.node.operands[operand])

    def gradient(self, result: int = 0) -> str | None:
        return self.sweep.gradients.get(self.node.results[result].name)

    def type(self, value: str) -> TensorType:
        return self.sweep.types[value]

    def operand(self, index: int) -> str:
        name = self.node.operands[index]
        assert name is not None, "rules ask for operands that are there"
        return name

    def result(self, index: int = 0) -> str:
        return self.node.results[index].name

    def apply(self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr] | None = None) -> str:
        (result,) = self.apply_many(op, operands, attrs)
        return result

    def apply_many(
        self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr] | None = None
    ) -> tuple[str, ...]:
        results = self.sweep.apply(op, operands, attrs or {}, self.node)
        self.made += results
        return results


def _reached(graph: Graph, wanted: Sequence[str]) -> frozenset[str]:
    """Floats that depend on a wanted value, those included."""
    found = set(wanted)
    for node in graph.nodes:
        if any(name in found for name in node.operands):
            found.update(value.name for value in node.results if value.type.dtype.is_float)
    return frozenset(found)
