"""Whether a candidate's outputs are right: equal to the baseline's, or within the tolerance that a program of this precision has.

The oracle is the numpy reference of the model in f32. A candidate's root mean square error against it is at most twice the baseline's (or 4 units in the last
place of the largest logit), its largest error within the tolerance of `compare` (`tolerance_of`), in standard deviations of the logits. Ids are of chance, so
that no row may be more sensitive, as few may be there. On the inputs that are timed, which are too many for numpy, candidate and baseline may be apart by no
more than both may be off. A value that is not finite is an error everywhere. What a training step leaves is held to the same tensor by tensor: the error of
one is its length, as a part of the tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ostinato.ir.types import Array
from ostinato.tools.compare.differences import bits_equal
from ostinato.tools.compare.judgement import tolerance_of
from ostinato.tools.evidence.workloads import Workload

__all__ = ["FULL", "Outputs", "baseline_problem", "judge_outputs"]

Outputs = Literal["equal", "within tolerance", "outside tolerance"]
FULL = "{}.full"
"""How the outputs of a workload's timed inputs are called."""
_TIMES = 2.0
_ULPS = 4


def judge_outputs(
    workload: Workload, reference: Array, baseline: Mapping[str, Array], candidate: Mapping[str, Array], precision: str
) -> tuple[Outputs, str]:
    """The verdict on one workload, and what is wrong where something is. `baseline` and `candidate` have arrays for the workload and its `FULL`."""
    names = (str(workload), FULL.format(workload))
    what, one = _words(workload)
    if all(bits_equal(baseline[name], candidate[name]) for name in names):
        return "equal", ""
    for name in names:
        if baseline[name].shape != candidate[name].shape:
            return "outside tolerance", f"its {what} are {candidate[name].shape}, the baseline's {baseline[name].shape}"
        if not np.isfinite(candidate[name]).all():
            return "outside tolerance", f"some of its {what} are not finite"
    mine, theirs = (_errors(workload, found[names[0]], reference) for found in (candidate, baseline))
    spread, largest = _scale(workload, reference)
    rms, limit = _rms(mine), max(_TIMES * _rms(theirs), _ULPS * float(np.spacing(np.float32(largest))))
    if not rms <= limit:
        return "outside tolerance", f"its {what} are off by {rms:.3g} on average, at most {limit:.3g} is allowed"
    allowed = tolerance_of((precision,)) * spread
    if not (worst := float(np.abs(mine).max(initial=0.0))) <= allowed:
        return "outside tolerance", f"{one} is off by {worst:.3g}, at most {allowed:.3g} is allowed"
    full = [found[names[1]] for found in (candidate, baseline)]
    apart = float(np.abs(_errors(workload, *full)).max(initial=0.0))
    allowed = 2 * tolerance_of((precision,)) * _scale(workload, full[1])[0]
    if not apart <= allowed:
        return (
            "outside tolerance",
            f"on the timed inputs {one} is {apart:.3g} from the baseline's, {allowed:.3g} is allowed",
        )
    return "within tolerance", ""


def baseline_problem(workload: Workload, reference: Array, baseline: Mapping[str, Array], precision: str) -> str:
    """What is wrong with the baseline's own outputs; empty where nothing is."""
    what, one = _words(workload)
    worst = float(np.abs(_errors(workload, baseline[str(workload)], reference)).max(initial=0.0))
    allowed = tolerance_of((precision,)) * _scale(workload, reference)[0]
    if not worst <= allowed:
        return f"{one} is off by {worst:.3g}, at most {allowed:.3g} is allowed"
    return "" if np.isfinite(baseline[FULL.format(workload)]).all() else f"some {what} are not finite"


def _errors(workload: Workload, found: Array, expected: Array) -> Array:
    """How far each logit is off; or of a training step, whose rows are tensors, each tensor by its length."""
    apart = found.astype(np.float64) - expected
    if workload.kind != "t":
        return np.asarray(apart)
    lengths, off = (np.sqrt(np.square(rows).sum(axis=1)) for rows in (expected.astype(np.float64), apart))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(off == 0, 0.0, off / lengths))


def _scale(workload: Workload, values: Array) -> tuple[float, float]:
    """What errors are measured by, and the largest value; 1 and 1 where errors are parts of a tensor's length."""
    if workload.kind == "t":
        return 1.0, 1.0
    return float(values.astype(np.float64).std()), float(np.abs(values).max(initial=0.0))


def _words(workload: Workload) -> tuple[str, str]:
    """How all outputs are called, and the one that is furthest off."""
    return ("values", "a tensor") if workload.kind == "t" else ("logits", "a logit")


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
