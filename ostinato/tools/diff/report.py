"""The report of `ostinato diff`."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.diff.data import Fact, GraphDiff, PlanDiff
from ostinato.tools.diff.limits import Verdict
from ostinato.tools.report import Report

__all__ = ["DiffReport"]


class DiffReport(Report):
    """`ostinato diff`: what differs between two plans and the graphs of their entries. `plan` is null where a side has none, `graphs` are those of both sides.

    `ok` is what the exit code says: nothing differs, or with limits that none is exceeded.
    """

    class Side(Report):
        """What was given: a "model", "training", "plan", "graph", "artifact", "dump" (plan and graphs) or "stages" (graphs)."""

        name: str
        kind: str

    kind: Literal["diff"] = "diff"
    before: Side
    after: Side
    differs: bool
    ok: bool
    plan: PlanDiff | None
    graphs: tuple[GraphDiff, ...]
    only_before: tuple[str, ...]
    """Graphs that only the first side has, and below those that only the second has."""
    only_after: tuple[str, ...]
    limits: tuple[Verdict, ...]
    made_with: tuple[Fact, ...] = ()
    """Of two artifacts: what differs of what they were made of and on."""
