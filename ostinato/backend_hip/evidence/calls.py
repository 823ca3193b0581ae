"""Ways of asking an implementation row to run a sample of its operator.

Everything the row declares is taken at its word: packed layouts, strides, in-place pairs, counts. A `Call` is one way of laying a sample out that the row
accepts: natural, each layout that it lists, strided operands, rows counted by an input, results in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ostinato.ir.errors import LayoutError
from ostinato.ir.graph import Attributes, Node, Value
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import NATURAL, CallSite, Impl
from ostinato.ir.types import TensorType
from ostinato.ir.views import row_refusal

__all__ = [
    "Call",
    "calls",
    "counted_calls",
    "counts_operands",
    "leading_axis",
    "leads",
    "node_of",
    "own_strides",
    "plain_calls",
    "refusal",
    "spread_strides",
]

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A sample as a row is asked to run it: `count` valid rows of the leading axis (None: all), and results that take an operand's bytes.

    `all_rows`: the row does not know of the count, and may write whatever it likes in the rows past it.
    """

    row: Impl
    site: CallSite
    count: int | None = None
    in_place: tuple[tuple[str, str], ...] = ()
    all_rows: bool = False

    @property
    def op(self) -> OpDef:
        return OP[self.row.op]

    def __str__(self) -> str:
        operands = ", ".join(
            "_" if t is None else f"{t}{'' if s is None else list(s)}"
            for t, s in zip(self.site.operands, self.site.strides, strict=True)
        )
        results = ", ".join(str(result) for result in self.site.results)
        return f"{self.row.identity}({operands}) {dict(self.site.node.attrs)} -> {results} count={self.count} in_place={list(self.in_place)}"


def calls(row: Impl, sample: Sample) -> Iterator[Call]:
    """Every way of running the sample that the row accepts."""
    for site in _sites(row, sample):
        if row_refusal(row, site, OP[row.op]) is None:
            yield from plain_calls(row, site)
        counted = replace(site, counted=True)
        knows = "count" in row.operands or row.kind is StepKind.GEMM
        if knows and row_refusal(row, counted, OP[row.op]) is None:
            yield from counted_calls(row, counted)


def plain_calls(row: Impl, site: CallSite) -> Iterator[Call]:
    """The call of a site as it stands, and with each result that may be in place of an operand of its size that is there and lies as it does."""
    yield Call(row, site)
    sizes = {value.name: value.type.nbytes for value in site.node.results}
    for result, operand in row.in_place:
        index = OP[row.op].place(operand)
        if site.has(index) and index not in site.strided and site.operand(index).nbytes == sizes[result]:
            yield Call(row, site, in_place=((result, operand),))


