"""Contracts of pairs: what two sides promise each other, and how far apart they are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.ir.text import print_graph
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.differences import bits_equal, difference_of, place_of_largest
from ostinato.tools.compare.report import Mismatch, PairVerdict, Required, Verdict
from ostinato.tools.compare.runs import Answers, Key, SideRun
from ostinato.tools.compare.sides import Side
from ostinato.tools.compare.workload import Case

__all__ = [
    "SENSITIVE",
    "TOLERANCE",
    "Ran",
    "first_wrong_step",
    "identity_of",
    "is_exact",
    "judge",
    "mismatch_at",
    "tolerance_of",
]

TOLERANCE = {"f32": 2e-4, "bf16": 1e-1}
"""Largest difference from the reference, in standard deviations of the reference's outputs, of all rows but a `_FEW`th of them, which may be `SENSITIVE` times
as far off.

Measured on SmolLM2 beside a float64 model of its own: f32 kernels are off by 4e-6 to 1.2e-5 on ids of chance, 2.3e-5 on one id all along. Its first and last id
in turn give 1.7e-4 at one position (bf16: 0.39, elsewhere 0.024 at most), and that is the model: half a unit of f32 of noise, put on every value of the float64
model, moves this row by 1e-4 and those of chance by 1e-6 to 3e-6. An error of 1 % in a head's queries is 5e-4 to 1.5e-3, in all rows: a limit wide enough for
the sensitive row would hide it. Small models of all families, in bf16, stay below 0.1 but for single rows of up to 0.2. A wrong mask, position or weight row is
off by whole deviations.
"""
SENSITIVE = 5
"""A model can be that much more sensitive on a few rows, such as ids that it never saw in training."""
_FEW = 4


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


def tolerance_of(precision: str) -> float:
    """In standard deviations of the outputs; whatever rounds to bf16 somewhere is judged as bf16."""
    return TOLERANCE["f32" if precision == "f32" else "bf16"]


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
    """What is allowed between their rows: `SENSITIVE` times the tolerance where no more than few of them need that."""
    spread = _spread(b if _oracle(right) and not _oracle(left) else a)
    if tolerance is not None:
        return tolerance * spread
    usual = max(tolerance_of(left.precision), tolerance_of(right.precision)) * spread
    beyond = np.count_nonzero((difference_of(a, b) > usual).any(axis=1))
    return usual * SENSITIVE if beyond * _FEW <= len(a) else usual


def _oracle(side: Ran) -> bool:
    return not side.native


def _spread(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.std(finite)) if finite.size else 0.0


def _worst(answers: Answers, keys: Sequence[Key], a: Array, b: Array, cases: Sequence[Case]) -> Mismatch | None:
    """The largest difference."""
    if not a.size:
        return None
    difference = difference_of(a, b)
    row, element = place_of_largest(difference)
    left, right = float(a[row, element]), float(b[row, element])
    return mismatch_at(answers, keys[row], element, left, right, float(difference[row, element]), cases)
