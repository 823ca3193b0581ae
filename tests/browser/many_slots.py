"""A plan with as many slots as a test wants: the placement of a generated problem, as the plan of an entry without a graph."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.planner.generators import training
from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.ir.step import ByteRange, Region, Step, StepKind
from ostinato.ir.types import DType, TensorType
from ostinato.planner.plan import EntryPlan, PlanStats, ProgramPlan, RegionSize, Slot
from ostinato.planner.solvers import solve

__all__ = ["many_slots"]

DEVICE = "host:0"


def many_slots(count: int, seed: int = 1) -> tuple[EntryPlan, ProgramPlan, Graph]:
    """The plan, the program around it, and a chain of nodes as its graph: a step for each moment of the problem."""
    problem = training(count, seed)
    outcome = solve(problem, "native")
    arena = Region(DEVICE, "arena")
    slots = tuple(
        Slot(
            values=(f"layers.{index % 40}.v{index}",),
            range=ByteRange(arena, offset, buffer.size),
            first=buffer.lower,
            last=buffer.upper,
        )
        for index, (buffer, offset) in enumerate(zip(problem.buffers, outcome.solution.offsets, strict=True))
    )
    moments = max(slot.last for slot in slots)
    steps = tuple(
        Step(f"layers.{step * 40 // moments}.s{step}", StepKind.LAUNCH, DEVICE, "scale", ()) for step in range(moments)
    )
    tensor = TensorType((4,), DType.F32)
    names = ["x", *(step.node for step in steps)]
    nodes = tuple(Node("scale", (before,), (Value(name, tensor),)) for before, name in pairwise(names))
    graph = Graph("many", (GraphInput(Value("x", tensor), Role.INPUT),), nodes, (names[-1],))
    stats = PlanStats(
        device=DEVICE,
        arena_bytes=outcome.solution.height,
        lower_bound=outcome.bound.height,
        gap=outcome.gap,
        status=outcome.status.value,
        solver=outcome.solver,
        sum_bytes=sum(buffer.size for buffer in problem.buffers),
        peak_step=outcome.bound.step,
        peak_values=outcome.bound.tenants,
        worst_fragmentation=0.0,
        worst_step=0,
        mean_fragmentation=0.0,
        reused=0,
        elsewhere=(),
        steps=moments,
        launches=moments,
        copies=0,
        strided_copies=0,
        in_place=0,
        recomputed=0,
        extra_work=0.0,
    )
    plan = EntryPlan(
        name="many",
        graph_hash="",
        source_hash="",
        clones={},
        target="host",
        target_rows="",
        device=DEVICE,
        alignment=1,
        dims={},
        options={},
        steps=steps,
        slots=slots,
        inputs=(),
        outputs=(),
        io_bytes=0,
        stats=stats,
    )
    regions = (RegionSize(region=arena, bytes=stats.arena_bytes),)
    program = ProgramPlan(entries={"many": plan}, regions=regions, weights=(), parameters=(), state=(), constants=())
    return plan, program, graph
