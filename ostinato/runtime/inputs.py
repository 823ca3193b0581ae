"""What a run is given, checked before anything of it runs: names, shapes, dtypes, and how many rows are said to be valid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, InputError, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, DType
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.binding import any_array

__all__ = ["check_counts", "check_inputs", "count_limits", "full_inputs", "narrow_indices"]


def check_inputs(plan: EntryPlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs by name with exactly the planned shapes and dtypes; int64 indices are converted to int32 with a range check.

    Raises `InputError` for missing or unknown names, `ShapeError`, `DTypeError`, `BoundsError`.
    """
    expected = {binding.name: binding.type for binding in plan.inputs}
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs are a {type(inputs).__name__}, expected arrays by name",
            node=plan.name,
            hint=f"the entry takes {sorted(expected)}",
        )
    if missing := sorted(set(expected) - set(inputs)):
        raise InputError(f"missing inputs {missing}", node=plan.name, hint=f"the entry takes {sorted(expected)}")
    if unknown := sorted(map(str, set(inputs) - set(expected))):
        raise InputError(f"unknown inputs {unknown}", node=plan.name, hint=f"the entry takes {sorted(expected)}")
    checked: dict[str, Array] = {}
    for name, tensor_type in expected.items():
        array = any_array(name, inputs[name])
        if array.shape != tensor_type.static_shape:
            raise ShapeError(f"expected shape {list(tensor_type.static_shape)}, found {list(array.shape)}", node=name)
        if tensor_type.dtype is DType.I32 and array.dtype == np.int64:
            array = narrow_indices(name, array)
        if array.dtype != tensor_type.dtype.numpy:
            raise DTypeError(
                f"expected {tensor_type.dtype.value}, found {array.dtype}", node=name, hint="convert it before the call"
            )
        checked[name] = array
    return checked


def count_limits(graph: Graph) -> dict[str, int]:
    """Largest value of each input that counts valid rows: the extent of the axis it counts."""
    limits: dict[str, int] = {}
    for axis, name in graph.extents:
        extents = [tensor.static_shape[0] for tensor in graph.types.values() if tensor.axes[:1] == (axis,)]
        if extents:
            limits[name] = min(extents)
    return limits


def full_inputs(plan: EntryPlan, limits: Mapping[str, int]) -> dict[str, Array]:
    """Zeros for every input of an entry, and its `limits` for the counts of valid rows."""
    found = {item.name: np.zeros(item.type.static_shape, item.type.dtype.numpy) for item in plan.inputs}
    for name, limit in limits.items():
        found[name][...] = limit
    return found


def check_counts(limits: Mapping[str, int], inputs: Mapping[str, Array]) -> None:
    """Raises `BoundsError` for a count of valid rows that is negative or beyond its axis."""
    for name, limit in limits.items():
        count = int(inputs[name][0])
        if not 0 <= count <= limit:
            raise BoundsError(
                f"{count} rows are said to be valid, there are {limit}",
                node=name,
                hint=f"the count lies in [0, {limit}]",
            )


def narrow_indices(name: str, array: Array) -> Array:
    """int64 to int32, the one documented conversion; raises `BoundsError` for a value that does not fit."""
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise BoundsError(f"values from {array.min()} to {array.max()} do not fit int32", node=name)
    return array.astype(np.int32)
