"""What a run is given and asked for, checked before anything of it runs: names, shapes, dtypes, and how many rows are said to be valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ostinato.ir.errors import BoundsError, DTypeError, InputError, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, DType
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.binding import any_array
from ostinato.runtime.program import Program

__all__ = ["EntryInputs", "check_inputs", "check_outputs", "narrow_indices"]


class EntryInputs:
    """What the entries of a program are given."""

    def __init__(self, program: Program) -> None:
        self._plans = program.plan.entries
        self._limits = {name: _count_limits(graph) for name, graph in program.graphs.items()}

    def standing(self, name: str) -> Mapping[str, Array]:
        """Inputs of an entry that stay until they are replaced: none here."""
        del name
        return {}

    def checked(self, name: str, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """`check_inputs`; raises `BoundsError` too for a count of valid rows that is negative or beyond its axis."""
        checked = check_inputs(self._plans[name], inputs)
        for key, limit in self._limits[name].items():
            count = int(checked[key][0])
            if not 0 <= count <= limit:
                raise BoundsError(
                    f"{count} rows are said to be valid, there are {limit}",
                    node=key,
                    hint=f"the count lies in [0, {limit}]",
                )
        return checked

    def example(self, name: str) -> dict[str, Array]:
        """What an entry can run on: zeros, every count of valid rows as large as it may be, and what is `standing`."""
        found = {
            item.name: np.zeros(item.type.static_shape, item.type.dtype.numpy) for item in self._plans[name].inputs
        }
        for key, limit in self._limits[name].items():
            found[key][...] = limit
        return {**found, **self.standing(name)}

    def settled(self, name: str, inputs: Any) -> dict[str, Array]:
        """What an entry is measured on, checked: these inputs beside what is `standing`, or its `example` for None."""
        if inputs is None:
            return self.checked(name, self.example(name))
        return self.checked(name, {**self.standing(name), **inputs} if isinstance(inputs, Mapping) else inputs)


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


def _count_limits(graph: Graph) -> dict[str, int]:
    """Largest value of each input that counts valid rows: the extent of the axis it counts."""
    limits: dict[str, int] = {}
    for axis, name in graph.extents:
        extents = [tensor.static_shape[0] for tensor in graph.types.values() if tensor.axes[:1] == (axis,)]
        if extents:
            limits[name] = min(extents)
    return limits


def check_outputs(graph: Graph, outputs: Any, entry: str) -> list[str]:
    """The outputs of an entry that are asked for, all of them for None. Raises `InputError` for what is no list of their names."""
    known = list(dict.fromkeys(graph.outputs))
    if outputs is None:
        return known
    listed = isinstance(outputs, Iterable) and not isinstance(outputs, str)
    if not listed or not all(item in known for item in outputs):
        raise InputError(
            f"outputs {outputs!r} are not a list of output names of this entry", node=entry, hint=f"it gives {known}"
        )
    return list(outputs)


def narrow_indices(name: str, array: Array) -> Array:
    """int64 to int32, the one documented conversion; raises `BoundsError` for a value that does not fit."""
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise BoundsError(f"values from {array.min()} to {array.max()} do not fit int32", node=name)
    return array.astype(np.int32)
