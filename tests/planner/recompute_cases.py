"""Graphs of fake operators in which values live long."""

from __future__ import annotations

import random
from dataclasses import replace

from ostinato.ir.graph import Graph, Node, Value
from tests.planner.fakes import FAKE_OPS, GraphMaker, vector
from tests.planner.mutation_cases import random_graph

__all__ = ["SIZE", "block", "graph_with_late_readers", "kept_across"]

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
