"""What a step takes of a device, to the byte and from its plan alone: nothing is allocated and no device is opened.

Everything that has an address in a run is in one of the regions, so that the sum of them is what loading allocates. Of the arena the report says who lives
there when it is fullest, with the line of the user's code that made each value, and how much of it is held for the backward steps: values that forward nodes
make and backward ones read. Nodes that differentiation adds are known by their names (`d.` and `grad.`) and by what they read; a value that is computed again
for its reader is not held. Against a limit the answer is that the step fits, or how many bytes are missing and which tensors at which lines hold the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from ostinato.ir.checks import byte_count
from ostinato.ir.graph import Graph, Role
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import Region
from ostinato.ir.training import TRAIN, is_backward
from ostinato.planner.plan import EntryPlan, ProgramPlan, Slot, spelled

__all__ = ["MemoryAnswer", "Tenant", "memory_answer"]

LISTED = 5
"""Tensors that are named where bytes are missing."""
_GRADIENT = "gradient"
"""What operators that update a parameter call the operand which they do it by."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tenant(_Frozen):
    """Bytes that are live when the arena is fullest: the value they hold then (or the workspace of a step), its operator and type, the line that made it
    ("" where nobody knows) and the half-open interval of steps in which they are taken."""

    name: str
    bytes: int
    op: str
    type: str
    line: str
    first: int
    last: int

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{spelled((self.name,))} {self.bytes} bytes ({self.op}{at})"


class MemoryAnswer(_Frozen):
    """Bytes of a program as one of its entries uses them; `total` is what loading allocates.

    `parameters` are all of them, `mirrors` those of them that repeat another one in a narrower dtype; `optimizer_state` is what steps update beside them.
    `gradients` counts all gradients of parameters, of which `gradients_kept` lie in io for the caller and `gradients_live` are the most that share the arena at
    a time. `saved` is the most that the arena holds at a time for the backward steps, in `saved_values` tensors. `arena`, `lower_bound`, `gap` and `status` are
    the plan's: what no plan of this order goes below, and whether the placement is proven. `peak` are the tenants of the fullest step, the largest first.
    `limit` is None without one; `missing` says by how much it is exceeded.
    """

    entry: str
    device: str
    total: int
    weights: int
    parameters: int
    mirrors: int
    optimizer_state: int
    gradients: int
    gradients_kept: int
    gradients_live: int
    arena: int
    lower_bound: int
    gap: float
    status: str
    saved: int
    saved_values: int
    io: int
    constants: int
    recomputed: int
    peak_step: int
    peak_node: str
    peak_line: str
    peak: tuple[Tenant, ...]
    limit: int | None = None
    missing: int = 0

    @property
    def fits(self) -> bool:
        """Whether all of it is within the limit, if there is one."""
        return not self.missing

    @property
    def verdict(self) -> str:
        """ "fits", or what is missing and who has it."""
        if self.limit is None:
            return f"{self.total} bytes"
        if self.fits:
            return f"fits: {self.total} of {self.limit} bytes"
        held = "; ".join(str(tenant) for tenant in self.peak[:LISTED])
        return f"{self.missing} bytes short of {self.total}; the most is held by {held or 'parameters and their state'}"

    def within(self, limit: int | str | None) -> MemoryAnswer:
        """The same answer against a limit, in bytes or as a text like "6GiB". Raises `ConfigError` for anything else."""
        most = None if limit is None else byte_count(limit, "limit")
        return self.model_copy(update={"limit": most, "missing": 0 if most is None else max(0, self.total - most)})

    def __str__(self) -> str:
        """Where the bytes go and who has the arena when it is fullest; `verdict` says whether they fit."""
        rows = [
            ("parameters", self.parameters, f"{self.mirrors} of them mirrors" if self.mirrors else ""),
            ("optimizer state", self.optimizer_state, ""),
            ("frozen weights", self.weights, ""),
            ("arena", self.arena, f"bound {self.lower_bound}, gap {self.gap:.2%}, {self.status}"),
            ("  saved for backward", self.saved, f"{self.saved_values} tensors"),
            ("  gradients", self.gradients_live, f"of {self.gradients} in all"),
            ("inputs and outputs", self.io, f"{self.gradients_kept} of them gradients" if self.gradients_kept else ""),
            ("constants", self.constants, ""),
            ("total", self.total, ""),
        ]
        lines = [f"{what:22} {size:>15}  {note}".rstrip() for what, size, note in rows]
        where = f"{self.peak_node}{f' at {self.peak_line}' if self.peak_line else ''}"
        lines.append(f"fullest at step {self.peak_step} ({where}):")
        lines += [f"  {tenant}" for tenant in self.peak[: 2 * LISTED]]
        return "\n".join(lines)


