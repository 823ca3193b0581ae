"""Makes the profile of an entry: timed runs and undisturbed ones in turn, and what each step is.

Runs begin with the same inputs; state goes on from run to run, as it does in a loop of steps, and whoever calls puts it back. Of the times of a step the middle
half counts: a mean, which a coarse clock tells more finely than it ticks, of what no interruption has touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.ir.graph import Graph
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, Step, StepKind
from ostinato.ir.types import Array, TensorType
from ostinato.runtime.device import Device, ResolvedStep
from ostinato.runtime.profile import Profile, StepOperand, StepTime
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.step_clocks import make_clock

__all__ = ["middle_mean", "profile_entry", "step_traffic"]


def profile_entry(
    program: Program,
    name: str,
    device: Device,
    regions: Regions,
    *,
    mode: str,
    capture: Sequence[str] | None,
    inputs: Mapping[str, Array],
    runs: int,
) -> Profile:
    """Times an entry in mode "planned" or "captured" on these inputs. It writes arena, io and state. Raises `ConfigError` in other modes, and what a run
    raises."""
    clock = make_clock(program.plan, name, device, regions, mode, capture)
    exchange, table = clock.loaded.exchange, clock.loaded.table

    def give() -> None:
        for key, array in inputs.items():
            exchange.inputs[key][...] = array
        exchange.give()
        table.finish()

    for timed in (clock.whole, clock.steps):  # what a first run does once is not timed
        give()
        timed()
    whole: list[float] = []
    times: list[list[float]] = []
    for _ in range(runs):
        give()
        whole.append(clock.whole())
        give()
        times.append(clock.steps())
    graph, plan = program.graphs[name], program.plan.entries[name]
    steps = [
        _step_time(graph, position, step, clock.loaded.resolved[position], taken, clock.overhead)
        for position, (step, taken) in enumerate(zip(plan.steps, zip(*times, strict=True), strict=True))
    ]
    return Profile(
        entry=name,
        device=device.name,
        mode=mode,
        steps=tuple(steps),
        runs=runs,
        whole_seconds=middle_mean(whole),
        whole_best=min(whole),
        overhead_seconds=clock.overhead,
        resolution_seconds=clock.resolution,
        method=clock.method,
        notes=clock.notes,
    )


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of some numbers: of all of them where they are fewer than four."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def step_traffic(graph: Graph, step: Step) -> tuple[int, int, int]:
    """Bytes that a step reads and writes, and floating-point operations, by the facts of its node's operator.

    The facts give the sum of both. Results of their own are written as a whole; of what is updated in place (parameters, a cache) the rest of the sum tells how
    much: read and written where it is all of it, written alone where it is a part.
    """
    node = graph.producers.get(step.node)
    if _moves(step) or node is None:
        operands = [o for o in step.operands if o is not None and o.value != WORKSPACE]
        return sum(o.range.size for o in operands if o.reads), sum(o.range.size for o in operands if o.writes), 0
    types = graph.operand_types(node)
    cost = OP[node.op].cost(types, [value.type for value in node.results], node.attrs)
    updated = dict(OP[node.op].aliased(node.operands))
    own = sum(value.type.nbytes for index, value in enumerate(node.results) if index not in updated)
    given = sum(kind.nbytes for place, kind in enumerate(types) if kind is not None and place not in updated.values())
    part = max(cost.bytes - own - given, 0) if updated else 0
    whole = 2 * sum(node.results[index].type.nbytes for index in updated)
    written = min(own + (part // 2 if part >= whole else part), cost.bytes)
    return cost.bytes - written, written, cost.flops


def _moves(step: Step) -> bool:
    return step.kind in (StepKind.COPY, StepKind.FILL)


def _dtypes(types: Sequence[TensorType | None]) -> tuple[str, ...]:
    found = [kind.dtype for kind in types if kind is not None and (kind.dtype.is_block or kind.dtype.is_float)]
    return tuple(dtype.value for dtype in found[:2])


def _step_time(
    graph: Graph, position: int, step: Step, resolved: ResolvedStep, taken: Sequence[float], overhead: float
) -> StepTime:
    node = graph.producers.get(step.node)
    moves = _moves(step) or node is None
    read, written, flops = step_traffic(graph, step)
    return StepTime(
        position=position,
        node=step.node,
        op=step.kind.value if moves or node is None else node.op,
        kernel=step.kernel,
        kind=step.kind.value,
        seconds=max(middle_mean(taken) - overhead, 0.0),
        bytes_read=read,
        bytes_written=written,
        flops=flops,
        best=max(min(taken) - overhead, 0.0),
        impl="" if moves or node is None else node.impl or "",
        line="" if node is None or node.location is None else str(node.location),
        dtypes=() if moves or node is None else _dtypes(graph.operand_types(node)),
        launch="" if step.launch is None else str(step.launch),
        operands=tuple(
            StepOperand(operand.value, operand.range.region.kind, address, nbytes, operand.reads, operand.writes)
            for operand, (address, nbytes) in zip(step.operands, resolved.operands, strict=True)
            if operand is not None
        ),
    )
