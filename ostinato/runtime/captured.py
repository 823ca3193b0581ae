"""The captured mode: planned steps recorded once as graphs of the device and replayed as they are.

All steps of an entry become one graph, or those that patterns name: then runs of named steps are graphs, and the steps between them are submitted one by one,
in the same order of work. Every graph is read back and compared with the plan before it first runs (`conformance.py`): what is replayed is what was proven.

Patterns are matched against the names of nodes (`ir/naming.py`): "ffn", "layers.3", "layers.*.attn".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from ostinato.ir.errors import ConfigError, UnreadableCapture
from ostinato.ir.interp import Observer
from ostinato.ir.naming import matches
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.runtime.capture_memory import PlacedMemory
from ostinato.runtime.capture_report import CaptureReport
from ostinato.runtime.conformance import TableFacts, examine_capture
from ostinato.runtime.device import Device, ResolvedStep
from ostinato.runtime.device import Graph as CapturedGraph
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.runners import PlannedRunner

__all__ = ["CapturedRunner", "CapturedSteps", "Segment", "examine_graph", "named_ranges", "require_named"]

_UNREADABLE = 'use mode="planned", which runs the same steps'


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps [first, first + count) of a table: one replay of a graph, or where there is none a submission of each. `seconds` is what capturing took."""

    first: int
    count: int
    graph: CapturedGraph | None = None
    report: CaptureReport | None = None
    seconds: float = 0.0


class CapturedSteps:
    """The loaded steps of an entry, all or those of some ranges (first, count) captured and proven to be the plan's. `cuts` are numbers of steps behind which
    another graph, or another submission, begins.

    Raises `PlanError` for a graph that is not the plan.
    """

    def __init__(
        self,
        program: ProgramPlan,
        loaded: LoadedSteps,
        regions: Regions,
        ranges: Sequence[tuple[int, int]],
        cuts: Sequence[int] = (),
    ) -> None:
        self._program, self._loaded, self._memory = program, loaded, regions.placed
        self._markers, self._name = regions.markers, loaded.plan.name.encode()
        self.segments = tuple(self._segments(ranges, cuts))

    def enqueue(self) -> None:
        """Submits all steps once."""
        for segment in self.segments:
            self.submit(segment)

    def submit(self, segment: Segment) -> None:
        """Submits the steps of one segment once."""
        if segment.graph is None:
            self._loaded.table.enqueue(segment.first, segment.count)
        elif self._markers is None:
            segment.graph.enqueue()
        else:
            with self._markers.range(self._name):
                segment.graph.enqueue()

    @property
    def reports(self) -> list[CaptureReport]:
        """What each graph is, in order."""
        return [segment.report for segment in self.segments if segment.report is not None]

    def _segments(self, ranges: Sequence[tuple[int, int]], cuts: Sequence[int]) -> Iterator[Segment]:
        steps = len(self._loaded.plan.steps)
        ends = {end for first, count in ranges for end in (first, first + count)} | set(cuts) | {0, steps}
        for first, stop in pairwise(sorted(end for end in ends if 0 <= end <= steps)):
            captured = any(begin <= first and stop <= begin + count for begin, count in ranges)
            yield self._captured(first, stop - first) if captured else Segment(first, stop - first)

    def _captured(self, first: int, count: int) -> Segment:
        begin = perf_counter()
        graph = self._loaded.table.capture(first, count)
        seconds = perf_counter() - begin
        of = (self._program, self._loaded.plan, self._memory, self._loaded.resolved)
        report = examine_graph(*of, graph, first=first, count=count)
        if report.unreadable:
            raise UnreadableCapture(str(report.findings[0]), node=self._loaded.plan.name, hint=_UNREADABLE)
        report.check()
        return Segment(first, count, graph, report, seconds)


class CapturedRunner(PlannedRunner):
    """An entry whose steps are captured when the runner is made."""

    def __init__(
        self,
        program: Program,
        name: str,
        device: Device,
        regions: Regions,
        observer: Observer | None = None,
        patterns: Sequence[str] | None = None,
        cuts: Sequence[int] = (),
    ) -> None:
        if observer is not None:
            raise ConfigError("a replay shows nothing of what happens within it", hint='observe mode="planned"')
        super().__init__(program, name, device, regions)
        self.steps = CapturedSteps(program.plan, self.loaded, regions, named_ranges(self.loaded.plan, patterns), cuts)

    def enqueue(self) -> None:
        self.steps.enqueue()


def examine_graph(
    program: ProgramPlan,
    plan: EntryPlan,
    memory: PlacedMemory,
    resolved: Sequence[ResolvedStep],
    graph: CapturedGraph,
    *,
    first: int,
    count: int,
) -> CaptureReport:
    """What a graph of steps [first, first + count) is, held against the plan and the addresses of now; see `examine_capture`."""
    facts = TableFacts(graph.status, graph.functions, graph.node_counts)
    shown = (graph.nodes, graph.edges, graph.early_edges)
    return examine_capture(program, plan, memory, resolved, facts, *shown, first=first, count=count)


def require_named(entries: Mapping[str, EntryPlan], patterns: Sequence[str]) -> None:
    """Raises `ConfigError` for a pattern that names no step of any entry: one may have what another lacks."""
    names = list(dict.fromkeys(step.node for plan in entries.values() for step in plan.steps))
    for pattern in patterns:
        if not any(matches(pattern, name) for name in names):
            such = f", such as {names[len(names) // 2]!r}" if names else ""
            raise ConfigError(
                f"capture={pattern!r} names no step",
                hint=f'patterns like "layers.0", "ffn" or "layers.*.attn" match whole parts of node names{such}',
            )


def named_ranges(plan: EntryPlan, patterns: Sequence[str] | None) -> list[tuple[int, int]]:
    """Ranges (first, count) of steps whose nodes any of the patterns names, as long as they get; all steps for None."""
    if patterns is None:
        return [(0, len(plan.steps))] if plan.steps else []
    names = [step.node for step in plan.steps]
    found: list[tuple[int, int]] = []
    for position, name in enumerate(names):
        if any(matches(pattern, name) for pattern in patterns):
            first, count = found[-1] if found else (position, 0)
            if first + count == position and found:
                found[-1] = (first, count + 1)
            else:
                found.append((position, 1))
    return found