def memory_answer(
    program: ProgramPlan,
    graph: Graph,
    entry: str = TRAIN,
    *,
    limit: int | str | None = None,
    ops: Mapping[str, OpDef] = OP,
) -> MemoryAnswer:
    """What the entry of a program takes whose plan is that of `graph`. Raises `ConfigError` for a limit that is no number of bytes."""
    plan = program.entries[entry]
    reading = _Reading(plan, graph, ops)
    stats = plan.stats
    by_tensor: dict[tuple[object, ...], list[int]] = {}
    for slot in program.parameters:
        by_tensor.setdefault(slot.parts, []).append(slot.range.size)
    parameters = sum(sum(sizes) for sizes in by_tensor.values())
    sizes = {
        kind: program.size_of(Region(plan.device, kind)) for kind in ("weights", "state", "io", "constants", "arena")
    }
    gradients = reading.gradients()
    in_arena = [slot for name, slot in gradients.items() if slot is not None]
    kept = sum(graph.types[name].nbytes for name, slot in gradients.items() if slot is None)
    saved = reading.saved()
    node = plan.steps[stats.peak_step].node if plan.steps else ""
    answer = MemoryAnswer(
        entry=entry,
        device=plan.device,
        total=sum(sizes.values()),
        weights=sizes["weights"],
        parameters=parameters,
        mirrors=sum(sum(sizes) - max(sizes) for sizes in by_tensor.values()),
        optimizer_state=sizes["state"] - parameters,
        gradients=kept + sum(slot.range.size for slot in in_arena),
        gradients_kept=kept,
        gradients_live=_most(in_arena, plan),
        arena=sizes["arena"],
        lower_bound=stats.lower_bound,
        gap=stats.gap,
        status=stats.status,
        saved=_most(saved, plan),
        saved_values=len(saved),
        io=sizes["io"],
        constants=sizes["constants"],
        recomputed=stats.recomputed,
        peak_step=stats.peak_step,
        peak_node=node,
        peak_line=reading.line(node),
        peak=tuple(reading.tenant(slot, stats.peak_step) for slot in plan.tenants(stats.peak_step)),
    )
    return answer.within(limit)


def _most(slots: Sequence[Slot], plan: EntryPlan) -> int:
    """The most bytes of these slots that are live at a step."""
    change = [0] * (len(plan.steps) + 1)
    for slot in slots:
        change[slot.first] += slot.range.size
        change[min(slot.last, len(plan.steps))] -= slot.range.size
    most = live = 0
    for by in change:
        live += by
        most = max(most, live)
    return most


class _Reading:
    """A plan beside its graph."""

    def __init__(self, plan: EntryPlan, graph: Graph, ops: Mapping[str, OpDef]) -> None:
        self._plan, self._graph, self._ops = plan, graph, ops
        self._slot = {value: slot for slot in plan.slots_on() for value in slot.values}
        self._at = {step.node: position for position, step in enumerate(plan.steps)}

    def line(self, node: str) -> str:
        """The user's line of a node."""
        found = self._graph.producers.get(node)
        return "" if found is None or found.location is None else str(found.location)

    def tenant(self, slot: Slot, step: int) -> Tenant:
        """Who has a slot at a step: of the values that share it the one that was made last."""
        made = [value for value in slot.values if self._made(value) <= step]
        name = max(made, key=self._made) if made else slot.values[0]
        node = self._graph.producers.get(name)
        tensor = self._graph.types.get(name)
        return Tenant(
            name=name,
            bytes=slot.range.size,
            op="workspace" if node is None else node.op,
            type="" if tensor is None else str(tensor),
            line="" if node is None else self.line(node.name),
            first=slot.first,
            last=slot.last,
        )

    def _made(self, value: str) -> int:
        node = self._graph.producers.get(value)
        return -1 if node is None else self._at.get(node.name, -1)  # a view is made with what it looks into

    def gradients(self) -> dict[str, Slot | None]:
        """What parameters are updated by, each storage once: its slot, or None where it lies in io."""
        homes: dict[str, str] = {item.value.name: item.value.name for item in self._graph.with_role(Role.PARAMETER)}
        found: dict[str, Slot | None] = {}
        slots: set[int] = set()
        outside: set[tuple[int, int]] = set()
        outputs = {o.value: o.range for step in self._plan.steps for o in step.operands if o is not None}
        for node in self._graph.nodes:
            opdef = self._ops[node.op]
            for result, operand in opdef.aliased(node.operands):
                if node.operands[operand] not in homes:
                    continue
                homes[node.results[result].name] = homes[node.operands[operand] or ""]
                for spec, name in zip(opdef.operands, node.operands, strict=False):
                    if spec.name != _GRADIENT or name is None or name in found:
                        continue
                    slot, place = self._slot.get(name), outputs.get(name)
                    if slot is not None and id(slot) not in slots:
                        slots.add(id(slot))
                        found[name] = slot
                    elif slot is None and place is not None and (place.offset, place.size) not in outside:
                        outside.add((place.offset, place.size))
                        found[name] = None
        return found

    def saved(self) -> tuple[Slot, ...]:
        """The slots of values that forward nodes make and backward ones read."""
        backward = set(self._backward())
        found: dict[int, Slot] = {}
        for node in self._graph.nodes:
            if node.name not in backward:
                continue
            for name in node.operands:
                maker = self._graph.producers.get(name or "")
                while maker is not None and self._ops[maker.op].is_view:
                    maker = self._graph.producers.get(maker.operands[0] or "")
                if maker is None or maker.name in backward or maker.name in self._plan.clones:
                    continue
                slot = self._slot.get(name or "")
                if slot is not None:
                    found[id(slot)] = slot
        return tuple(found.values())

    def _backward(self) -> Iterator[str]:
        """Nodes that differentiation added, and those that read what such nodes make."""
        made: set[str] = set()
        for node in self._graph.nodes:
            if is_backward(node.name) or any(name in made for name in node.operands):
                made.update(value.name for value in node.results)
                yield node.name
