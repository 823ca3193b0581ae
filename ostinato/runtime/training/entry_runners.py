"""The runners of an executable that trains: the step is cut where somebody watches a gradient, and writes gradients into memory that is bound."""

from __future__ import annotations

from typing import Any

from ostinato.ir.training import TRAIN
from ostinato.runtime.entry_runners import EntryRunners
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from ostinato.runtime.regions import Regions
from ostinato.runtime.runners import Runner
from ostinato.runtime.training.gradients import Gradients
from ostinato.runtime.training.inputs import StepInputs
from ostinato.runtime.training.runners import CutCapturedRunner, CutEagerRunner, CutPlannedRunner

__all__ = ["StepRunners"]


class StepRunners(EntryRunners):
    """Runners of a program that has an entry `train`, with the gradients that it keeps."""

    inputs: StepInputs

    def __init__(self, program: Program, route: Route, regions: Regions, **rest: Any) -> None:
        """`rest` is what every executable has beside that; see `EntryRunners`."""
        super().__init__(program, route, regions, inputs=StepInputs(program), **rest)
        stream = None if route.mode == "eager" else regions.stream
        self.gradients = Gradients(program.plan.entries[TRAIN], program.graphs[TRAIN], route.device, regions, stream)

    def regions_of(self, name: str) -> Regions:
        """`EntryRunners.regions_of`: with the gradients that are bound."""
        return self.gradients.regions if name == TRAIN else super().regions_of(name)

    def bound_memory(self, name: str) -> tuple[ExternalMemory, ...]:
        """The caller's buffers of gradients."""
        return self.gradients.bound if name == TRAIN else ()

    def kept_outputs(self, name: str) -> tuple[str, ...]:
        """The gradients that are kept."""
        return self.gradients.outputs if name == TRAIN else ()

    def make(self, name: str, program: Program, regions: Regions) -> Runner:
        """A runner in this mode; of the step one with what is watched."""
        if name == TRAIN:
            marks = self.gradients.marks
            where = (program, name, self.device, regions, self.observer)
            match self.mode:
                case "planned":
                    return CutPlannedRunner(*where, marks)
                case "captured":
                    return CutCapturedRunner(*where, self.capture, marks)
                case "eager":
                    return CutEagerRunner(*where, self.gradients.outputs, marks)
        return super().make(name, program, regions)
