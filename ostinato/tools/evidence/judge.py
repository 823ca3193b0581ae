"""Whether a candidate's logits are right: equal to the baseline's, or within the tolerance that a program of this precision has.

The oracle is the numpy reference of the model in f32. A candidate's root mean square error against it is at most twice the baseline's (or 4 units in the last
place of the largest logit), its largest error within `TOLERANCE`. On the inputs that are timed, which are too many for numpy, candidate and
baseline may be apart by no more than both may be off. A value that is not finite is an error everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ostinato.ir.types import Array
from ostinato.tools.compare.differences import bits_equal
from ostinato.tools.evidence.workloads import Workload

__all__ = ["FULL", "TOLERANCE", "Outputs", "baseline_problem", "judge_outputs"]

Outputs = Literal["equal", "within tolerance", "outside tolerance"]
FULL = "{}.full"
"""How the logits of a workload's timed inputs are called."""
TOLERANCE = {"f32": 2e-4, "bf16": 1e-1}
"""In standard deviations of the logits. Ids are of chance, so that f32 is held nearer than by `compare`, whose unusual ids are harder."""
_TIMES = 2.0
_ULPS = 4


def judge_outputs(
    workload: Workload, reference: Array, baseline: Mapping[str, Array], candidate: Mapping[str, Array], precision: str
) -> tuple[Outputs, str]:
    """The verdict on one workload, and what is wrong where something is. `baseline` and `candidate` have arrays for the workload and its `FULL`."""
    names = (str(workload), FULL.format(workload))
    if all(bits_equal(baseline[name], candidate[name]) for name in names):
        return "equal", ""
    for name in names:
        if baseline[name].shape != candidate[name].shape:
            return "outside tolerance", f"its logits are {candidate[name].shape}, the baseline's {baseline[name].shape}"
        if not np.isfinite(candidate[name]).all():
            return "outside tolerance", "some of its logits are not finite"
    oracle = reference.astype(np.float64)
    mine, theirs = (found[names[0]].astype(np.float64) - oracle for found in (candidate, baseline))
    spread, largest = float(oracle.std()), float(np.abs(oracle).max(initial=0.0))
    rms, limit = _rms(mine), max(_TIMES * _rms(theirs), _ULPS * float(np.spacing(np.float32(largest))))
    if not rms <= limit:
        return "outside tolerance", f"its logits are off by {rms:.3g} on average, at most {limit:.3g} is allowed"
    allowed = _tolerance(precision) * spread
    if not (worst := float(np.abs(mine).max(initial=0.0))) <= allowed:
        return "outside tolerance", f"a logit is off by {worst:.3g}, at most {allowed:.3g} is allowed"
    full = [found[names[1]].astype(np.float64) for found in (candidate, baseline)]
    apart, allowed = float(np.abs(full[0] - full[1]).max(initial=0.0)), 2 * _tolerance(precision) * float(full[1].std())
    if not apart <= allowed:
        return (
            "outside tolerance",
            f"on the timed inputs a logit is {apart:.3g} from the baseline's, {allowed:.3g} is allowed",
        )
    return "within tolerance", ""


def baseline_problem(workload: Workload, reference: Array, baseline: Mapping[str, Array], precision: str) -> str:
    """What is wrong with the baseline's own logits; empty where nothing is."""
    found, full = baseline[str(workload)].astype(np.float64), baseline[FULL.format(workload)]
    worst = float(np.abs(found - reference).max(initial=0.0))
    allowed = _tolerance(precision) * float(reference.astype(np.float64).std())
    if not worst <= allowed:
        return f"a logit is off by {worst:.3g}, at most {allowed:.3g} is allowed"
    return "" if np.isfinite(full).all() else "some logits are not finite"


def _tolerance(precision: str) -> float:
    """In standard deviations; whatever rounds to bf16 somewhere is judged as bf16."""
    return TOLERANCE["f32" if precision == "f32" else "bf16"]


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
