"""The reference interpreter: runs a graph node by node with the numpy references of the operator table. It is the oracle of every other mode.

Slow on purpose and exact where it can be: f16, bf16 and block operands are widened to float32 before a reference sees them (float64 stays), and each result
is rounded once to the dtype its type states. Weights are logical; packed layouts are ignored, physical layouts too. Where an extent says that only the first
rows of an axis are valid, references see those rows alone, and the rest of a result is zero, or as it was where the result is an update: what lies in the
padding cannot matter.
Nothing is converted on the way in: an array of another shape or dtype is an error. References get read-only arrays, so none can change its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, InputError, ShapeError
from ostinato.ir.evaluate import Rows, evaluate, read_only
from ostinato.ir.graph import Graph, GraphInput, Node, Role
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.rounding import widen
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.views import extent_of

__all__ = ["Interpretation", "Observer", "interpret"]

Observer = Callable[[str, Array], None]
"""Called with the name and the read-only values of each node result, as soon as it is made."""

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Interpretation:
    """What a run leaves: outputs by value name, and the final values of `state` and `parameter` inputs and of carried ones by input name. The arrays are
    read-only."""

    outputs: dict[str, Array]
    state: dict[str, Array]
    carried: dict[str, Array]


def interpret(
    graph: Graph,
    values: Mapping[str, Array],
    *,
    ops: Mapping[str, OpDef] = OP,
    observe: Observer | None = None,
    widened: MutableMapping[str, Array] | None = None,
) -> Interpretation:
    """Runs a bound, verified graph on `values`: one array for each input, weight, parameter and state input. Constants come from the graph.

    Shapes and dtypes are the types' own. A block weight is its raw uint8 rows `[..., bytes a row]`, dequantised here, or float32 `[..., K]` already
    dequantised. Pass the same dictionary as `widened` to several runs with the same weights to widen each weight once.
    Raises `InputError` for missing and unknown names, `ShapeError` and `DTypeError` for arrays that do not fit, `BoundsError` for a row count outside
    its axis, and what a reference raises. Values are dropped after their last reader.
    """
    if graph.dims:
        names = ", ".join(dim.name for dim in graph.dims)
        raise ShapeError(f"dimensions {names} of @{graph.name} are not bound", hint="bind the graph to a bucket first")
    run = _Run(graph, ops, {} if widened is None else widened)
    run.enter(values)
    last_readers = _last_readers(graph)
    for index, node in enumerate(graph.nodes):
        run.node(node, observe)
        for name in last_readers.get(index, ()):
            run.drop(name)
    final = {name: run.values[latest] for name, latest in run.latest.items()}
    carried = {item.value.name for item in graph.inputs if item.carried}
    return Interpretation(
        {name: run.values[name] for name in graph.outputs},
        {name: array for name, array in final.items() if name not in carried},
        {name: array for name, array in final.items() if name in carried},
    )


def _last_readers(graph: Graph) -> dict[int, list[str]]:
    """Node index -> values that nobody reads after that node, results without a reader included."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.results:
            last[value.name] = index
        for name in node.operands:
            if name is not None:
                last[name] = index
    kept = set(graph.outputs)
    found: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in kept:
            found.setdefault(index, []).append(name)
    return found


