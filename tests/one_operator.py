"""Programs of one operator, made from its own samples, for a device and with rows forced: what tests of levels and of user operators run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ostinato.ir.decision import Decision
from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value, trimmed
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.choice import RowChoice
from ostinato.passes.select_impl import SelectImpl
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.device import Device, WeightSource
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program

__all__ = ["OneCall", "one_call", "one_calls"]


@dataclass(frozen=True)
class Weights(WeightSource):
    """Tensors by name, as a checkpoint would have them."""

    arrays: Mapping[str, tuple[Array, TensorType]]

    def dtype(self, tensor: str) -> DType:
        return self.arrays[tensor][1].dtype

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.arrays[tensor][1].static_shape

    def map(self, tensor: str) -> Array:
        return np.ascontiguousarray(self.arrays[tensor][0]).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class OneCall:
    """A graph of one node, values for all its inputs, and how many leading rows of a result are valid (None: all)."""

    opdef: OpDef
    graph: Graph
    values: Mapping[str, Array]
    valid: int | None = None

    def lowered(self, device: Device, level: str | None) -> tuple[Graph, Mapping[str, Decision]]:
        """With a level of the operator forced; raises `BackendError` where none of its rows takes the call."""
        choice = RowChoice().and_forced(None if level is None else {self.opdef.name: level})
        return SelectImpl(choice).decide(AssignLayout(choice).apply(self.graph, device.target), device.target)

    def loaded(self, device: Device, level: str | None, mode: str) -> Executable:
        """Raises what lowering raises."""
        graph, decisions = self.lowered(device, level)
        plan = build_program({"main": (graph, plan_entry(graph, device.target, name="main"))})
        check_program(plan, {"main": graph}, device.target)
        weights = {
            item.value.name: (self.values[item.value.name], item.value.type)
            for item in self.graph.with_role(Role.WEIGHT)
        }
        program = Program(plan, {"main": graph}, device.target, Weights(weights), decisions={"main": decisions})
        return load_program(program, Route(device, mode), kind=Executable)

    def run(self, executable: Executable) -> dict[str, Array]:
        given = {name: self.values[name] for name in self.names(Role.INPUT)}
        executable.reset_state()
        return self.cut(executable.run(None, given))

    def expected(self) -> dict[str, Array]:
        """By the interpreter, from a state of zeros."""
        return self.cut(interpret(self.graph, self.values).outputs)

    def makes_sense(self) -> bool:
        """Whether the oracle can say what comes of it: indices may point past the rows that are valid, and shapes may be attributes."""
        try:
            self.expected()
        except OstinatoError:
            return False
        return True

    def names(self, role: Role) -> list[str]:
        return [item.value.name for item in self.graph.with_role(role)]

    def cut(self, found: Mapping[str, Array]) -> dict[str, Array]:
        """Valid rows alone."""
        counted = {axis for axis, _ in self.graph.extents}
        return {
            name: array[: self.valid] if set(self.graph.types[name].axes[:1]) & counted else array
            for name, array in found.items()
        }


def one_call(opdef: OpDef, sample: Sample, rng: np.random.Generator, *, valid: int | None = None) -> OneCall | None:
    """The call of a sample; with `valid` only so many leading rows count, None where the call has no named axis of more."""
    overwritten = {operand for _, operand in opdef.must_alias}
    inputs: list[GraphInput] = []
    values: dict[str, Array] = {}
    for index, (spec, operand) in enumerate(zip(opdef.operands, sample.operands, strict=False)):
        if operand is None:
            continue
        weight = operand.type.dtype.is_block or spec.name == "weight"
        role = Role.STATE if index in overwritten else Role.WEIGHT if weight else Role.INPUT
        parts = (WeightPart(spec.name, 0, operand.type.static_shape[0]),) if weight else ()
        inputs.append(GraphInput(Value(spec.name, operand.type), role, parts))
        values[spec.name] = materialise(operand, rng)
        if role is Role.STATE:
            values[spec.name] = np.zeros_like(values[spec.name])
    attrs = Attributes(opdef.attributes(sample.attrs))
    types = opdef.infer([None if operand is None else operand.type for operand in sample.operands], attrs)
    results = tuple(Value(f"result.{i}", tensor) for i, tensor in enumerate(types))
    names = [
        None if operand is None else spec.name for spec, operand in zip(opdef.operands, sample.operands, strict=False)
    ]
    node = Node(opdef.name, trimmed(names), results, attrs)
    extents: tuple[tuple[str, str], ...] = ()
    if valid is not None:
        named = {spec.name: operand for spec, operand in zip(opdef.operands, sample.operands, strict=False)}
        counted = named.get(opdef.extent)
        tensor = types[0] if counted is None else counted.type
        if not tensor.axes or not tensor.axes[0].isupper() or tensor.static_shape[0] <= valid:
            return None
        extents = ((tensor.axes[0], "valid"),)
        inputs.append(GraphInput(Value("valid", TensorType((1,), DType.I32)), Role.INPUT))
        values["valid"] = np.array([valid], np.int32)
    graph = Graph("one", tuple(inputs), (node,), tuple(value.name for value in results), extents)
    return OneCall(opdef, graph, values, valid)


def one_calls(opdef: OpDef, rng: np.random.Generator, most: int) -> Iterator[OneCall]:
    """Calls of the operator's valid samples, `most` of them from all over, and one that is only partly valid where a sample can be."""
    samples = [sample for sample in opdef.samples(rng) if sample.error is None]
    samples = [s for s in samples if not any(o is not None and o.type.is_packed for o in s.operands)]
    step = max(1, len(samples) // most)
    for sample in samples[::step][:most]:
        call = one_call(opdef, sample, rng)
        assert call is not None
        yield call
    for sample in samples:
        call = one_call(opdef, sample, rng, valid=1)
        if call is not None and call.makes_sense():
            yield call
            return
