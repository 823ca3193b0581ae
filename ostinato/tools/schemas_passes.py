"""Reports of `ostinato passes` and `ostinato explain`."""

from __future__ import annotations

from typing import Literal

from ostinato.ir.explain_layout import ExplainedLayout
from ostinato.planner.explain import ExplainedAddress, PeakAnswer
from ostinato.runtime.explains import ModeAnswer
from ostinato.tools.report import Report

__all__ = ["ExplainReport", "PassesReport"]


class PassesReport(Report):
    """`ostinato passes`: nodes after each pass, in pipeline order."""

    class Row(Report):
        """One pass: nodes before and after it, and its time."""

        name: str
        nodes_before: int
        nodes_after: int
        seconds: float
        changed: bool

    kind: Literal["passes"] = "passes"
    model: str
    entry: str
    target: str
    rows: tuple[Row, ...]
    seconds: float
    options: dict[str, str]
    """Options of each pass that ran."""
    policies: dict[str, tuple[int, int]]
    """Selection policies -> how many nodes in their range took the row that they prefer, and how many went by it."""
    diff: str | None
    """With --diff: what changed, as a unified diff of the text form."""
    files: tuple[str, ...]


class ExplainReport(Report):
    """`ostinato explain`: what was asked of one bucket: decisions node by node, or layouts or addresses value by value, the peak, or the mode; the others are
    empty or null."""

    class Rejected(Report):
        """A row that was not chosen."""

        row: str
        level: str
        reason: str
        text: str
        evidence: tuple[str, ...]

    class PolicyUsed(Report):
        """A selection policy in whose range the node is."""

        policy: str
        taken: bool
        text: str

    class Node(Report):
        """A node that runs, with the row that was chosen; `made_of` are the nodes that passes made it of."""

        name: str
        op: str
        location: str | None
        results: tuple[str, ...]
        row: str
        level: str
        exactness: str
        evidence: tuple[str, ...]
        note: str
        made_of: tuple[str, ...]
        policies: tuple[ExplainReport.PolicyUsed, ...]
        rejected: tuple[ExplainReport.Rejected, ...]

    kind: Literal["explain"] = "explain"
    model: str
    entry: str
    target: str
    nodes: tuple[Node, ...]
    layouts: tuple[ExplainedLayout, ...] = ()
    addresses: tuple[ExplainedAddress, ...] = ()
    peak: PeakAnswer | None = None
    mode: ModeAnswer | None = None
