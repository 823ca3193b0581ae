"""From the forward graph of a step to the whole of it: parameters in place of weights, the gradients of the loss, and the nodes of an optimizer that updates
the parameters in place.

A float32 matrix or vector becomes a parameter under its own name. A matrix that the forward graph reads in bf16 or f16 becomes two: under its own name the
rounded mirror that is read, and the float32 master `master.<name>`, which the optimizer updates; it rewrites the mirror in the same launch. Gradients are taken
by what is read and belong to the master. Moments and the number of steps are state, zero in the beginning; what may change between steps lies in the input
`settings`. Every optimizer node stands where its gradient is complete and everybody who reads the parameter has done so, so that a gradient which nobody keeps
dies there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Location, Node, Role, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.ops.optimizer import SETTING_NAMES
from ostinato.ir.training import FACTORS, MASTER_PREFIX, SETTINGS, STEP
from ostinato.ir.types import DType, TensorType
from ostinato.passes.differentiate import Differentiated, differentiate
from ostinato.passes.join_projections import apart, join_projections

__all__ = ["TrainingGraph", "Updates", "as_parameters", "training_graph"]


@dataclass(frozen=True, slots=True)
class Updates:
    """An optimizer as the graph needs to know it. `kind`: "adamw", "sgd" or "sgd_momentum"; `moments`: their dtype; `clip`: whether gradients are clipped by
    their global norm. Matrices decay where weights do; vectors, which are gains and biases, never."""

    kind: str
    moments: DType = DType.F32
    schedule: str = "constant"
    clip: bool = False
    nesterov: bool = False

    @property
    def states(self) -> tuple[str, ...]:
        """Prefixes of the state that each parameter has."""
        return {"adamw": ("first", "second"), "sgd_momentum": ("velocity",), "sgd": ()}[self.kind]


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A whole step. `masters` names the float32 parameter of each that is trained, `gradients` its gradient, `untouched` those that the loss does not depend
    on; `added` and `in_place` count contributions to gradients that were added to another, and those of them that went into its bytes."""

    graph: Graph
    masters: Mapping[str, str]
    gradients: Mapping[str, str]
    untouched: tuple[str, ...]
    added: int
    in_place: int


def as_parameters(graph: Graph, frozen: Collection[str] = ()) -> tuple[Graph, dict[str, str]]:
    """The graph with parameters in place of its weights but the `frozen` ones, and the name of each one's float32 master.

    Raises `DTypeError` for a weight in blocks that is not frozen, `ConfigError` for a frozen name that is no weight.
    """
    if unknown := sorted(set(frozen) - {item.value.name for item in graph.with_role(Role.WEIGHT)}):
        raise ConfigError(f"frozen weights {unknown} are not in the graph", hint="name weights as the checkpoint does")
    inputs: list[GraphInput] = []
    masters: dict[str, str] = {}
    for item in graph.inputs:
        name, tensor = item.value.name, item.value.type
        if item.role is not Role.WEIGHT or name in frozen:
            inputs.append(item)
            continue
        if not tensor.dtype.is_float:
            raise DTypeError(
                f"a weight in blocks of {tensor.dtype.value} cannot be trained",
                node=name,
                hint="train a checkpoint with float weights, or freeze this one",
            )
        natural = tensor.with_layout(tensor.natural_layout)  # from now on: what updates write is never packed
        inputs.append(replace(item, value=Value(name, natural), role=Role.PARAMETER))
        masters[name] = name
        if tensor.dtype is not DType.F32:
            masters[name] = f"{MASTER_PREFIX}{name}"
            value = Value(masters[name], natural.with_dtype(DType.F32))
            inputs.append(GraphInput(value, Role.PARAMETER, parts=item.parts))
    return Graph(graph.name, tuple(inputs), graph.nodes, graph.outputs, graph.extents), masters


