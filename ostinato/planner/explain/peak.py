"""Why an entry needs as many bytes as it does: who has the arena where it is fullest, until when and for whom, and what would lower it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.naming import any_layer
from ostinato.ir.step import Step
from ostinato.planner.explain.steps import TouchedSlots
from ostinato.planner.plan import ProgramPlan, Slot, spelled

__all__ = ["PeakAnswer", "PeakTenant", "explain_peak"]

_NAMED = 4


@dataclass(frozen=True, slots=True)
class PeakTenant:
    """Who has bytes at the peak: a value (or a step's workspace) with its operator, type and line, the steps [first, last) that its bytes are taken, and the
    node for which they are kept. `held`: the step at the peak does not touch it."""

    name: str
    bytes: int
    op: str
    type: str
    line: str
    first: int
    last: int
    kept_for: str
    held: bool

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        what = f"{self.op}, {self.type}" if self.type else self.op
        kept = f"; held for %{self.kept_for}" if self.held and self.kept_for else ""
        return (
            f"{self.bytes:>12} bytes {spelled((self.name,))} ({what}{at}), steps {self.first} to {self.last - 1}{kept}"
        )


@dataclass(frozen=True, slots=True)
class PeakAnswer:
    """The fullest step of an entry's arena. `live` bytes are taken at `step`, the arena has `arena` and no plan of this order goes below `bound`.

    `alike` are the other steps that are as full, `next_live` the most bytes of a step of another name (whatever its layer), at `next_step`: what is
    done about this peak alone gains no more than the difference. `tenants` are the largest first. `advice` says what would lower it, a line each.
    """

    entry: str
    device: str
    arena: int
    bound: int
    live: int
    step: int
    node: str
    kernel: str
    line: str
    tenants: tuple[PeakTenant, ...]
    alike: tuple[int, ...]
    next_live: int
    next_step: int
    next_node: str
    advice: tuple[str, ...]

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        also = f", and {len(self.alike)} steps more are as full" if self.alike else ""
        lines = [
            f"{self.entry}: {self.arena} bytes of arena on {self.device}, {self.live} live at step {self.step}, %{self.node} ({self.kernel}){at}{also}",
            *(f"  {tenant}" for tenant in self.tenants),
            "what would lower it:",
            *(f"  {text}" for text in self.advice),
        ]
        return "\n".join(lines)


def explain_peak(plan: ProgramPlan, graphs: Mapping[str, Graph], entry: str | None = None) -> tuple[PeakAnswer, ...]:
    """Who has the arena where it is fullest, of an entry or of all of them, the largest first. Raises `ConfigError` for an unknown entry."""
    if entry is not None and entry not in plan.entries:
        raise ConfigError(f"there is no entry {entry!r}", hint=f"entries: {', '.join(plan.entries)}")
    chosen = [name for name in plan.entries if entry in (None, name)]
    answers = [_Peak(plan.entries[name], graphs[name]).answer() for name in chosen if plan.entries[name].steps]
    return tuple(sorted(answers, key=lambda answer: -answer.arena))


class _Peak(TouchedSlots):
    """The fullest step of an entry."""

    def answer(self) -> PeakAnswer:
        entry, stats = self.entry, self.entry.stats
        live = [usage.live for usage in entry.usage()]
        step = max(range(len(live)), key=lambda at: (live[at], -at))
        own = any_layer(entry.steps[step].node)
        alike = tuple(at for at, size in enumerate(live) if at != step and size == live[step])
        others = [at for at in range(len(live)) if any_layer(entry.steps[at].node) != own]
        second = max(others, key=lambda at: (live[at], -at), default=step)
        tenants = tuple(self._tenant(slot, step) for slot in entry.tenants(step) if slot.range.size)
        return PeakAnswer(
            entry=entry.name,
            device=entry.device,
            arena=stats.arena_bytes,
            bound=stats.lower_bound,
            live=live[step],
            step=step,
            node=entry.steps[step].node,
            kernel=_kernel(entry.steps[step]),
            line=self.line(entry.steps[step].node),
            tenants=tenants,
            alike=alike,
            next_live=live[second] if others else 0,
            next_step=second,
            next_node=entry.steps[second].node,
            advice=tuple(self._advice(step, tenants, live, second if others else None)),
        )

    def _tenant(self, slot: Slot, step: int) -> PeakTenant:
        made = [value for value in slot.values if self._made(value) <= step]
        name = max(made, key=self._made) if made else slot.values[0]
        node, tensor = self.graph.producers.get(name), self.graph.types.get(name)
        touched = self.touched.get(id(slot), [])
        later = [at for at in touched if at > step]
        return PeakTenant(
            name=name,
            bytes=slot.range.size,
            op="workspace" if node is None else node.op,
            type="" if tensor is None else str(tensor),
            line="" if node is None else self.line(node.name),
            first=slot.first,
            last=slot.last,
            kept_for=self.entry.steps[later[0]].node if later else "",
            held=step not in touched,
        )

    def _made(self, value: str) -> int:
        node = self.graph.producers.get(value)
        return -1 if node is None else self.at.get(node.name, -1)  # a view is made with what it looks into

    def _advice(
        self, step: int, tenants: Sequence[PeakTenant], live: Sequence[int], second: int | None
    ) -> Iterator[str]:
        entry, stats = self.entry, self.entry.stats
        if stats.arena_bytes > stats.lower_bound:
            yield f"a better placement: {stats.arena_bytes - stats.lower_bound} bytes are above the bound ({stats.status})"
        held = [tenant for tenant in tenants if tenant.held]
        if held:
            total = sum(tenant.bytes for tenant in held)
            names = ", ".join(spelled((tenant.name,)) for tenant in held[:_NAMED])
            yield f"a memory limit below {stats.arena_bytes}: {total} bytes are only held here for later steps ({names}); what can be computed again then is"
        spaces = [tenant for tenant in tenants if tenant.op == "workspace"]
        if spaces:
            total = sum(tenant.bytes for tenant in spaces)
            yield f"another row for %{entry.steps[step].node}: {total} bytes are workspace of the one that runs (levels={{...}} forces a row)"
        yield from self._scaling(tenants)
        if second is not None and live[second] < live[step]:
            yield (
                f"no more than {live[step] - live[second]} bytes can be gained here: step {second} (%{entry.steps[second].node}) has {live[second]} live"
            )
        elif second is not None:
            yield f"not this step alone: step {second} (%{entry.steps[second].node}) is as full"

    def _scaling(self, tenants: Sequence[PeakTenant]) -> Iterator[str]:
        """The dimensions of the bucket that the bytes grow with."""
        grown: Counter[str] = Counter()
        for tenant in tenants:
            tensor = self.graph.types.get(tenant.name)
            for name, extent in self.entry.dims.items():
                if tensor is not None and any(
                    axis == name and size == extent for axis, size in zip(tensor.axes, tensor.shape, strict=True)
                ):
                    grown[name] += tenant.bytes
        for name, total in grown.items():
            if self.entry.dims[name] > 1:
                yield f"a bucket with a smaller {name}: {total} bytes grow with it, {self.entry.dims[name]} here"


def _kernel(step: Step) -> str:
    """A kernel's name; of a step that the reference runs, whose kernel is a graph, only that."""
    return "the reference" if step.kernel.startswith("graph @") else step.kernel
