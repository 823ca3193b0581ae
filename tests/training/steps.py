"""A small training step with everything that a large one has: tied weights, a matrix with a bf16 mirror on request, an optimizer, a forward entry beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.runner import run_pipeline
from ostinato.passes.training_graph import Updates, as_parameters, training_graph
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.runtime.device import Device, WeightSource
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from ostinato.runtime.training.executable import TrainExecutable, TrainOptions

__all__ = [
    "BATCH",
    "SETTINGS",
    "TENSORS",
    "VOCABULARY",
    "Tensors",
    "batch",
    "forward_graph",
    "make",
    "program_of",
    "step_graph",
]

BATCH, LENGTH, VOCABULARY, WIDTH = 2, 3, 11, 8
SETTINGS = np.array([0.05, 0.9, 0.999, 1e-8, 0.01, 0.0, 0.0, 100.0, 0.1], np.float32)
_ADAMW = Updates("adamw")


class Tensors(WeightSource):
    """Seeded tensors as a checkpoint: what is mapped and how often."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)
        self.mapped: list[str] = []

    def dtype(self, tensor: str) -> DType:
        return DType.of(self.arrays[tensor].dtype)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.arrays[tensor].shape

    def map(self, tensor: str) -> Array:
        self.mapped.append(tensor)
        return self.arrays[tensor].reshape(-1).view(np.uint8)


def _tensors() -> dict[str, Array]:
    rng = np.random.default_rng(17)
    shapes = {"embed": (VOCABULARY, WIDTH), "up": (WIDTH, WIDTH), "gain": (WIDTH,)}
    return {name: 0.4 * rng.standard_normal(shape, np.float32) + (name == "gain") for name, shape in shapes.items()}


TENSORS: Mapping[str, Array] = _tensors()


def _weight(builder: GraphBuilder, name: str, dtype: DType = DType.F32) -> Tensor:
    shape = TENSORS[name].shape
    return builder.weight(name, TensorType(shape, dtype), (WeightPart(name, 0, shape[0]),))


def _logits(builder: GraphBuilder, ids: Tensor, dtype: DType) -> Tensor:
    embed = _weight(builder, "embed")
    x = builder.apply("embedding", (ids, embed), name="embedded")
    y = builder.apply("rms_norm", (x, _weight(builder, "gain")), {"eps": 1e-5}, "normed")
    entering = y if dtype is DType.F32 else builder.apply("cast", (y,), {"dtype": dtype.value}, "rounded")
    up = builder.apply("linear", (entering, _weight(builder, "up", dtype), None, None), {"dtype": "f32"}, "up.y")
    hidden = builder.apply("silu", (up,), name="hidden")
    return builder.apply("linear", (x + hidden, embed, None, None), {}, "logits")


def forward_graph(dtype: DType = DType.F32) -> Graph:
    """Logits of a batch: the entry beside the step."""
    builder = GraphBuilder("forward")
    ids = builder.input("input_ids", TensorType((BATCH, LENGTH), DType.I32))
    graph, _ = as_parameters(builder.finish([_logits(builder, ids, dtype)]))
    return graph


def step_graph(updates: Updates | None = _ADAMW, *, keep: bool = True, dtype: DType = DType.F32) -> Graph:
    """The whole step; `dtype` is that of the matrix `up` as products read it."""
    builder = GraphBuilder("train")
    ids = builder.input("input_ids", TensorType((BATCH, LENGTH), DType.I32))
    target = builder.input("target", TensorType((BATCH, LENGTH), DType.I32))
    losses, _ = builder.apply_many(
        "token_cross_entropy", (_logits(builder, ids, dtype), target), names=("losses", "log_sum")
    )
    loss = builder.apply("target_mean", (losses, target), name="loss")
    return training_graph(builder.finish([loss]), updates, keep_gradients=keep).graph


def program_of(graphs: Mapping[str, Graph], tensors: Tensors | None = None, device: Device | None = None) -> Program:
    """The proven program of graphs, on the host by default."""
    target = host_target() if device is None else device.target
    lowered = {name: run_pipeline(graph, target).graph for name, graph in graphs.items()}
    plan = build_program({name: (graph, plan_entry(graph, target, name=name)) for name, graph in lowered.items()})
    check_program(plan, lowered, target)
    return Program(plan, lowered, target, tensors or Tensors(TENSORS))


def make(
    mode: str = "planned",
    *,
    program: Program | None = None,
    options: TrainOptions | None = None,
    kind: Callable[..., Any] | None = None,
    device: Device | None = None,
) -> TrainExecutable:
    """A step with gradients kept and its forward entry, ready to run."""
    made = program or program_of({"train": step_graph(), "forward": forward_graph()}, device=device)

    def build(*arguments: Any, **route: Any) -> TrainExecutable:
        standing = {"settings": SETTINGS}
        return (kind or TrainExecutable)(*arguments, options=options, standing=standing, **route)

    return load_program(made, Route(device or HostDevice(threads=1), mode), kind=build)


def batch(seed: int) -> dict[str, Array]:
    """Ids, and targets of which one is ignored."""
    rng = np.random.default_rng(seed)
    ids, target = (rng.integers(0, VOCABULARY, (BATCH, LENGTH), dtype=np.int32) for _ in range(2))
    target[0, 1] = -100
    return {"input_ids": ids, "target": target}


def state_of(exe: Executable) -> dict[str, bytes]:
    """All parameters and state, to the bit."""
    return {name: exe.read_state(name).tobytes() for name in exe.state_names}
