"""What `bisect` found, as data."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.report import Report
from ostinato.tools.repro.report import Worst

__all__ = ["BisectReport", "Culprit", "Kind", "Worst"]

Kind = Literal[
    "error",
    "nondeterminism",
    "scalar",
    "plan",
    "address",
    "bytes",
    "in_place",
    "early",
    "capture",
    "row",
    "nan",
    "pass",
]
"""What a culprit is: a call that was refused; a node that does not repeat itself; a number of the host that is another one now; a plan that is not proven;
memory that moved; two tenants of the same bytes; a result in the bytes of an operand; a kernel that starts early; a captured step; an implementation row; a
node that makes NaN of numbers; a pass."""


class Culprit(Report):
    """One thing that makes the difference, in a sentence. `names` are the storages, passes or inputs that it is about, `node` the node, `step` its number in
    the plan of `entry`, `line` the user's line that made it; `evidence` is what speaks for it, and `workaround` how to do without."""

    kind: Kind
    text: str
    names: tuple[str, ...] = ()
    entry: str = ""
    node: str = ""
    op: str = ""
    row: str = ""
    step: int | None = None
    line: str = ""
    evidence: tuple[str, ...] = ()
    workaround: str = ""


class BisectReport(Report):
    """What `bisect` prints. `ok`: the sides agree as they must (`absolute` is the largest difference allowed, 0: bit for bit).

    `first_step` is the node at which the sides part, seen node by node, in which of the runs and in which entry. `culprits` begin with what is most to the
    point. `trials` configurations were run, of which `refused` could not be. `bundle` is the folder of the repro bundle and `reduced` its nodes; `unreduced`
    says why there is none.
    """

    kind: Literal["bisect"] = "bisect"
    ok: bool
    model: str
    left: str
    right: str
    absolute: float
    verdict: Literal["agree", "mismatch", "not repeated", "error"]
    worst: Worst | None = None
    run: int | None = None
    entry: str = ""
    first_step: str = ""
    culprits: tuple[Culprit, ...] = ()
    trials: int
    refused: int
    seconds: float
    seed: int
    reduced: tuple[str, ...] = ()
    bundle: str | None = None
    unreduced: str = ""
