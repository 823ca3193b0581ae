"""What the planted faults are made of: kernels that are wrong on purpose, an operator that does not repeat itself, and passes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ostinato.extending import (
    Arrays,
    CallSite,
    DType,
    Level,
    OperandSpec,
    Site,
    TensorType,
    Tolerance,
    by_dtypes,
    cost_per_element,
    define,
    element_launch,
    normal,
    readable,
    valid,
)
from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.target import Target

__all__ = [
    "IN_PLACE_ON_GPUS",
    "NORM_SOURCE",
    "WOBBLE",
    "WOBBLE_ON_GPUS",
    "WOBBLE_SOURCE",
    "AlsoHarmless",
    "Harmless",
    "SwapGate",
    "WobbleLogits",
    "rows_of",
]


def rows_of(site: CallSite) -> int:
    """The leading extent of the first operand."""
    return site.operand(0).static_shape[0]


NORM_SOURCE = """
#include "device.h"

// A thread a row, which works out the mean anew for every column: right, but where y lies on x.
template <class X, class Y>
DEVICE void slow_norm(const X* x, const f32* gain, const i32* count, Y* y, i64 rows, i64 width, f64 eps, Status) {
    const i64 end = valid_rows(count, rows);
    for (i64 row = first_element(); row < end; row += element_step()) {
        for (i64 i = 0; i < width; i++) {
            f32 squares = 0.0f;
            for (i64 j = 0; j < width; j++) squares = fmaf(widen(x[row * width + j]), widen(x[row * width + j]), squares);
            const f32 factor = 1.0f / sqrtf(squares / static_cast<f32>(width) + static_cast<f32>(eps));
            narrow(widen(x[row * width + i]) * factor * gain[i], y[row * width + i]);
        }
    }
}
"""


def _norm_size(site: CallSite) -> tuple[int | float, ...]:
    rows, width = site.operand(0).static_shape
    return (rows, width, site.real("eps"))


IN_PLACE_ON_GPUS = replace(
    readable(
        "rms_norm",
        ("x", "gain", "count", "y"),
        by_dtypes("faults/norm", "slow_norm", 0, result=0),
        _norm_size,
        lambda site: element_launch(rows_of(site)),
        lambda site: None if site.operand(0).rank == 2 else "two axes",
        in_place=(("y", "x"),),
    ),
    name="mine",
    level=Level.TUNED,
    priority=1000,
)


@dataclass(frozen=True)
class SwapGate:
    """ "Fuses" the first gate and up the wrong way round."""

    name: ClassVar[str] = "swap_gate"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        gated = next(node for node in graph.nodes if node.op == "swiglu")
        gate, up = gated.operands
        swapped = replace(gated, operands=(up, gate))
        nodes = tuple(swapped if node is gated else node for node in graph.nodes)
        return Graph(graph.name, graph.inputs, nodes, graph.outputs, graph.extents)


@dataclass(frozen=True)
class Harmless(SwapGate):
    """Changes nothing."""

    name: ClassVar[str] = "harmless"

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        return graph


@dataclass(frozen=True)
class AlsoHarmless(Harmless):
    """Changes nothing either."""

    name: ClassVar[str] = "also_harmless"


_TURNS = itertools.count()


def _infer(site: Site) -> tuple[TensorType, ...]:
    return (site.operand(0).with_layout(None),)


def _wobble(call: Arrays) -> tuple[Any, ...]:
    return ((call.wide(0) + np.float32(1e-2) * (next(_TURNS) % 97)).astype(np.float32),)


WOBBLE = define(
    "wobble",
    "x, and a little that is another one each time: planted.",
    (OperandSpec("x", frozenset({DType.F32})),),
    ("y",),
    _infer,
    _wobble,
    lambda rng: iter([valid(normal((5, 7)))]),
    Tolerance(1.0, 0.0, "it is wrong on purpose"),
    cost=cost_per_element(2),
)
WOBBLE_SOURCE = """
#include "device.h"

// Blocks are numbered as they come, which nothing orders.
template <class X>
DEVICE void wobble(const X* x, const i32* count, X* y, u32* turn, i64 rows, i64 width, Status) {
    SHARED(u32, mine, 1);
    if (thread_index() == 0) mine[0] = atomic_add(turn, 1u);
    block_barrier();
    const i64 end = valid_rows(count, rows) * width;
    for (i64 i = first_element(); i < end; i += element_step())
        y[i] = x[i] + 1e-2f * static_cast<f32>(mine[0] % 64u);
}
"""
_WOBBLE_THREADS, _WOBBLE_BLOCKS = 64, 48


def _size(site: CallSite) -> tuple[int | float, ...]:
    rows = site.operand(0).static_shape[0]
    return (rows, site.operand(0).elements // max(1, rows))


WOBBLE_ON_GPUS = replace(
    readable(
        "wobble",
        ("x", "count", "y", "workspace"),
        by_dtypes("faults/wobble", "wobble", 0),
        _size,
        lambda site: replace(
            element_launch(site.operand(0).elements),
            grid=(max(_WOBBLE_BLOCKS, -(-site.operand(0).elements // _WOBBLE_THREADS)), 1, 1),
            block=(_WOBBLE_THREADS, 1, 1),
        ),
        lambda site: None,
    ),
    workspace=lambda site: 256,
)


@dataclass(frozen=True)
class WobbleLogits(SwapGate):
    """Puts the operator behind the logits."""

    name: ClassVar[str] = "wobble_logits"

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        made = graph.producers["logits"]
        steady = replace(made, results=(Value("steady", made.results[0].type),))
        shaken = Node("wobble", ("steady",), made.results, Attributes(), location=made.location)
        nodes = [item for node in graph.nodes for item in ((steady, shaken) if node is made else (node,))]
        return Graph(graph.name, graph.inputs, tuple(nodes), graph.outputs, graph.extents)