def training_graph(
    graph: Graph, updates: Updates | None, *, keep_gradients: bool = False, frozen: Collection[str] = ()
) -> TrainingGraph:
    """The whole step of a forward graph whose one output is its loss. Projections of one input are joined, unless somebody wants the gradient of each.

    Outputs: the loss; `factors`, which `optimizer_factors` makes; `grad.<name>` of every parameter with `keep_gradients`, and always without an optimizer
    (`updates` None), which then has none of the others. Raises what `as_parameters` and `differentiate` raise.
    """
    single = keep_gradients or updates is None
    read, masters = as_parameters(graph if single else join_projections(graph, frozen), frozen)
    (loss,) = read.outputs
    derived = differentiate(read, loss, masters)
    gradients = derived.gradients
    kept = tuple(gradients.values()) if single else ()
    whole = derived.graph
    if updates is not None:
        whole = _Optimizer(derived, masters, updates, loss).appended()
    outputs = (*whole.outputs, *kept)
    whole = apart(Graph(whole.name, whole.inputs, whole.nodes, outputs, whole.extents))
    untouched = tuple(name for name in masters if name not in gradients)
    return TrainingGraph(whole, masters, gradients, untouched, derived.added, derived.in_place)


class _Optimizer:
    """Adds the nodes that update parameters."""

    def __init__(self, derived: Differentiated, masters: Mapping[str, str], updates: Updates, loss: str) -> None:
        self._graph, self._gradients = derived.graph, derived.gradients
        self._masters, self._updates, self._loss = masters, updates, loss
        self._types = dict(self._graph.types)
        self._inputs: list[GraphInput] = []
        self._nodes: list[Node] = []

    def appended(self) -> Graph:
        graph, updates = self._graph, self._updates
        step = self._input(STEP, TensorType((1,), DType.I32), Role.STATE)
        settings = self._input(SETTINGS, TensorType((len(SETTING_NAMES),), DType.F32), Role.INPUT)
        total = self._squares() if updates.clip else None
        operands = (step, settings, self._loss, *(() if total is None else (total,)))
        names = ("step.next", FACTORS)
        self._add("optimizer_factors", operands, names, {"schedule": updates.schedule}, None)
        for name, gradient in self._gradients.items():
            self._update(name, gradient)
        inputs = (*graph.inputs, *self._inputs)
        return Graph(graph.name, inputs, (*graph.nodes, *self._nodes), (*graph.outputs, FACTORS), graph.extents)

    def _squares(self) -> str | None:
        """The sum of the squares of all gradients."""
        total = None
        for name, gradient in self._gradients.items():
            operands = (gradient,) if total is None else (total, gradient)
            op = "square_sum" if total is None else "square_sum_add"
            (total,) = self._add(op, operands, (f"squares.{name}",), {}, self._location(gradient))
        return total

    def _update(self, name: str, gradient: str) -> None:
        updates, master = self._updates, self._masters[name]
        tensor = self._types[master]
        held = [(prefix, f"{prefix}.{name}") for prefix in updates.states]
        for _, state in held:
            self._input(state, tensor.with_dtype(updates.moments), Role.STATE)
        mirror = name if master != name else None
        operands = [master, gradient, *(state for _, state in held), FACTORS, *(() if mirror is None else (mirror,))]
        results = [f"{value}.next" for value in (master, *(state for _, state in held))]
        results += [] if mirror is None else [f"{mirror}.next"]
        attrs: dict[str, Attr] = {"decay": tensor.rank > 1}
        if updates.kind == "sgd_momentum":
            attrs["nesterov"] = updates.nesterov
        self._add(updates.kind, operands, results, attrs, self._location(gradient))

    def _location(self, value: str) -> Location | None:
        maker = self._graph.producers.get(value)
        return None if maker is None else maker.location

    def _input(self, name: str, tensor: TensorType, role: Role) -> str:
        self._inputs.append(GraphInput(Value(name, tensor), role))
        self._types[name] = tensor
        return name

    def _add(
        self,
        op: str,
        operands: Collection[str],
        names: Collection[str],
        attrs: Mapping[str, Attr],
        location: Location | None,
    ) -> tuple[str, ...]:
        full = Attributes(OP[op].attributes(attrs))
        given = list(operands)
        types = list(OP[op].infer([self._types[name] for name in given], full))
        for result, operand in OP[op].aliased(given):  # the same bytes, in the same order
            types[result] = types[result].with_layout(self._types[given[operand]].layout)
        results = tuple(Value(name, tensor) for name, tensor in zip(names, types, strict=True))
        self._nodes.append(Node(op, tuple(operands), results, full, location=location))
        self._types.update((value.name, value.type) for value in results)
        return tuple(names)
