"""Rows of level `reference`: the numpy reference of every operator as a step of a plan of the host, by one generator for all.

Such a step is a call back into Python (`reference_calls.py`). Everything that it needs is data of the plan: the kernel's name is the call in the text form of
graphs, types and attributes included, and the parameters are the strides of its operands. The reference wants values in their logical order, so that a weight
which such a row reads lies row by row. Nothing may lie in place, but what the operator itself aliases.

These rows have the bits of the oracle and the speed of numpy. They come last and serve where they are forced, where a policy asks for the reference's
numerics, and where no other row is left; GPUs have none.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.backend_hip.impls.common import HOST
from ostinato.ir.calls import result_names
from ostinato.ir.evidence import Exactness
from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import StepKind
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.text import print_graph
from ostinato.ir.types import DType, TensorType

__all__ = ["COUNT", "REFERENCE", "reference_row", "reference_rows"]

REFERENCE = "reference"
"""What these rows are called."""
COUNT = "count"
_SPARE = 16
"""Results that a step of an operator with any number of them has places for."""


def reference_rows(ops: Iterable[OpDef]) -> tuple[Impl, ...]:
    """A row for each of the operators that run."""
    return tuple(reference_row(opdef) for opdef in ops if not opdef.is_view)


def reference_row(opdef: OpDef) -> Impl:
    """The row of one operator. An operand that the operator updates stands for its result as well."""
    variadic = opdef.results[-1].endswith("*")
    fixed = opdef.results[: len(opdef.results) - variadic]
    aliased = {result for result, _ in opdef.must_alias}
    results = [name for index, name in enumerate(fixed) if index not in aliased]
    results += [f"{opdef.result_name(len(fixed))}{index}" for index in range(_SPARE if variadic else 0)]
    names = [spec.name for spec in opdef.operands]

    def kernel(site: CallSite) -> str:
        return print_graph(_call(opdef, site))

    def accepts(site: CallSite) -> str | None:
        if len(site.results) > len(fixed) + _SPARE * variadic:
            return f"a call has at most {len(fixed) + _SPARE} results, found {len(site.results)}"
        if site.counted and not _counted_axis(opdef, site):
            return "the axis that is partly valid has no name"
        return None

    return Impl(
        op=opdef.name,
        name=REFERENCE,
        level=Level.REFERENCE,
        architectures=HOST,
        operands=(*names, COUNT, *results),
        kernel=kernel,
        params=_strides,
        accepts=accepts,
        kind=StepKind.CALL,
        exactness=Exactness.REFERENCE,
        strided=frozenset(names),
    )


def _call(opdef: OpDef, site: CallSite) -> Graph:
    """The call as a graph of one node, its values called as in the schema."""
    inputs = [
        GraphInput(Value(spec.name, _logical(tensor)), Role.WEIGHT if tensor.dtype.is_block else Role.INPUT)
        for spec, tensor in zip(opdef.operands, site.operands, strict=True)
        if tensor is not None
    ]
    names = {value: name for name, value in result_names(site.node, opdef).items()}
    results = tuple(
        Value(names[value.name], _logical(tensor))
        for value, tensor in zip(site.node.results, site.results, strict=True)
    )
    present = [spec.name if site.has(index) else None for index, spec in enumerate(opdef.operands)]
    while present and present[-1] is None:
        present.pop()
    node = Node(opdef.name, tuple(present), results, site.node.attrs)
    extents: tuple[tuple[str, str], ...] = ()
    if site.counted:
        inputs.append(GraphInput(Value(COUNT, TensorType((1,), DType.I32)), Role.INPUT))
        extents = ((_counted_axis(opdef, site), COUNT),)
    return Graph(opdef.name, tuple(inputs), (node,), tuple(value.name for value in results), extents)


def _logical(tensor: TensorType) -> TensorType:
    return tensor.with_layout(None)


def _counted_axis(opdef: OpDef, site: CallSite) -> str:
    """The name of the leading axis that counts the rows of work, "" where it has none."""
    tensor = opdef.leading(site.operands, site.results)
    return "" if tensor is None else (*tensor.axes, "")[0]


def _strides(site: CallSite) -> tuple[int, ...]:
    """Strides in elements of each operand that is there and made of elements, one operand after another."""
    found: list[int] = []
    for tensor, strides in zip(site.operands, site.strides, strict=True):
        if tensor is not None and not tensor.dtype.is_block:
            found += tensor.strides if strides is None else strides
    return tuple(found)
