"""What an executable says about itself: why its nodes have their rows, its values their layouts and addresses, its arena its bytes, and it its mode.

Nothing here runs or captures anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.decision import Decision
from ostinato.ir.explain import Explanation
from ostinato.ir.explain_layout import LayoutAnswer
from ostinato.ir.naming import any_layer
from ostinato.ir.target import Level
from ostinato.planner.explain import AddressAnswer, PeakAnswer, explain_address, explain_peak
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.captured import named_ranges
from ostinato.runtime.entry_runners import EntryRunners

__all__ = ["EntryMode", "Explains", "Fallback", "ModeAnswer", "explain_mode"]

_MEANS = {
    "reference": "every node by numpy, on the host, over arrays of its own",
    "eager": "every node by its row, one call each, over arrays of its own",
    "planned": "every step of the plan in one native call, at planned addresses",
    "guarded": "the plan's steps, with every byte of activations watched",
    "captured": "the plan's steps as graphs of the device, replayed",
}
_NAMED = 3


@dataclass(frozen=True, slots=True)
class EntryMode:
    """How the steps of an entry are submitted: so many graphs that hold so many steps, and the steps that are submitted one by one."""

    entry: str
    steps: int
    graphs: int
    captured: int
    alone: tuple[str, ...]

    def __str__(self) -> str:
        if not self.graphs:
            return f"{self.entry}: {self.steps} steps, none captured"
        alone = f"; {len(self.alone)} are submitted one by one: {_listed(self.alone)}" if self.alone else ""
        return f"{self.entry}: {self.captured} of {self.steps} steps in {self.graphs} graph{'s' * (self.graphs > 1)}{alone}"


@dataclass(frozen=True, slots=True)
class Fallback:
    """Nodes that run by a row which would not have been the first choice, and why."""

    reason: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.nodes)} nodes: {self.reason}: {_listed(self.nodes)}"


@dataclass(frozen=True, slots=True)
class ModeAnswer:
    """The mode that runs and why it is not another, entry by entry; and the nodes that fell back to other rows. `reason` is empty where it is as asked."""

    device: str
    mode: str
    reason: str
    entries: tuple[EntryMode, ...]
    fallbacks: tuple[Fallback, ...]

    def __str__(self) -> str:
        lines = [f"{self.mode} on {self.device}: {_MEANS[self.mode]}", f"because {self.reason or 'it was asked for'}"]
        lines += [f"  {entry}" for entry in self.entries]
        lines += [f"  {fallback}" for fallback in self.fallbacks]
        return "\n".join(lines)


def explain_mode(
    plan: ProgramPlan,
    decisions: Mapping[str, Mapping[str, Decision]],
    *,
    device: str,
    mode: str,
    reason: str,
    capture: Sequence[str] | None,
) -> ModeAnswer:
    """How a program is submitted in a mode, and which of its nodes run by rows of last resort."""
    entries: list[EntryMode] = []
    for name, entry in plan.entries.items():
        ranges = named_ranges(entry, capture) if mode == "captured" else []
        inside = {position for first, count in ranges for position in range(first, first + count)}
        alone = tuple(step.node for position, step in enumerate(entry.steps) if ranges and position not in inside)
        entries.append(EntryMode(name, len(entry.steps), len(ranges), len(inside), alone))
    found: dict[str, list[str]] = {}
    for table in decisions.values():
        for node, decision in table.items():
            if decision.note or decision.level is Level.REFERENCE:
                found.setdefault(decision.note or "the reference is the only row that serves them", []).append(node)
    fallbacks = tuple(Fallback(why, tuple(dict.fromkeys(nodes))) for why, nodes in found.items())
    return ModeAnswer(device, mode, reason, tuple(entries), fallbacks)


class Explains:
    """The answers of an executable, read from what it runs by."""

    runners: EntryRunners

    def explain(self, node: str) -> Explanation:
        """Why nodes run as they do: the chosen row with the records behind it, and what speaks against every other, with the user's line.

        `node` is a name, one that a fused node was made of too, an operator, or a pattern like "layers.0" or "layers.*.ffn"; "*" is every node. The answer
        prints, and is data. Raises `ConfigError` where nothing has that name, with names that are like it.
        """
        return self.runners.program.explain(node)

    def explain_layout(self, value: str) -> LayoutAnswer:
        """Why values lie as they do: what the rows that write and read each ask for, and where views and copies come from. `value` as for `explain`."""
        return self.runners.program.explain_layout(value)

    def explain_address(self, value: str) -> AddressAnswer:
        """Why values have their addresses: region and offset, who shares the bytes, who had them before and gets them after, what lies below and above. With
        the address in this process, but for modes that use no planned ones. `value` is as in `explain`."""
        program, regions = self.runners.program, self.runners.regions
        found = explain_address(program.plan, program.graphs, value)
        if self.runners.mode in ("reference", "eager"):
            return found
        return AddressAnswer(tuple(replace(item, address=regions.address(item.place)[0]) for item in found.values))

    def explain_peak(self, entry: str | None = None) -> tuple[PeakAnswer, ...]:
        """Who has the arena where it is fullest, with lines, and what would lower it; of an entry or of all of them, the largest first."""
        program = self.runners.program
        return explain_peak(program.plan, program.graphs, entry)

    def explain_mode(self) -> ModeAnswer:
        """Why this runs in its mode, what is captured and what is not, and which nodes run by rows of last resort."""
        runners, program = self.runners, self.runners.program
        return explain_mode(
            program.plan,
            program.decisions,
            device=runners.device.name,
            mode=runners.mode,
            reason=runners.reason,
            capture=runners.capture,
        )


def _listed(names: Sequence[str]) -> str:
    """Names for people, those of layers alike once."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(any_layer(name), []).append(name)
    told = [f"%{key} ({len(same)} layers)" if len(same) > 1 else f"%{same[0]}" for key, same in alike.items()]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return ", ".join(told[:_NAMED]) + more
