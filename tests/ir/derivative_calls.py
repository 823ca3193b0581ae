"""Gradients of one operator by its rule, and by central differences in float64.

The rule is taken at its word: a graph of the operator whose results are weighted and summed, differentiated by the pass and run by the reference interpreter.
References give float32 at most, which is too coarse for differences: within `in_float64` the name that they round by stands for float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np

from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType
from ostinato.passes.differentiate import differentiate

__all__ = ["Operands", "check_differences", "gradients", "weights"]

Operands = Sequence[Array | None]
STEP = 1e-5


def _types(operands: Operands) -> tuple[TensorType | None, ...]:
    return tuple(None if array is None else TensorType(array.shape, DType.of(array.dtype)) for array in operands)


def _wanted(operands: Operands) -> list[int]:
    """The operands that are floats."""
    return [index for index, tensor in enumerate(_types(operands)) if tensor is not None and tensor.dtype.is_float]


def weights(op: str, operands: Operands, attrs: Mapping[str, Attr], rng: np.random.Generator) -> dict[int, Array]:
    """A random upstream gradient for every float result."""
    results = OP[op].infer(_types(operands), attrs)
    return {
        index: rng.standard_normal(tensor.static_shape).astype(np.float32)
        for index, tensor in enumerate(results)
        if tensor.dtype.is_float
    }


def gradients(
    op: str,
    operands: Operands,
    attrs: Mapping[str, Attr],
    upstream: Mapping[int, Array],
    wanted: Sequence[int] | None = None,
) -> dict[int, Array]:
    """Gradients of the sum of all results times `upstream` by the wanted operands, all floats unless said; zeros where the rule gives none."""
    names = tuple(None if array is None else f"x{index}" for index, array in enumerate(operands))
    values = {
        name: array for name, array in zip(names, operands, strict=True) if name is not None and array is not None
    }
    inputs = [
        GraphInput(Value(name, tensor), Role.INPUT)
        for name, tensor in zip(names, _types(operands), strict=True)
        if name is not None and tensor is not None
    ]
    nodes: list[Node] = []
    types = {item.value.name: item.value.type for item in inputs}

    def add(op: str, operands: Sequence[str | None], stem: str, attrs: Mapping[str, Attr] | None = None) -> list[str]:
        full = Attributes(OP[op].attributes(attrs or {}))
        found = OP[op].infer([None if name is None else types[name] for name in operands], full)
        results = tuple(Value(f"{stem}{index}", tensor) for index, tensor in enumerate(found))
        types.update((value.name, value.type) for value in results)
        nodes.append(Node(op, tuple(operands), results, full))
        return [value.name for value in results]

    made = add(op, names, "y", attrs)
    total = ""
    for index, weight in upstream.items():
        values[f"u{index}"] = weight
        types[f"u{index}"] = TensorType(weight.shape, DType.F32)
        inputs.append(GraphInput(Value(f"u{index}", types[f"u{index}"]), Role.INPUT))
        y = made[index]
        if types[y].dtype is not DType.F32:
            (y,) = add("cast", [y], f"cast{index}.", {"dtype": "f32"})
        (product,) = add("mul", [y, f"u{index}"], f"product{index}.")
        (term,) = add("reduce_sum", [product], f"term{index}.")
        (total,) = add("add", [total, term], f"total{index}.") if total else (term,)
    chosen = [f"x{index}" for index in (_wanted(operands) if wanted is None else wanted)]
    forward = Graph("forward", tuple(inputs), tuple(nodes), (total,))
    found = differentiate(forward, total, chosen)
    outputs = tuple(dict.fromkeys(found.gradients.values()))
    whole = Graph("backward", found.graph.inputs, found.graph.nodes, (total, *outputs))
    run = interpret(whole, values)
    return {
        int(name[1:]): run.outputs[found.gradients[name]]
        if name in found.gradients
        else np.zeros(types[name].static_shape, np.float32)
        for name in chosen
    }


@contextmanager
def in_float64() -> Iterator[None]:
    """References do not round what they give."""
    with mock.patch.object(np, "float32", np.float64):
        yield


def _weighted(op: str, operands: Operands, attrs: Mapping[str, Attr], upstream: Mapping[int, Array]) -> float:
    given = _types([None if a is None else a.astype(np.float32) if a.dtype.kind == "f" else a for a in operands])
    types = tuple(
        tensor.with_dtype(DType.F64) if tensor.dtype.is_float else tensor for tensor in OP[op].infer(given, attrs)
    )
    with in_float64():
        results = OP[op].reference(operands, attrs, types)
    return sum(float(np.sum(results[index].astype(np.float64) * weight)) for index, weight in upstream.items())


def check_differences(
    op: str,
    operands: Operands,
    attrs: Mapping[str, Attr],
    rng: np.random.Generator,
    upstream: Mapping[int, Array] | None = None,
    wanted: Sequence[int] | None = None,
) -> None:
    """The gradient by each float operand, or by those that are wanted, along two random directions, against (f(x + s d) - f(x - s d)) / 2s in float64."""
    upstream = weights(op, operands, attrs, rng) if upstream is None else upstream
    found = gradients(op, operands, attrs, upstream, wanted)
    wide = [array if array is None or array.dtype.kind != "f" else array.astype(np.float64) for array in operands]
    for index, gradient in found.items():
        value = wide[index]
        assert value is not None
        assert gradient.shape == value.shape
        for _ in range(2):
            direction = rng.standard_normal(value.shape)
            ends = []
            for sign in (1, -1):
                moved = [*wide[:index], value + sign * STEP * direction, *wide[index + 1 :]]
                ends.append(_weighted(op, moved, attrs, upstream))
            difference = (ends[0] - ends[1]) / (2 * STEP)
            terms = gradient.astype(np.float64) * direction
            bound = 1e-6 + 1e-5 * float(np.sum(np.abs(terms)))
            assert abs(float(np.sum(terms)) - difference) <= bound, f"{op}, operand {index}"
