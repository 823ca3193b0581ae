"""What to tell someone whose limit of memory nothing keeps: how many bytes are missing, who holds bytes at the peak and for whom, and what would help."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.errors import CapacityError
from ostinato.ir.graph import Graph
from ostinato.ir.step import StepKind
from ostinato.planner.plan import EntryPlan, Slot

__all__ = ["Floor", "Smallest", "shortage"]

TENANTS = 12
"""Tenants of the peak that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes that one step, the node's, takes by itself with its operands and results: no plan of any order needs less, whatever runs twice."""

    bytes: int
    node: str


@dataclass(frozen=True, slots=True)
class Smallest:
    """What is smallest of all that was found: a plan, what it is the plan of, and the lowest limit that it is known to be found for."""

    graph: Graph
    plan: EntryPlan
    limit: int


def shortage(smallest: Smallest, *, limit: int, floor: Floor, least: int, tried: int) -> CapacityError:
    """The error for a limit that no plan keeps: no plan in this order needs less than `least` bytes; `tried` plans recompute something."""
    graph, plan = smallest.graph, smallest.plan
    stats = plan.stats
    at = stats.peak_step
    alive = plan.tenants(at)
    short = smallest.limit - limit
    lines = [
        f"memory_limit is {limit} bytes of arena, the smallest that a plan was found for is {smallest.limit}: {short} bytes are missing",
        f"  at its peak, step {at} ({_step(graph, plan, at)}), {sum(slot.range.size for slot in alive)} bytes are alive:",
        *(f"    {_tenant(graph, plan, slot)}" for slot in alive[:TENANTS]),
    ]
    if more := alive[TENANTS:]:
        lines.append(f"    {sum(slot.range.size for slot in more)} bytes of {len(more)} smaller ones")
    lines.append(f"  plans tried that run steps twice: {tried}; this one runs {stats.recomputed or 'none'} twice")
    hint = f"raise memory_limit to {smallest.limit}, or compile smaller buckets"
    if floor.bytes > limit:
        lines.append(
            f"  the step of %{floor.node}{_line(graph, floor.node)} takes {floor.bytes} bytes by itself, operands included: no plan needs less"
        )
        hint += f"; this one needs {floor.bytes} bytes or more"
    elif least > limit:
        lines.append(
            f"  no plan that runs these steps in this order needs less than {least} bytes, whatever runs twice"
        )
    return CapacityError("\n".join(lines), missing_bytes=short, node=plan.name, hint=hint)


def _line(graph: Graph, value: str) -> str:
    """The user's line that made a value, in parentheses; nothing where it is not known."""
    node = graph.producers.get(value)
    return "" if node is None or node.location is None else f" ({node.location})"


def _step(graph: Graph, plan: EntryPlan, at: int) -> str:
    step = plan.steps[at]
    if step.kind is StepKind.COPY:
        return f"copy of %{step.node}"
    node = graph.producers[step.node]
    where = "" if node.location is None else f", {node.location}"
    return f"%{step.node} = {node.op}{where}"


def _tenant(graph: Graph, plan: EntryPlan, slot: Slot) -> str:
    """One tenant of the peak: its name, bytes and line, and what it is alive for."""
    at = plan.stats.peak_step
    names = set(slot.values)
    if not names & graph.types.keys():
        return f"{slot.values[0]}: {slot.range.size} bytes, for this step alone"
    value, use = slot.values[0], ""
    for position in range(slot.first, slot.last):
        step = plan.steps[position]
        mine = [operand for operand in step.operands if operand is not None and operand.value in names]
        made = next((operand.value for operand in mine if operand.writes), None)
        if position <= at and made is not None:
            value, use = made, "made here" if position == at else use
        elif position == at and mine:
            use = "read here"
        elif position > at and mine and not use:
            use = f"read next by %{step.node}{_line(graph, step.node)}"
    return f"%{value}: {slot.range.size} bytes{_line(graph, value)}, {use or 'not read again'}"
