"""One node by the reference of its operator: what the interpreter does for every node, and a host's step of level `reference` for its own.

References get widened, read-only operands and see the valid rows alone; each result is rounded once to the dtype that its type states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ostinato.ir.errors import BackendError, UserCodeError
from ostinato.ir.graph import Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.rounding import round_to
from ostinato.ir.types import Array, TensorType

__all__ = ["Rows", "evaluate", "leading", "read_only", "shortened"]

Rows = tuple[str, int]
"""A leading axis by its name, and how many of its rows are valid."""


def evaluate(
    node: Node, opdef: OpDef, types: Mapping[str, TensorType], operands: Sequence[Array | None], rows: Rows | None
) -> list[Array]:
    """The results of a node in the dtypes of their types, those along the axis of `rows` with the valid rows only.

    `operands` are as references see them: widened, read-only, None where absent. Raises what the reference raises, and `BackendError` for a reference that
    gives something else than its types say.
    """
    stated = [value.type for value in node.results]
    if rows is not None:
        stated = [shortened(tensor, rows) for tensor in stated]
        operands = [
            None if array is None or name is None else leading(array, types[name], rows)
            for name, array in zip(node.operands, operands, strict=True)
        ]
    try:
        arrays: object = opdef.reference(operands, node.attrs, tuple(stated))
    except UserCodeError as error:
        error.node = node.name
        raise
    if not isinstance(arrays, tuple | list) or len(arrays) != len(stated):
        found = f"{len(arrays)} results" if isinstance(arrays, tuple | list) else f"a value of {type(arrays).__name__}"
        message = f"the reference of {node.op} gave {found}, expected {len(stated)}, in a tuple"
        raise BackendError(message, node=node.name, hint="mend the operator table")
    results = zip(node.results, arrays, stated, strict=True)
    return [_rounded(node, value.name, array, tensor) for value, array, tensor in results]


def shortened(tensor: TensorType, rows: Rows) -> TensorType:
    """The type with the valid rows only, where its leading axis is the one that is counted."""
    axis, count = rows
    return replace(tensor, shape=(count, *tensor.shape[1:])) if tensor.axes[:1] == (axis,) else tensor


def read_only(array: Array) -> Array:
    """The array, or a view of it that cannot be written."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def leading(array: Array, tensor: TensorType, rows: Rows) -> Array:
    """The valid rows of an array of that type, all of it where its leading axis is not the one that is counted."""
    return array[: rows[1]] if tensor.axes[:1] == (rows[0],) else array


def _rounded(node: Node, name: str, array: Array, tensor: TensorType) -> Array:
    """The result of a reference in the dtype of its type; raises when it is of another shape or kind, which is a mistake of the table."""
    found, wanted = np.asarray(array), tensor.dtype.numpy
    if found.shape != tensor.static_shape:
        message = f"the reference of {node.op} gave %{name} of shape {list(found.shape)}, its type is {tensor}"
        raise BackendError(message, node=node.name, hint="mend the operator table, or verify the graph first")
    if found.dtype == wanted:
        return found
    if tensor.dtype.is_float and found.dtype.kind in "fV":
        return round_to(found, tensor.dtype)
    if tensor.dtype.is_integer and found.dtype.kind in "iu":
        limits = np.iinfo(wanted)
        if found.size == 0 or (limits.min <= found.min() and found.max() <= limits.max):
            return found.astype(wanted)
    message = f"the reference of {node.op} gave %{name} as {found.dtype} values that {tensor} cannot hold"
    raise BackendError(message, node=node.name, hint="mend the operator table")
