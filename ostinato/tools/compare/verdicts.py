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
    "TOLERANCE",
    "Ran",
    "first_wrong_step",
    "identity_of",
    "is_exact",
    "judge",
    "mismatch_at",
    "tolerance_of",
]

TOLERANCE = {"f32": 1e-3, "bf16": 1e-1}
"""Largest difference from the reference, in standard deviations of the reference's outputs.

f32 sums of up to a few thousand terms in two orders, over tens of layers, are off by some 1e-5 on usual ids; what a model makes of unusual ones can be twenty
times as sensitive (SmolLM2, its first and last id in turn: two right units are 4e-4 apart). A wrong mask, position or weight row is off by whole deviations.
bf16 keeps 8 bits at every edge, and one rounding that falls the other way is carried on through all later layers.
"""


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
    both = _beside(left, right, tolerance)
    limit = float(both.limits.min()) if both.keys else 0.0
    required: Required = "bit-equal" if is_exact(left, right) else "within contract"
    worst: Mismatch | None = None
    verdict: Verdict = "bit-equal"
    if both.keys and not bits_equal(both.left, both.right):
        row = int(np.argmax(both.excess))
        limit, far = float(both.limits[row]), float(both.difference[row].max())
        (element,) = place_of_largest(both.difference[row])
        values = float(both.left[row, element]), float(both.right[row, element])
        worst = mismatch_at(left.run.answers, both.keys[row], element, *values, far, cases)
        verdict = "within contract" if far <= limit else "mismatch"
    return PairVerdict(
        left=left.name,
        right=right.name,
        required=required,
        verdict=verdict,
        tolerance=limit,
        worst=worst,
        first_divergent_node=None,
        compared=len(both.keys),
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


def first_wrong_step(left: Ran, right: Ran, tolerance: float | None) -> int:
    """The first step of the left side that gave a value further away than is allowed, of a pair that has one."""
    both = _beside(left, right, tolerance)
    beyond = both.difference.max(axis=1) > both.limits
    bits = [
        not limit and not bits_equal(*rows) for *rows, limit in zip(both.left, both.right, both.limits, strict=True)
    ]
    answers = left.run.answers
    place = dict(zip(answers.keys, answers.steps, strict=True))
    return min(place[key] for key, *wrong in zip(both.keys, beyond, bits, strict=True) if any(wrong))


@dataclass(frozen=True, slots=True)
class _Beside:
    """The rows that both sides answered, [n, width], how far apart they are, and how far each row may be, [n]."""

    keys: Sequence[Key]
    left: Array
    right: Array
    difference: Array
    limits: Array

    @property
    def excess(self) -> Array:
        """How often what is allowed each row is off; where nothing is allowed, by how much."""
        far = self.difference.max(axis=1)
        return np.divide(far, self.limits, out=far.copy(), where=self.limits > 0)


def _beside(left: Ran, right: Ran, tolerance: float | None) -> _Beside:
    wanted = set(right.run.answers.keys)
    keys = [key for key in left.run.answers.keys if key in wanted]
    a, b = left.run.answers.rows(keys), right.run.answers.rows(keys)
    limits = np.zeros(len(keys))
    if not is_exact(left, right):
        relative = max(tolerance_of(left.precision), tolerance_of(right.precision)) if tolerance is None else tolerance
        oracle = b if _oracle(right) and not _oracle(left) else a
        limits += relative * np.array([max(_spread(oracle), _spread(row)) for row in oracle])
    return _Beside(keys, a, b, difference_of(a, b), limits)


def _oracle(side: Ran) -> bool:
    return not side.native


def _spread(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.std(finite)) if finite.size else 0.0
