"""Graphs of fake operators in which values live long."""

from __future__ import annotations

import random
from dataclasses import replace

from ostinato.ir.graph import Graph, Node, Value
from ostinato.planner.lower import prepare
from ostinato.planner.order import program_order
from ostinato.planner.recompute.model import RecomputeModel, recompute_model
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker, vector
from tests.planner.mutation_cases import random_graph

__all__ = ["SIZE", "block", "graph_with_late_readers", "kept_across", "random_step", "small_model"]

SIZE = 64
"""Bytes of most values."""


def block(make: GraphMaker, x: str, *, steps: int = 3, size: int = SIZE) -> str:
    """Steps that need three values of a size at once."""
    for index in range(steps):
        t = make.unary(f"t{index}", x, size=size)
        x = make.binary(f"b{index}", t, make.unary(f"u{index}", t))
    return x


def kept_across(make: GraphMaker, value: str, x: str) -> Graph:
    """`value` is made first and read last, with a block between."""
    return make.graph(make.unary("out", make.binary("y", block(make, x), value)))


def graph_with_late_readers(rng: random.Random, nodes: int) -> Graph:
    """A random graph, of whose values a few are read once more together with the last one, so that no order of the steps ends their lives early."""
    graph = random_graph(rng, nodes)
    overwritten = {node.operands[0] for node in graph.nodes if FAKE_OPS[node.op].must_alias}
    made = [node.results[-1].name for node in graph.nodes if node.op in ("unary", "binary", "pair", "split")]
    read = rng.sample(made, min(len(made), rng.randint(2, 4)))
    kept = [name for name in read if name not in overwritten]
    last = next((name for name in reversed(made) if name not in overwritten), None)
    late = [Node("binary", (name, last), (Value(f"late{i}", vector(8)),), impl="plain") for i, name in enumerate(kept)]
    outputs = (*graph.outputs, *(node.name for node in late))
    return replace(graph, nodes=(*graph.nodes, *late), outputs=outputs)


def random_step(rng: random.Random) -> Graph:
    """Layers that read parameters, then readers of their results from the last on, with updates of the parameters and of sums between."""
    make = GraphMaker()
    values = [make.input("x", SIZE)]
    parameters = {f"p{i}": make.parameter(f"p{i}", SIZE) for i in range(3)}
    for index in range(rng.randint(4, 7)):
        source, name = rng.choice(values[-2:]), f"v{index}"
        if rng.random() < 0.7:
            values.append(make.binary(name, source, rng.choice(list(parameters.values()))))
        else:
            values.append(make.unary(name, source, rng.choice(("plain", "work"))))
    gradient, kept = values[-1], []
    for index, value in enumerate(reversed(values[1:])):
        gradient = make.binary(f"g{index}", gradient, value)
        if rng.random() < 0.6:
            key = rng.choice(list(parameters))
            parameters[key] = make.update(f"{key}u{index}", parameters[key], gradient)
        if rng.random() < 0.3:
            kept.append(make.update(f"sum{index}", make.unary(f"first{index}", gradient), gradient))
    return make.graph(make.unary("out", gradient), *kept)


def small_model(graph: Graph) -> RecomputeModel:
    """What recomputation sees of a graph in program order."""
    schedule = program_order(graph, FAKE_OPS)
    settings = PlanSettings(order="program")
    prepared = prepare(graph, FAKE_TARGET, schedule=schedule, settings=settings, ops=FAKE_OPS)
    return recompute_model(prepared, [turn.node.name for turn in schedule], in_place=True)
