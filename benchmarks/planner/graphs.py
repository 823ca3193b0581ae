"""Irregular operator graphs, seeded: the shapes of networks whose operators can run in many orders.

Five families of 20 to 60 operators: cells of a searched network (each reads the two cells before it), random small-world wirings, modules of branches of
different lengths and widths, nested diamonds, and random graphs that read recent values. Convolutions may take a workspace, activations and sums may take
an operand's bytes. The operators are of this file and compute nothing; nodes stand in the order in which a program would define them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.opdef import Attr, AttrSpec, OpDef, OperandSpec, OperandTypes, Sample, Tolerance
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["FAMILIES", "OPS", "TARGET", "graphs"]

KIB = 1024
_OPERANDS = tuple("abcdefghijkl")
"""A sum or a concatenation takes up to twelve values."""


def _no_infer(operands: OperandTypes, attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
    raise AssertionError("these operators are planned only")


def _no_reference(
    operands: Sequence[Array | None], attrs: Mapping[str, Attr], results: Sequence[TensorType]
) -> tuple[Array, ...]:
    raise AssertionError("these operators are planned only")


def _no_samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield from ()


def _op(name: str, operands: Sequence[str], *attrs: str) -> OpDef:
    specs = tuple(OperandSpec(name, frozenset({DType.U8}), place > 0) for place, name in enumerate(operands))
    exact = Tolerance(0, 0, "nothing is computed")
    fields = tuple(AttrSpec(attr, int) for attr in attrs)
    return OpDef(name, "planned only", specs, ("y",), _no_infer, _no_reference, _no_samples, exact, fields)


OPS: Mapping[str, OpDef] = {
    op.name: op
    for op in (
        _op("convolve", ("x",), "workspace"),
        _op("activate", ("x",)),
        _op("total", _OPERANDS),
        _op("concatenate", _OPERANDS),
    )
}


def _row(op: str, operands: Sequence[str], taken: Sequence[str] = ()) -> Impl:
    in_place = tuple(("y", name) for name in taken)
    row = Impl(
        op,
        "row",
        Level.READABLE,
        ("none",),
        tuple(operands),
        lambda site: site.node.op,
        lambda site: (),
        lambda site: None,
        in_place=in_place,
    )
    return replace(row, workspace=_workspace) if "workspace" in operands else row


def _workspace(site: CallSite) -> int:
    return site.integer("workspace")


TARGET = Target(
    "none",
    (
        _row("convolve", ("x", "y", "workspace")),
        _row("activate", ("x", "y"), ("x",)),
        _row("total", (*_OPERANDS, "y"), _OPERANDS),
        _row("concatenate", (*_OPERANDS, "y")),
    ),
    device="none:0",
)


class _Network:
    """Operators in the order in which they are made; every method returns a value's name."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.nodes: list[Node] = []
        self.sizes: dict[str, int] = {"x": 64 * KIB}

    def __len__(self) -> int:
        return len(self.nodes)

    def convolve(self, x: str, size: int, workspace: int = 0) -> str:
        return self._add("convolve", (x,), size, workspace=workspace)

    def activate(self, x: str) -> str:
        return self._add("activate", (x,), self.sizes[x])

    def total(self, values: Sequence[str]) -> str:
        """The sum of values of one size; a single one is itself."""
        return values[0] if len(values) == 1 else self._add("total", values, self.sizes[values[0]])

    def concatenate(self, values: Sequence[str]) -> str:
        """A single value is itself."""
        return values[0] if len(values) == 1 else self._add("concatenate", values, sum(self.sizes[v] for v in values))

    def unread(self, values: Sequence[str]) -> list[str]:
        read = {name for node in self.nodes for name in node.operands}
        return [value for value in values if value not in read]

    def _add(self, op: str, operands: Sequence[str], size: int, **attrs: int) -> str:
        name = f"{op}{len(self.nodes)}"
        self.sizes[name] = size
        value = Value(name, TensorType((size,), DType.U8))
        self.nodes.append(Node(op, tuple(operands), (value,), Attributes(attrs), "row"))
        return name

    def graph(self, name: str, output: str, *, by_level: bool) -> Graph:
        """The operators as they were made, or level by level (by the longest way from the input), as code over lists of layers writes them."""
        depth = {"x": 0}
        for node in self.nodes:
            depth[node.name] = 1 + max(depth[operand] for operand in node.operands if operand is not None)
        nodes = sorted(self.nodes, key=lambda node: depth[node.name]) if by_level else self.nodes
        x = GraphInput(Value("x", TensorType((self.sizes["x"],), DType.U8)), Role.INPUT)
        return Graph(name, (x,), tuple(nodes), (output,))


