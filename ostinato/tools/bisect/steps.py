"""Where two sides part: the first node, seen node by node, and the first node of a plan that is not what its operands make it.

The second question needs no other side. The planned steps are walked one by one (`compare/walk.py`): a node whose operands are not what was made of them was
given bytes that somebody else wrote; a node whose result is not its operator's on the operands that it had has a wrong row; one that makes NaN of numbers is
where NaN begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Node
from ostinato.ir.types import Array
from ostinato.planner.check import check_program
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.tools.bisect.subject import Subject, fresh
from ostinato.tools.compare.differences import first_difference, place_of_largest
from ostinato.tools.compare.judgement import judged
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.walk import Spoilt, Walk
from ostinato.tools.compare.workload import WorkStep

__all__ = [
    "Seen",
    "Wrong",
    "first_step",
    "unproven",
    "walked",
]


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


def first_step(left: Subject, right: Subject, work: Sequence[WorkStep], tolerance: float) -> tuple[int, str] | None:
    """The number of the run and the first value that differs, in program order: in a bit with `tolerance` 0, otherwise by more than that many root mean squares
    of the left one. None where no node's result shows it. A replay shows nothing of what happens within it: captured steps are looked at one by one."""
    probes = [Probe(side.executable, "planned" if side.mode == "captured" else side.mode) for side in (left, right)]
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
            results = visit.valid_results
            graph = executable.program.graphs[step.entry]
            given = [
                visit.valid(array, graph.types[name])
                for array, name in zip(visit.operands, node.operands, strict=True)
                if array is not None and name is not None
            ]
            if seen.nan is None and _has_nan(results) and not _has_nan(given):
                seen.nan = node
            if seen.wrong is None:
                expected, plain = walk.reference(step.entry, visit), partial(walk.plain, step.entry, visit)
                seen.wrong = _wrong(node, results, expected, plain)
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


def _wrong(
    node: Node, results: Sequence[Array], expected: Sequence[Array], plain: Callable[[], Sequence[Array]]
) -> tuple[Node, Wrong] | None:
    """The result that is furthest beyond what is allowed."""
    worst: Wrong | None = None
    for one in judged(node, results, expected, plain):
        ratios = one.ratio
        place = place_of_largest(ratios)
        times = float(ratios[place])
        if times > 1.0 and (worst is None or times > worst.times):
            worst = Wrong(one.value.name, place, float(one.wanted[place]), float(one.found[place]), times)
    return None if worst is None else (node, worst)