def counted_calls(row: Impl, site: CallSite) -> Iterator[Call]:
    """The calls of a site whose rows are counted: with none, half and all of them. A row that has no operand for the count computes all, whatever lies in
    them."""
    rows = _leading_rows(OP[row.op], site)
    if rows is not None:
        for count in sorted({0, rows // 2, rows}):
            yield Call(row, site, count=count, all_rows="count" not in row.operands)


def refusal(row: Impl, sample: Sample) -> str | None:
    """Why a row does not take a sample as it lies; None where it does."""
    return row_refusal(row, next(_sites(row, sample)), OP[row.op])


def _sites(row: Impl, sample: Sample) -> Iterator[CallSite]:
    op = OP[row.op]
    absent = [None] * (len(op.operands) - len(sample.operands))
    types = [*(None if operand is None else operand.type for operand in sample.operands), *absent]
    results = op.infer(types, sample.attrs)
    for index, spec in enumerate(op.operands):
        if (found := types[index]) is not None and NATURAL not in row.layouts_of(spec.name):
            types[index] = found.with_layout(row.layouts_of(spec.name)[0])
    node = node_of(op, types, results, sample)
    plain = CallSite(node, tuple(types), results, tuple(own_strides(tensor) for tensor in types))
    yield plain
    for name, layouts in row.layouts:
        for layout in layouts if NATURAL in layouts else layouts[1:]:
            yield from _relaid(op, plain, name, layout)
    for spec, tensor, index in zip(op.operands, plain.operands, range(len(types)), strict=True):
        if spec.name in row.strided and tensor is not None and tensor.rank > 1 and tensor.elements:
            for strides in spread_strides(tensor):
                seen = (*plain.strides[:index], strides, *plain.strides[index + 1 :])
                yield replace(plain, strides=seen)


def node_of(op: OpDef, types: list[TensorType | None], results: tuple[TensorType, ...], sample: Sample) -> Node:
    """The node of a sample whose operands and results have these types."""
    names = [None if tensor is None else spec.name for spec, tensor in zip(op.operands, types, strict=True)]
    while names and names[-1] is None:
        names.pop()
    values = [name for name in op.results if not name.endswith("*")]
    values += [f"{op.results[-1][:-1]}{i}" for i in range(len(results) - len(values))]
    without = len(op.must_alias) - len(op.aliased(types))  # results of operands that are absent, the last ones
    made = tuple(Value(name, tensor) for name, tensor in zip(values[: len(values) - without], results, strict=True))
    return Node(op.name, tuple(names), made, Attributes(op.attributes(sample.attrs)))


def own_strides(tensor: TensorType | None) -> Strides | None:
    """The strides of an operand that lies by itself; None for a packed or absent one."""
    return None if tensor is None or tensor.is_packed else tensor.strides


def _relaid(op: OpDef, site: CallSite, name: str, layout: str) -> Iterator[CallSite]:
    """The site with one operand or result in another layout, where its axes allow it."""
    for index, spec in enumerate(op.operands):
        tensor = site.operands[index]
        if spec.name == name and tensor is not None:
            try:
                other = tensor.with_layout(layout)
            except LayoutError:
                return
            operands = (*site.operands[:index], other, *site.operands[index + 1 :])
            yield replace(site, operands=operands, strides=tuple(own_strides(found) for found in operands))
    for index, value in enumerate(site.node.results):
        if value.name == name:
            try:
                made = Value(name, value.type.with_layout(layout))
            except LayoutError:
                return
            values = (*site.node.results[:index], made, *site.node.results[index + 1 :])
            yield replace(site, node=replace(site.node, results=values), results=tuple(found.type for found in values))


def spread_strides(tensor: TensorType) -> Iterator[Strides]:
    """Strided forms with gaps: outer axes in reverse order around a dense last axis, all axes in reverse, and from three axes on columns of a joint product:
    dense heads (the last two axes), whose tokens lie at one distance."""
    shape = tensor.static_shape
    for order in ([*reversed(range(tensor.rank - 1)), tensor.rank - 1], list(reversed(range(tensor.rank)))):
        strides, step = [0] * tensor.rank, 1
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis] + 1
        yield tuple(strides)
    if tensor.rank > 2:
        *tokens, heads, width = shape
        strides, step = [width, 1], (heads + 1) * width
        for extent in reversed(tokens):
            strides.insert(0, step)
            step *= extent
        yield tuple(strides)


def _leading_rows(op: OpDef, site: CallSite) -> int | None:
    """Extent that a count operand counts, None where the call has no rows or, for an operator whose operands have them, no name for them."""
    tensor = op.leading(site.operands, site.results)
    if tensor is None or tensor.rank == 0 or (counts_operands(op) and not tensor.axes[0]):
        return None
    return tensor.static_shape[0]


def counts_operands(op: OpDef) -> bool:
    """Whether a count is of operands' rows and not of the results': of an operator that updates its operands, or one that reduces over their rows."""
    return bool(op.must_alias) or op.extent in {spec.name for spec in op.operands}


def leading_axis(op: OpDef, site: CallSite) -> str:
    """Its name, "" where it has none."""
    tensor = op.leading(site.operands, site.results)
    return tensor.axes[0] if tensor is not None and tensor.rank else ""


def leads(call: Call, tensor: TensorType) -> bool:
    """Whether a tensor has the axis that is counted, by name."""
    axis = leading_axis(call.op, call.site)
    return bool(axis) and tensor.axes[:1] == (axis,)
