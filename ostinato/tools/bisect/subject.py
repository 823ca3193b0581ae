"""The two sides of a bisection as things that can be run, and run again with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.planner.moved import with_entries
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.tools.compare.judgement import output_limit, tolerance_of
from ostinato.tools.compare.runs import poison_memory
from ostinato.tools.compare.sides import Side, Sides
from ostinato.tools.compare.verdicts import identity_of
from ostinato.tools.compare.workload import WorkStep
from ostinato.tools.programs import precision_of
from ostinato.tools.repro.report import Worst
from ostinato.tools.repro.run import worst_of

__all__ = ["Contract", "Outputs", "Subject", "compared", "contract_of", "fresh", "outputs_of", "same_program"]

Outputs = tuple[Array, ...]
"""What a workload gives, step by step: valid rows alone."""


@dataclass(frozen=True)
class Subject:
    """One side. `executable` is the one to look at; `side` and `sides` say how it was made, where it was made here, so that it can be made otherwise.

    A side may be answers alone, a function of the caller's: then `executable` stands for it where nodes are looked at, in mode "reference" of the other's
    program.
    """

    name: str
    executable: Executable
    side: Side | None = None
    sides: Sides | None = None
    answers: Outputs | None = None

    @property
    def mode(self) -> str:
        return self.executable.mode

    @property
    def program(self) -> Program:
        return self.executable.program

    def outputs(self, work: Sequence[WorkStep]) -> Outputs:
        """What the workload gives."""
        return outputs_of(self.executable, work) if self.answers is None else self.answers

    def again(self) -> Executable:
        """Another executable of the same program in the same mode, over memory of its own."""
        return self.executable.clone()

    def with_plans(self, entries: Mapping[str, EntryPlan]) -> Executable:
        """The same over these plans of entries: weights and everything else stay."""
        base = self.executable
        program = replace(base.program, plan=with_entries(base.program.plan, entries))
        return type(base)(program, base.device, base.regions.shared, mode=base.mode)

    def made_otherwise(self, side: Side) -> Executable:
        """The side with other settings. Raises what opening a side raises, and `ConfigError` where the side was not made here."""
        if self.sides is None:
            raise ConfigError(f"{self.name} is an executable: its passes cannot be run again", hint="give the model")
        return self.sides.open(side)


def fresh(executable: Executable) -> None:
    """A fresh state. All memory that a run may not depend on is NaN (every byte 0xFF): arena, inputs and outputs, and caches."""
    executable.reset_state()
    poison_memory(executable, state=True)


def outputs_of(executable: Executable, work: Sequence[WorkStep]) -> Outputs:
    """Runs the workload from a fresh state."""
    fresh(executable)
    return tuple(
        executable.run(step.entry, step.inputs, (step.output,))[step.output][: step.valid_rows] for step in work
    )


def same_program(left: Subject, right: Subject) -> bool:
    """Whether both run the same decisions, so that the contract between them is bit-equality."""
    if left.answers is not None:
        return False
    if "reference" in (left.mode, right.mode):
        return left.mode == right.mode
    return left.program is right.program or identity_of(left.executable) == identity_of(right.executable)


@dataclass(frozen=True, slots=True)
class Contract:
    """What two sides promise each other: the same bits where `exact`, otherwise what programs of these precisions do, or the `tolerance` that was given."""

    exact: bool
    precisions: tuple[str, ...]
    tolerance: float | None

    @property
    def of_results(self) -> float:
        """The largest difference of results of nodes, in root mean squares."""
        return 0.0 if self.exact else tolerance_of(self.precisions, self.tolerance)

    def limit(self, good: Outputs, found: Outputs) -> float:
        """The largest difference of outputs."""
        return 0.0 if self.exact else output_limit(good, found, self.precisions, self.tolerance)

    def broken(self, work: Sequence[WorkStep], good: Outputs, found: Outputs) -> tuple[int, Worst] | None:
        """The first step whose outputs differ by more than allowed, and the worst difference there."""
        return compared(work, good, found, self.limit(good, found))


def contract_of(left: Subject, right: Subject, tolerance: float | None) -> Contract:
    """The contract of two sides."""
    exact = same_program(left, right) and left.mode != "reference"
    return Contract(exact, tuple(precision_of(side.program) for side in (left, right)), tolerance)


def compared(work: Sequence[WorkStep], left: Outputs, right: Outputs, limit: float) -> tuple[int, Worst] | None:
    """The first step whose outputs differ by more than allowed, and the worst difference there."""
    for number, (step, a, b) in enumerate(zip(work, left, right, strict=True)):
        found = worst_of({step.output: a}, {step.output: b}, limit, 0.0)
        if found is not None:
            return number, found
    return None
