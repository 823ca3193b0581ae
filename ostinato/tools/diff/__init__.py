"""What differs between two graphs or two plans, as plain data: `diff_graphs` and `diff_plans` find it, `ostinato diff` prints it, `ostinato view` draws it."""

from __future__ import annotations

from ostinato.tools.diff.data import EntryDiff, Fact, Figure, GraphDiff, NodeDiff, PlanDiff, SlotDiff, StepDiff
from ostinato.tools.diff.graphs import diff_graphs
from ostinato.tools.diff.plans import diff_plans

__all__ = [
    "EntryDiff",
    "Fact",
    "Figure",
    "GraphDiff",
    "NodeDiff",
    "PlanDiff",
    "SlotDiff",
    "StepDiff",
    "diff_graphs",
    "diff_plans",
]
