"""The runners of a training step that somebody wants to follow: the same steps, cut where a gradient is complete.

Without a mark they submit what the plain runners submit, in as many calls; a mark adds a cut and nothing else. Between two ranges of steps the host calls hooks
(eager, planned) or records an event of the device (also captured: a graph is then two graphs, replayed one after the other).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy.typing as npt

from ostinato.ir.graph import Graph
from ostinato.ir.interp import Observer
from ostinato.ir.ops import OP
from ostinato.ir.step import Step, StepKind
from ostinato.ir.types import Array
from ostinato.ir.views import ViewTable
from ostinato.planner.plan import Binding, EntryPlan
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.device import Device, DeviceStream
from ostinato.runtime.device import Launch as DeviceLaunch
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.runners import EagerRunner, PlannedRunner

__all__ = ["CutCapturedRunner", "CutEagerRunner", "CutPlannedRunner", "Marks", "last_write"]

Marks = Mapping[str, Callable[[], None]]
"""What is done as soon as an output is complete, by its name."""


def last_write(plan: EntryPlan, output: str) -> int:
    """How many steps of a plan must be done until an output is complete."""
    place = next(binding.range for binding in plan.outputs if binding.name == output)
    written = [
        position
        for position, step in enumerate(plan.steps)
        if any(o is not None and o.writes and o.range.overlaps(place) for o in step.operands)
    ]
    return written[-1] + 1 if written else 0


def _cuts(plan: EntryPlan, marks: Marks) -> dict[int, list[Callable[[], None]]]:
    found: dict[int, list[Callable[[], None]]] = {}
    for name, reached in marks.items():
        found.setdefault(last_write(plan, name), []).append(reached)
    return dict(sorted(found.items()))


class CutPlannedRunner(PlannedRunner):
    """The step table in as many calls as there are cuts, and one."""

    def __init__(
        self,
        program: Program,
        name: str,
        device: Device,
        regions: Regions,
        observer: Observer | None,
        marks: Marks,
    ) -> None:
        super().__init__(program, name, device, regions, observer)
        self._cuts = _cuts(self.loaded.plan, marks)
        self.submissions = len([cut for cut in self._cuts if 0 < cut < len(self.loaded.plan.steps)]) + 1
        self._observed = 0

    def enqueue(self) -> None:
        done, table, steps = 0, self.loaded.table, len(self.loaded.plan.steps)
        for cut, marks in self._cuts.items():
            if cut > done:
                table.enqueue(done, cut - done)
                done = cut
            for reached in marks:
                reached()
        if done < steps:
            table.enqueue(done, steps - done)

    def observe(self, step: Step) -> None:
        super().observe(step)
        self._observed = self._observed % len(self.loaded.plan.steps) + 1
        for reached in self._cuts.get(self._observed, ()):
            reached()


class CutCapturedRunner(CapturedRunner):
    """The captured steps in as many graphs as there are cuts, and one."""

    def __init__(
        self,
        program: Program,
        name: str,
        device: Device,
        regions: Regions,
        observer: Observer | None,
        patterns: Sequence[str] | None,
        marks: Marks,
    ) -> None:
        self._cuts = _cuts(program.plan.entries[name], marks)
        super().__init__(program, name, device, regions, observer, patterns, tuple(self._cuts))
        self.submissions = len(self.steps.segments)

    def enqueue(self) -> None:
        for reached in self._cuts.get(0, ()):
            reached()
        for segment in self.steps.segments:
            self.steps.submit(segment)
            for reached in self._cuts.get(segment.first + segment.count, ()):
                reached()


class _PlacedTensor:
    """Float32 values in memory of the caller's, as the eager runner reads them."""

    def __init__(self, device: Device, binding: Binding, address: int) -> None:
        self._device, self._binding, self.address = device, binding, address

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A copy of the values, after what the device does to them now is done."""
        assert not offset, "an output is read as a whole"
        return self._device.unpack(self._binding.type, self.address).reshape(-1).view(dtype).reshape(shape)


class _Marked:
    """A launch behind which something is complete."""

    def __init__(self, launch: DeviceLaunch, marks: Sequence[Callable[[], None]]) -> None:
        self._launch, self._marks = launch, marks

    def run(self, operands: tuple[tuple[int, int], ...], stream: DeviceStream | None = None) -> None:
        self._launch.run(operands, stream)
        for reached in self._marks:
            reached()


class CutEagerRunner(EagerRunner):
    """Node by node, with outputs that are kept (gradients) where the plan has them: they have addresses of their own in this mode too."""

    def __init__(
        self,
        program: Program,
        name: str,
        device: Device,
        regions: Regions,
        observer: Observer | None,
        kept: Sequence[str],
        marks: Marks,
    ) -> None:
        super().__init__(program, name, device, regions, observer)
        graph, plan = self._graph, program.plan.entries[name]
        bindings = {binding.name: binding for binding in plan.outputs}
        bound = dict(regions.bound)
        for output in kept:
            base, binding = self._views[output].base, bindings[output]
            whole = graph.types[base].nbytes == binding.range.size
            if base in graph.producers and whole and not _is_copied(plan, binding):
                address = bound.get(binding.range)
                if address is None:
                    self._fixed[base] = (regions.io, binding.range.offset)
                else:
                    self._fixed[base] = (_PlacedTensor(device, binding, address), 0)
        last = _last_makers(graph, self._views)
        marked: dict[str, list[Callable[[], None]]] = {}
        for output, reached in marks.items():
            marked.setdefault(last[self._views[output].base], []).append(reached)
        self._calls = [
            (index, node, call, _Marked(launch, marked[node.name]) if node.name in marked else launch)
            for index, node, call, launch in self._calls
        ]


def _is_copied(plan: EntryPlan, binding: Binding) -> bool:
    """Whether an output is filled by a copy, since its bytes belong to something else."""
    return any(
        step.kind is StepKind.COPY
        and any(o is not None and o.writes and o.range == binding.range for o in step.operands)
        for step in plan.steps
    )


def _last_makers(graph: Graph, views: ViewTable) -> dict[str, str]:
    """The node that writes last to each storage."""
    return {
        views[value.name].base: node.name for node in graph.nodes if not OP[node.op].is_view for value in node.results
    }
