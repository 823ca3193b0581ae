"""Contracts of pairs: what two sides promise each other, and how far apart they are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.ir.text import print_graph
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.differences import bits_equal, difference_of, place_of_largest
from ostinato.tools.compare.judgement import output_limit
from ostinato.tools.compare.report import Mismatch, PairVerdict, Required, Verdict
from ostinato.tools.compare.runs import Answers, Key, SideRun
from ostinato.tools.compare.sides import Side
from ostinato.tools.compare.workload import Case

__all__ = [
    "Ran",
    "first_wrong_step",
    "identity_of",
    "is_exact",
    "judge",
    "mismatch_at",
]


@dataclass(frozen=True, slots=True)
class Ran:
    """A side that was run. `executable` is None for a function; `identity` says which decisions it runs."""

    side: Side
    executable: Executable | None
    run: SideRun
    identity: str
    precision: str

    @property
    def name(self) -> str:
        return self.side.name

    @property
    def native(self) -> bool:
        """Whether it runs a device's kernels, and not the interpreter or a function."""
        return self.executable is not None and self.executable.mode != "reference"


def identity_of(executable: Executable) -> str:
    """Which decisions a program runs, and where: programs of one identity give the same bits. Lines of code, clones and places are no part of it."""
    found = hashlib.sha256(f"{executable.device.name} {executable.device.isa}".encode())
    for name, plan in sorted(executable.entries.items()):
        graph = executable.program.original(name)
        nowhere = replace(graph, nodes=tuple(replace(node, location=None) for node in graph.nodes))
        found.update(f"{name} {plan.target_rows} {print_graph(nowhere)}".encode())
    return found.hexdigest()


def is_exact(left: Ran, right: Ran) -> bool:
    """Whether the two must give the same bits."""
    return left.native and right.native and left.identity == right.identity


def judge(left: Ran, right: Ran, cases: Sequence[Case], tolerance: float | None) -> PairVerdict:
    """The verdict on what both were asked. `tolerance` replaces that of the precision, in standard deviations."""
    keys = _common(left.run.answers, right.run.answers)
    a, b = left.run.answers.rows(keys), right.run.answers.rows(keys)
    exact = is_exact(left, right)
    limit = 0.0 if exact else _limit(left, right, a, b, tolerance)
    required: Required = "bit-equal" if exact else "within contract"
    worst = _worst(left.run.answers, keys, a, b, cases)
    verdict: Verdict = "mismatch"
    if bits_equal(a, b):
        verdict, worst = "bit-equal", None
    elif worst is not None and worst.difference <= limit:
        verdict = "within contract"
    return PairVerdict(
        left=left.name,
        right=right.name,
        required=required,
        verdict=verdict,
        tolerance=limit,
        worst=worst,
        first_divergent_node=None,
        compared=len(keys),
    )


def mismatch_at(
    answers: Answers, key: Key, element: int, left: float, right: float, difference: float, cases: Sequence[Case]
) -> Mismatch:
    """A place of the answers for people: the step and row that gave it, and the sequence it is of."""
    at = answers.keys.index(key)
    step = answers.steps[at]
    case, row, position = key
    return Mismatch(
        output=answers.output,
        step=step,
        index=(at - answers.steps.index(step), element),
        left=left,
        right=right,
        difference=difference,
        case=cases[case].name,
        row=row,
        position=position,
    )


def first_wrong_step(left: Answers, right: Answers, limit: float) -> int:
    """The first step of the left side that gave a value further away than the limit, of a pair that has one."""
    keys = _common(left, right)
    difference = difference_of(left.rows(keys), right.rows(keys)).reshape(len(keys), -1).max(axis=1)
    rows = zip(left.rows(keys), right.rows(keys), strict=True)
    bad = (difference > limit).tolist() if limit else [not bits_equal(a, b) for a, b in rows]
    place = dict(zip(left.keys, left.steps, strict=True))
    return min(place[key] for key, wrong in zip(keys, bad, strict=True) if wrong)


def _common(left: Answers, right: Answers) -> list[Key]:
    wanted = set(right.keys)
    return [key for key in left.keys if key in wanted]


def _limit(left: Ran, right: Ran, a: Array, b: Array, tolerance: float | None) -> float:
    """What is allowed between their rows, in the spread of the oracle's where one of them is."""
    good, other = (b, a) if _oracle(right) and not _oracle(left) else (a, b)
    return output_limit([good], [other], (left.precision, right.precision), tolerance)


def _oracle(side: Ran) -> bool:
    return not side.native


def _worst(answers: Answers, keys: Sequence[Key], a: Array, b: Array, cases: Sequence[Case]) -> Mismatch | None:
    """The largest difference."""
    if not a.size:
        return None
    difference = difference_of(a, b)
    row, element = place_of_largest(difference)
    left, right = float(a[row, element]), float(b[row, element])
    return mismatch_at(answers, keys[row], element, left, right, float(difference[row, element]), cases)
