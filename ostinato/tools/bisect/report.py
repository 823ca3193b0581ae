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
    point. `trials` configurations were run, of which `refused` could not be. `bundle` is the folder of the repro bundle, which needs what `extension` adds, and
    `reduced` its nodes; `unreduced` says why there is none.
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
    extension: str = ""

    @property
    def repro_command(self) -> str:
        """How the bundle is run, empty where there is none."""
        if self.bundle is None:
            return ""
        return f"ostinato repro {self.bundle}" + (f" --extension {self.extension}" if self.extension else "")

    def __str__(self) -> str:
        lines = [f"{self.left} / {self.right}: {self.verdict}"]
        if self.worst is not None:
            lines[0] += f", largest difference {self.worst} of {self.entry}"
        for number, culprit in enumerate(self.culprits):
            lines.append(f"{'also' if number else 'culprit'}: {culprit.text}")
            where = [f"step {culprit.step} of {culprit.entry}" if culprit.step is not None else culprit.entry]
            about = [("where", ", ".join(filter(None, [*where, culprit.line])))]
            about += [("evidence", text) for text in culprit.evidence]
            lines += [f"  {name}: {text}" for name, text in [*about, ("do without", culprit.workaround)] if text]
        if self.reduced:
            lines.append(f"reduced to {', '.join(self.reduced)}")
        if self.bundle is not None:
            lines.append(f"bundle {self.bundle}; run it with: {self.repro_command}")
        if self.unreduced:
            lines.append(f"not reduced: {self.unreduced}")
        return "\n".join(lines)
