"""A tiny operator table and target for planner tests: bytes, no arithmetic.

Values are vectors of u8. Each operator has a few rows that differ in what a planner must respect: `plain` (nothing shared), `in_place`, `work` (24 bytes of
workspace), `strided` (takes strided views). Alignment is 8 bytes, so that small sizes already pad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.opdef import Attr, AttrSpec, Effect, OpDef, OperandSpec, OperandTypes, Sample, Tolerance, View
from ostinato.ir.step import ByteRange, Region
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["ALIGNMENT", "DEVICE", "FAKE_OPS", "FAKE_TARGET", "WORKSPACE_BYTES", "GraphMaker", "fake_range", "vector"]

ALIGNMENT = 8
DEVICE = "fake:0"
WORKSPACE_BYTES = 24


def fake_range(kind: str, offset: int, size: int) -> ByteRange:
    """Bytes of a region of the fake device."""
    return ByteRange(Region(DEVICE, kind), offset, size)


def vector(size: int, axis: str = "") -> TensorType:
    return TensorType((size,), DType.U8, (axis,))


def _no_infer(operands: OperandTypes, attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
    raise AssertionError("the planner never infers types")


def _no_reference(
    operands: Sequence[Array | None], attrs: Mapping[str, Attr], results: Sequence[TensorType]
) -> tuple[Array, ...]:
    raise AssertionError("the planner never computes")


def _no_samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield from ()


def _op(
    name: str,
    operands: tuple[str, ...],
    results: tuple[str, ...],
    *,
    attrs: tuple[str, ...] = (),
    effect: Effect = Effect.PURE,
    must_alias: tuple[tuple[int, int], ...] = (),
) -> OpDef:
    specs = tuple(OperandSpec(o.rstrip("?"), frozenset({DType.U8}), o.endswith("?")) for o in operands)
    return OpDef(
        name,
        "a fake",
        specs,
        results,
        _no_infer,
        _no_reference,
        _no_samples,
        Tolerance(0, 0, "nothing is computed"),
        tuple(AttrSpec(attr, int) for attr in attrs),
        effect,
        None,
        must_alias,
    )


class _PartView:
    """Elements start, start + step, ... of a vector."""

    def __call__(
        self, operands: OperandTypes, attrs: Mapping[str, Attr], strides: tuple[int, ...] | None = None, /
    ) -> View:
        start, step = attrs["start"], attrs["step"]
        assert isinstance(start, int)
        assert isinstance(step, int)
        stride = strides[0] if strides is not None else 1
        return View(start * stride, (step * stride,))

    @staticmethod
    def reference(
        operands: Sequence[Array | None], attrs: Mapping[str, Attr], results: Sequence[TensorType]
    ) -> tuple[Array, ...]:
        (x,) = operands
        start, step = attrs["start"], attrs["step"]
        assert x is not None
        assert isinstance(start, int)
        assert isinstance(step, int)
        return (x[start::step][: results[0].elements],)


class _TransposeView:
    """A contiguous vector as a matrix of `rows` columns, read column by column: all its bytes in another order."""

    def __call__(
        self, operands: OperandTypes, attrs: Mapping[str, Attr], strides: tuple[int, ...] | None = None, /
    ) -> View:
        rows = attrs["rows"]
        assert isinstance(rows, int)
        assert strides == (1,)
        return View(0, (1, rows))

    @staticmethod
    def reference(
        operands: Sequence[Array | None], attrs: Mapping[str, Attr], results: Sequence[TensorType]
    ) -> tuple[Array, ...]:
        (x,) = operands
        assert x is not None
        rows, columns = results[0].static_shape
        return (x.reshape(columns, rows).T,)


def _view(name: str, rule: _PartView | _TransposeView, *attrs: str) -> OpDef:
    return OpDef(
        name,
        "a fake view",
        (OperandSpec("x", frozenset({DType.U8})),),
        ("y",),
        _no_infer,
        rule.reference,
        _no_samples,
        Tolerance(0, 0, "no byte moves"),
        tuple(AttrSpec(attr, int) for attr in attrs),
        view=rule,
    )


FAKE_OPS: Mapping[str, OpDef] = {
    op.name: op
    for op in (
        _op("unary", ("x",), ("y",)),
        _op("binary", ("a", "b?"), ("y",)),
        _op("pair", ("a", "b"), ("sum", "y")),
        _op("split", ("x",), ("y*",)),
        _op("update", ("s", "x"), ("s_out",), effect=Effect.STATE, must_alias=((0, 0),)),
        _op("ordered", ("x",), ("y",), effect=Effect.ORDERED),
        _view("part", _PartView(), "start", "step"),
        _view("transpose", _TransposeView(), "rows"),
    )
}


def _kernel(site: CallSite) -> str:
    return f"{site.node.op}_kernel"


def _params(site: CallSite) -> tuple[int | float, ...]:
    return (site.results[0].elements, 0.5)


def _accepts(site: CallSite) -> str | None:
    del site
    return None


def _work(site: CallSite) -> int:
    del site
    return WORKSPACE_BYTES


def _row(op: str, name: str, operands: str, in_place: tuple[tuple[str, str], ...] = (), strided: str = "") -> Impl:
    names = tuple(operands.split())
    found = Impl(op, name, Level.READABLE, ("fake",), names, _kernel, _params, _accepts, in_place=in_place)
    return replace(
        found,
        workspace=_work if "workspace" in names else found.workspace,
        strided=frozenset({strided} - {""}),
    )


FAKE_TARGET = Target(
    "fake",
    (
        _row("unary", "plain", "x count y"),
        _row("unary", "in_place", "x count y", (("y", "x"),)),
        _row("unary", "work", "x y workspace"),
        _row("unary", "strided", "x y", strided="x"),
        _row("unary", "in_place_strided", "x y", (("y", "x"),), strided="x"),
        _row("binary", "plain", "a b count y"),
        _row("binary", "in_place", "a b count y", (("y", "a"), ("y", "b"))),
        _row("binary", "in_place_a", "a b y", (("y", "a"),)),
        _row("pair", "plain", "a b sum y"),
        _row("pair", "in_place", "a b sum y", (("sum", "a"), ("sum", "b"))),
        _row("split", "plain", "x y0 y1 y2 -"),
        _row("update", "plain", "s x"),
        _row("update", "result", "x s_out"),
        _row("update", "both", "s x s_out"),
        _row("ordered", "plain", "x y"),
    ),
    alignment=ALIGNMENT,
    device=DEVICE,
)


class GraphMaker:
    """Builds graphs of the fake operators; every method returns value names."""

    def __init__(self, name: str = "g") -> None:
        self.name = name
        self.inputs: list[GraphInput] = []
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.extents: list[tuple[str, str]] = []

    def input(self, name: str, size: int, role: Role = Role.INPUT, axis: str = "", *, carried: bool = False) -> str:
        return self._add_input(GraphInput(Value(name, vector(size, axis)), role, carried=carried))

    def weight(self, name: str, size: int, tensor: str = "") -> str:
        return self._add_input(
            GraphInput(Value(name, vector(size)), Role.WEIGHT, (WeightPart(tensor or name, 0, size),))
        )

    def parameter(self, name: str, size: int) -> str:
        """Made of a tensor of its own name, and updated."""
        item = GraphInput(Value(name, vector(size)), Role.PARAMETER, (WeightPart(name, 0, size),))
        return self._add_input(item)

    def constant(self, name: str, data: bytes) -> str:
        array = np.frombuffer(data, np.uint8)
        return self._add_input(GraphInput(Value(name, vector(len(data))), Role.CONSTANT, data=array))

    def count(self, name: str, axis: str) -> str:
        """The int32[1] input that says how many leading rows of `axis` are valid."""
        self.extents.append((axis, name))
        return self._add_input(GraphInput(Value(name, TensorType((1,), DType.I32)), Role.INPUT))

    def _add_input(self, item: GraphInput) -> str:
        self.inputs.append(item)
        self.types[item.value.name] = item.value.type
        return item.value.name

    def node(
        self,
        op: str,
        impl: str | None,
        operands: Sequence[str | None],
        results: Mapping[str, TensorType],
        **attrs: Attr,
    ) -> Node:
        values = tuple(Value(name, tensor) for name, tensor in results.items())
        made = Node(op, tuple(operands), values, Attributes(attrs), impl)
        self.nodes.append(made)
        self.types.update(results)
        return made

    def unary(self, name: str, x: str, impl: str = "plain", size: int | None = None) -> str:
        self.node("unary", impl, (x,), {name: self.types[x] if size is None else vector(size)})
        return name

    def binary(self, name: str, a: str, b: str | None, impl: str = "plain") -> str:
        self.node("binary", impl, (a, b), {name: self.types[a]})
        return name

    def pair(self, names: tuple[str, str], a: str, b: str, impl: str = "plain") -> tuple[str, str]:
        self.node("pair", impl, (a, b), dict.fromkeys(names, self.types[a]))
        return names

    def split(self, names: Sequence[str], x: str) -> None:
        self.node("split", "plain", (x,), {name: vector(self.types[x].elements // len(names)) for name in names})

    def update(self, name: str, state: str, x: str, impl: str = "plain") -> str:
        self.node("update", impl, (state, x), {name: self.types[state]})
        return name

    def ordered(self, name: str, x: str) -> str:
        self.node("ordered", "plain", (x,), {name: self.types[x]})
        return name

    def part(self, name: str, x: str, start: int, stop: int, step: int = 1) -> str:
        self.node("part", None, (x,), {name: vector(len(range(start, stop, step)))}, start=start, step=step)
        return name

    def transpose(self, name: str, x: str, rows: int) -> str:
        columns = self.types[x].elements // rows
        self.node("transpose", None, (x,), {name: TensorType((rows, columns), DType.U8)}, rows=rows)
        return name

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, tuple(self.inputs), tuple(self.nodes), outputs, tuple(self.extents))
