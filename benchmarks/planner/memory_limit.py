"""Limits of memory: what a training step pays in work for fewer bytes of arena, and how far a prefill of a real model gets.

The training step is a residual network with every gradient, forward and backward in one graph: what the forward pass makes is read again by the backward
pass, so that the arena grows with the number of layers. Each line is a limit as a part of the unlimited arena: what the plan takes, how many steps run again,
what that adds to the work (modelled: floating-point operations, and bytes), how long planning took.

    python -m benchmarks.planner.memory_limit [--layers 12] [--models Q]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from benchmarks.planner.models import lowered_model
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.errors import CapacityError
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.settings import PlanSettings

__all__ = ["fitted", "training_step"]

PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
TARGET = host_target()


def training_step(layers: int, rows: int, width: int, inner: int) -> Graph:
    """Layers h + tanh(h a^T) b^T of weights a [inner, width] and b [width, inner], and from the gradient of the result those of all weights and of x.

    Inputs x and gradient [rows, width], a0, b0, a1, ...; outputs the gradients of a0, b0, a1, ... and of x.
    """
    builder = GraphBuilder("training_step")

    def product(left: Tensor, right: Tensor, **flags: bool) -> Tensor:
        return builder.apply("matmul", (left, right), flags)

    def given(name: str, *shape: int) -> Tensor:
        return builder.input(name, TensorType(shape, DType.F32))

    hidden, gradient = [given("x", rows, width)], given("gradient", rows, width)
    weights = [(given(f"a{i}", inner, width), given(f"b{i}", width, inner)) for i in range(layers)]
    active: list[Tensor] = []
    for a, b in weights:
        active.append(builder.apply("tanh", (product(hidden[-1], a, transpose_b=True),)))
        hidden.append(hidden[-1] + product(active[-1], b, transpose_b=True))
    gradients: list[Tensor] = []
    for (a, b), h, t in reversed(list(zip(weights, hidden, active, strict=False))):
        of_t = product(gradient, b)
        of_sum = of_t + builder.apply("scale", (of_t * (t * t),), {"factor": -1.0})
        gradients = [product(of_sum, h, transpose_a=True), product(gradient, t, transpose_a=True), *gradients]
        gradient = gradient + product(of_sum, a)
    return builder.finish([*gradients, gradient])


def fitted(graph: Graph, target: Target, limit: int | None, name: str = "main") -> tuple[EntryPlan, float]:
    """A proven plan of a lowered graph within a limit, and the seconds it took to plan; raises `CapacityError`."""
    begin = time.perf_counter()
    planned, plan = fit_entry(graph, target, name=name, settings=PlanSettings(memory_limit=limit))
    seconds = time.perf_counter() - begin
    check_program(build_program({name: (planned, plan)}), {name: planned}, target, sources={name: graph})
    return plan, seconds


def _lines(title: str, graph: Graph, target: Target, parts: Sequence[float]) -> Iterator[str]:
    free, seconds = fitted(graph, target, None)
    arena = free.stats.arena_bytes
    yield f"{title}: {free.stats.steps} steps, {arena:,} bytes of arena, planned in {1e3 * seconds:.0f} ms"
    for part in parts:
        begin = time.perf_counter()
        try:
            plan, seconds = fitted(graph, target, int(arena * part))
        except CapacityError as error:
            yield f"  {part:4.0%}: nothing fits ({time.perf_counter() - begin:.2f} s): {error.message.splitlines()[0]}"
            continue
        stats = plan.stats
        yield (
            f"  {part:4.0%}: {stats.arena_bytes:>13,} bytes ({stats.arena_bytes / arena:5.1%})  {stats.recomputed:4} steps again"
            f"  {stats.extra_work:7.2%} more work  {seconds:6.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 12, 24])
    parser.add_argument("--models", nargs="*", default=["Q"])
    options = parser.parse_args(arguments)
    for layers in options.layers:
        graph = run_pipeline(training_step(layers, 256, 256, 1024), TARGET).graph
        for line in _lines(f"training step of {layers} layers", graph, TARGET, PARTS):
            print(line)
    for name in options.models:
        for shape, lowered in lowered_model(name, ("p512",)):
            for line in _lines(f"{name} {shape}", lowered.graph, lowered.target, (0.99, 0.98, 0.9)):
                print(line)


if __name__ == "__main__":
    main()