class _Run:
    """The values of one run: each in the dtype of its type, weights of narrow dtypes also widened."""

    def __init__(self, graph: Graph, ops: Mapping[str, OpDef], widened: MutableMapping[str, Array]) -> None:
        self.graph = graph
        self.ops = ops
        self.values: dict[str, Array] = {}
        self.widened = widened
        self.weights = {
            item.value.name for item in graph.with_role(Role.WEIGHT) if item.value.type.dtype is not DType.F32
        }
        self.counts: dict[str, int] = {}
        # input that is updated -> the value that has its bytes now; and the reverse
        self.latest = {item.value.name: item.value.name for item in graph.updated}
        self.owner = dict(self.latest)

    def enter(self, values: Mapping[str, Array]) -> None:
        graph = self.graph
        wanted = [item for item in graph.inputs if item.role is not Role.CONSTANT]
        names = [item.value.name for item in wanted]
        if missing := [name for name in names if name not in values]:
            raise InputError(f"@{graph.name} lacks values for {missing}", hint=f"it takes {names}")
        if unknown := sorted(set(values) - set(names)):
            raise InputError(f"@{graph.name} has no inputs {unknown}", hint=f"it takes {names}")
        for item in graph.inputs:
            name = item.value.name
            if item.role is Role.CONSTANT:
                if item.data is None:
                    raise InputError("constant has no data", node=name, hint="verify the graph first")
                self.values[name] = item.data
            else:
                self.values[name] = self._checked(item, values[name])
        self.counts = graph.counts(self.values)

    def _checked(self, item: GraphInput, array: Array) -> Array:
        name, tensor = item.value.name, item.value.type
        shape = tensor.static_shape
        if not tensor.dtype.is_block:
            _require(name, array, tensor.dtype.numpy, shape)
        elif getattr(array, "dtype", None) == _FLOAT32:
            _require(name, array, _FLOAT32, shape)
        else:
            _require(name, array, np.dtype(np.uint8), (*shape[:-1], tensor.dtype.nbytes(shape[-1])))
        if name in self.weights:
            if name not in self.widened:
                self.widened[name] = read_only(widen(array, tensor.dtype))
            if self.widened[name].shape != shape:
                message = f"the widened weight has shape {list(self.widened[name].shape)}, expected {list(shape)}"
                raise ShapeError(message, node=name, hint="use one dictionary for one set of weights")
        return read_only(array)

    def node(self, node: Node, observe: Observer | None) -> None:
        opdef = self.ops[node.op]
        operands = [None if name is None else self._operand(name) for name in node.operands]
        arrays = evaluate(node, opdef, self.graph.types, operands, self._rows(node))
        updates = dict(opdef.aliased(node.operands))
        for index, (value, array) in enumerate(zip(node.results, arrays, strict=True)):
            before = node.operands[updates[index]] if index in updates else None
            behind = None if before is None else self.values[before]
            self.values[value.name] = read_only(_extended(array, value.type, behind))
            if observe is not None:
                observe(value.name, self.values[value.name])
        for result, operand in updates.items():
            name = node.operands[operand]
            if name is not None and name in self.owner:
                owner = self.owner[name]
                self._take_over(owner, node.results[result].name)

    def drop(self, name: str) -> None:
        """Forgets a value, unless it is what a state input has come to; a widened weight stays with the caller's dictionary."""
        if self.owner.get(name) is None or self.latest[self.owner[name]] != name:
            self.values.pop(name, None)

    def _take_over(self, owner: str, name: str) -> None:
        self.latest[owner] = name
        self.owner[name] = owner

    def _operand(self, name: str) -> Array:
        if name in self.weights:
            return self.widened[name]
        return read_only(widen(self.values[name], self.graph.types[name].dtype))

    def _rows(self, node: Node) -> Rows | None:
        """The leading axis of a node's work and how many of its rows are valid; None when all are."""
        extent = extent_of(self.graph, node, ops=self.ops)
        if extent is None:
            return None
        axis, count_name = extent
        count = self.counts[axis]
        types = self.graph.types
        for name in (*node.operands, *(value.name for value in node.results)):
            if name is not None and types[name].axes[:1] == (axis,) and not 0 <= count <= types[name].static_shape[0]:
                message = f"{count} rows of axis {axis} are said to be valid, %{name} has {types[name].shape[0]}"
                raise BoundsError(message, node=count_name, hint="the count lies in [0, extent]")
        return axis, count


def _require(name: str, array: Array, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"expected a numpy array, found {type(array).__name__}", node=name)
    if array.dtype != dtype:
        raise DTypeError(
            f"expected dtype {dtype}, found {array.dtype}", node=name, hint="convert it first; nothing is cast here"
        )
    if array.shape != shape:
        raise ShapeError(f"expected shape {list(shape)}, found {list(array.shape)}", node=name)


def _extended(array: Array, tensor: TensorType, before: Array | None) -> Array:
    """Rows behind the valid ones, up to the full extent: zeros, or those of the value that this one is an update of."""
    if array.shape == tensor.static_shape:
        return array
    full = np.zeros(tensor.static_shape, array.dtype) if before is None else before.copy()
    full[: array.shape[0]] = array
    return full
