"""Where two sides part: the first node, seen node by node, and the first node of a plan that is not what its operands make it.

The second question needs no other side. The planned steps are walked one by one (`compare/walk.py`): a node whose operands are not what was made of them was
given bytes that somebody else wrote; a node whose result is not its operator's on the operands that it had has a wrong row; one that makes NaN of numbers is
where NaN begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Node
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType
from ostinato.planner.check import check_program
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.tools.bisect.subject import Subject, fresh
from ostinato.tools.compare.differences import (
    bits_equal,
    difference_of,
    first_difference,
    place_of_largest,
    root_mean_square,
)
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.verdicts import tolerance_of
from ostinato.tools.compare.walk import Spoilt, Walk
from ostinato.tools.compare.workload import WorkStep
from ostinato.tools.programs import precision_of

__all__ = [
    "Seen",
    "Wrong",
    "allowed",
    "first_step",
    "unproven",
    "walked",
]

FACTOR = 8.0
"""How much further than its operator's tolerance a result may be off: tolerances are stated for samples of unit scale, real values have outliers."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A result that its operator's reference gives otherwise on the same operands: where, both values, and how many times beyond what is allowed."""

    value: str
    index: tuple[int, ...]
    expected: float
    found: float
    times: float


@dataclass
class Seen:
    """What a walk of one run of an entry found first of each kind, and all values by name as they were made."""

    entry: str
    run: int
    spoilt: tuple[Node, Spoilt] | None = None
    wrong: tuple[Node, Wrong] | None = None
    nan: Node | None = None
    values: dict[str, Array] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        return self.spoilt is not None or self.wrong is not None or self.nan is not None


def allowed(op: str, dtype: DType, expected: Array) -> tuple[float, float]:
    """By how much a result may be off: absolute, and times its expected value. Operators state tolerances for values of unit scale; these are those of the
    values at hand, `FACTOR` times as wide."""
    scale = root_mean_square(expected)
    stated = OP[op].tolerance.for_result(dtype)
    return FACTOR * (stated.absolute * min(1.0, scale) + stated.relative * scale), FACTOR * stated.relative


def first_step(left: Subject, right: Subject, work: Sequence[WorkStep], *, exact: bool) -> tuple[int, str] | None:
    """The number of the run and the first value that differs, in program order; None where no node's result shows it. A replay shows nothing of what happens
    within it: captured steps are looked at one by one."""
    probes = [Probe(side.executable, "planned" if side.mode == "captured" else side.mode) for side in (left, right)]
    tolerance = 0.0 if exact else tolerance_of(precision_of(right.program))
    for number, step in enumerate(work):
        seen = [probe.run(step.entry, step.inputs) for probe in probes]
        graph = right.program.graphs[step.entry]
        found = first_difference(graph, seen[0], seen[1], graph.counts(step.inputs), tolerance)
        if found is not None:
            return number, found.name
    return None


def walked(executable: Executable, work: Sequence[WorkStep], *, whole: bool = False) -> Seen:
    """Walks the runs of a workload until one has a fault; the last one's `Seen` where none has, or with `whole`, which looks for no fault."""
    planned = executable.clone("planned")
    fresh(planned)
    walk = Walk(planned)
    seen = Seen("", 0)
    for number, step in enumerate(work):
        seen = Seen(step.entry, number, values={name: np.array(array) for name, array in step.inputs.items()})
        for visit in walk.run(step.entry, step.inputs):
            node = visit.node
            _remember(seen.values, node, visit.operands, visit.results)
            if whole:
                continue
            if visit.spoilt and seen.spoilt is None:
                seen.spoilt = node, visit.spoilt[0]
            results = [visit.valid(array, value.type) for array, value in zip(visit.results, node.results, strict=True)]
            graph = executable.program.graphs[step.entry]
            given = [
                visit.valid(array, graph.types[name])
                for array, name in zip(visit.operands, node.operands, strict=True)
                if array is not None and name is not None
            ]
            if seen.nan is None and _has_nan(results) and not _has_nan(given):
                seen.nan = node
            if seen.wrong is None:
                seen.wrong = _wrong(node, results, walk.reference(step.entry, visit))
        if seen.anything:
            return seen
    return seen


def unproven(program: Program) -> tuple[str, ...]:
    """What the checker has against the plan of a program."""
    try:
        check_program(program.plan, program.graphs, program.target, sources=program.originals)
    except PlanError as error:
        return tuple(line.strip() for line in error.message.splitlines()[1:])
    return ()


def _remember(values: dict[str, Array], node: Node, operands: Sequence[Array | None], results: Sequence[Array]) -> None:
    for name, array in zip(node.operands, operands, strict=True):
        if name is not None and array is not None:
            values.setdefault(name, array)
    for value, array in zip(node.results, results, strict=True):
        values.setdefault(value.name, array)


def _has_nan(arrays: Sequence[Array]) -> bool:
    return any(array.dtype.kind in "fV" and bool(np.isnan(array.astype(np.float32)).any()) for array in arrays)


def _wrong(node: Node, results: Sequence[Array], expected: Sequence[Array]) -> tuple[Node, Wrong] | None:
    """The result that is furthest beyond `FACTOR` times the operator's tolerance. Rows that the reference gives nothing for are not looked at."""
    worst: Wrong | None = None
    for value, found, wanted in zip(node.results, results, expected, strict=True):
        if found.shape != wanted.shape:
            found = found[: len(wanted)]
        if bits_equal(found, wanted) or not found.size:
            continue
        absolute, relative = allowed(node.op, value.type.dtype, wanted)
        limit = absolute + relative * np.nan_to_num(np.abs(wanted.astype(np.float64)), posinf=0.0)
        beyond = difference_of(wanted, found) / np.maximum(limit, 1e-300)
        place = place_of_largest(beyond)
        times = float(beyond[place])
        if times > 1.0 and (worst is None or times > worst.times):
            worst = Wrong(value.name, place, float(wanted[place]), float(found[place]), times)
    return None if worst is None else (node, worst)