def cells(net: _Network, operators: int) -> str:
    """Cells of five blocks; a block adds two operations on values of its cell or of the two cells before; now and then a cell halves its values."""
    size = 32 * KIB
    before = last = net.convolve("x", size)
    while len(net) < operators - 2:
        if net.rng.random() < 0.3:
            size = max(size // 2, 4 * KIB)
        values = [net.convolve(value, size) if net.sizes[value] != size else value for value in (before, last)]
        for _ in range(5):
            ends = []
            for value in net.rng.sample(values, 2):
                kind = net.rng.random()
                if kind < 0.4:
                    value = net.convolve(value, size, net.rng.choice((0, size // 2)))
                elif kind < 0.8:
                    value = net.convolve(net.activate(value), size)
                ends.append(value)
            values.append(net.total(list(dict.fromkeys(ends))))
            if len(net) >= operators - 2:
                break
        before, last = last, net.concatenate(net.unread(values[2:]))
    return last


def small_world(net: _Network, operators: int) -> str:
    """A ring whose edges were rewired at random, made acyclic: each node sums what it reads, activates and convolves it."""
    size = 16 * KIB
    count = operators // 3
    edges = set()
    for node in range(count):
        for step in (1, 2):
            other = net.rng.randrange(count) if net.rng.random() < 0.75 else (node + step) % count
            if other != node:
                edges.add((min(node, other), max(node, other)))
    made: list[str] = []
    for node in range(count):
        values = [made[first] for first, second in sorted(edges) if second == node][: len(_OPERANDS)]
        source = net.total(values) if values else net.convolve("x", size)
        made.append(net.convolve(net.activate(source), size))
    return net.total(net.unread(made)[: len(_OPERANDS)])


def branches(net: _Network, operators: int) -> str:
    """Modules of four to six branches: each widens and narrows again in one to three convolutions, some with a workspace; their ends are put together."""
    value = net.convolve("x", 16 * KIB)
    while len(net) < operators - 3:
        ends: list[str] = []
        for _ in range(net.rng.randint(4, 6)):
            end = value
            for _ in range(net.rng.randint(0, 2)):
                size = net.rng.choice((8, 16, 24, 32, 48, 64)) * KIB
                end = net.convolve(end, size, net.rng.choice((0, 0, 8 * KIB, 32 * KIB)))
                if net.rng.random() < 0.3:
                    end = net.activate(end)
            ends.append(net.convolve(end, net.rng.choice((2, 4, 6, 8)) * KIB))
            if len(net) >= operators - 3:
                break
        value = net.convolve(net.concatenate(ends), 16 * KIB)
    return value


def diamonds(net: _Network, operators: int) -> str:
    """A series-parallel graph: edges are replaced by two in series or two side by side until there are enough."""
    edges = [(0, 1)]
    sides = {0: 0, 1: 0}  # point -> edges that meet in it
    while len(sides) + sum(meeting > 1 for meeting in sides.values()) < operators - 1:
        first, second = edge = edges.pop(net.rng.randrange(len(edges)))
        point = len(sides)
        edges += [(first, point), (point, second)] + ([edge] if net.rng.random() < 0.5 else [])
        sides = {at: sum(end == at for _, end in edges) for at in range(point + 1)}
    incoming: dict[int, list[int]] = {}
    for first, second in edges:
        incoming.setdefault(second, []).append(first)
    made = {0: "x"}
    pending = [1]
    while pending:  # depth first, so that a branch is written before the next one begins
        point = pending[-1]
        missing = [other for other in incoming[point] if other not in made]
        if missing:
            pending.append(missing[0])
            continue
        pending.pop()
        if point not in made:
            values = list(dict.fromkeys(made[other] for other in incoming[point]))[: len(_OPERANDS)]
            made[point] = net.convolve(net.concatenate(values), net.rng.choice((2, 4, 8, 16, 32)) * KIB)
    return made[1]


def recent(net: _Network, operators: int) -> str:
    """Each operator reads one to three values, recent ones more often, and makes one of any size."""
    values = [net.convolve("x", 16 * KIB)]
    while len(net) < operators - 4:
        window = values[-net.rng.choice((3, 6, 12)) :]
        read = net.rng.sample(window, min(len(window), net.rng.randint(1, 3)))
        size = net.rng.choice((1, 2, 4, 8, 16, 32)) * KIB
        if len(read) > 1:
            same = [value for value in read if net.sizes[value] == net.sizes[read[0]]]
            values.append(net.total(same) if len(same) > 1 else net.convolve(net.concatenate(read), size))
        elif net.rng.random() < 0.3:
            values.append(net.activate(read[0]))
        else:
            values.append(net.convolve(read[0], size, net.rng.choice((0, 0, 16 * KIB))))
    while len(ends := net.unread(values)) > len(_OPERANDS):
        values.append(net.concatenate(ends[: len(_OPERANDS)]))
    return net.concatenate(ends)


FAMILIES: Mapping[str, Callable[[_Network, int], str]] = {
    maker.__name__: maker for maker in (cells, small_world, branches, diamonds, recent)
}


def graphs(count: int, seed: int = 0) -> Iterator[tuple[str, Graph]]:
    """`count` graphs of each family with 20 to 60 operators, as (family, graph); every second one is written level by level."""
    for family, maker in FAMILIES.items():
        for number in range(count):
            net = _Network(f"{family} {number} {seed}")
            output = net.convolve(maker(net, 22 + 38 * number // max(count - 1, 1)), KIB)
            yield family, net.graph(f"{family}_{number}", output, by_level=number % 2 == 1)
