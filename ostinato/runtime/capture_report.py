"""What comes of comparing a captured graph with its plan (`conformance.py` has the rules): counts, and every broken rule with what mends it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.errors import PlanError
from ostinato.planner.plan import spelled

__all__ = ["CaptureFinding", "CaptureReport"]


@dataclass(frozen=True, slots=True)
class CaptureFinding:
    """One broken rule: the number of the rule, the node of the graph that was captured and the step of the plan (by name and number) that it is about, if any,
    the operand's value, and how to mend it. `unread`: nothing is known to be wrong, the driver does not show what the rule is about."""

    rule: int
    message: str
    hint: str
    node: int | None = None
    step: int | None = None
    name: str = ""
    tensor: str = ""
    unread: bool = False

    def __str__(self) -> str:
        places = (
            "" if self.step is None else f"step {self.step} ({self.name})",
            "" if self.node is None else f"graph node {self.node}",
            spelled((self.tensor,)) if self.tensor else "",
        )
        where = ", ".join(filter(None, places))
        return f"rule {self.rule}{', ' if where else ''}{where}: {self.message}\n     hint: {self.hint}"


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What a captured graph is: `launches` of our kernels, `copies`, `fills` and `vendor_nodes` are its `graph_nodes`; `dependencies` are its edges, of which
    `early` start the later kernel while the earlier one still runs.

    `opaque` names the vendor's nodes whose arguments cannot be read. `findings` are what is not as planned; none is a proof.
    """

    entry: str
    launches: int
    graph_nodes: int
    dependencies: int
    copies: int
    fills: int
    vendor_nodes: int
    early: int
    opaque: tuple[str, ...]
    findings: tuple[CaptureFinding, ...]

    @property
    def unreadable(self) -> bool:
        """Whether all that is found is that the driver does not show arguments: nothing is known to be wrong, and nothing is proven."""
        return bool(self.findings) and all(finding.unread for finding in self.findings)

    def check(self) -> None:
        """Raises `PlanError` that lists every finding, if there is one."""
        if self.findings:
            count = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
            lines = (f"{number}. {finding}" for number, finding in enumerate(self.findings, 1))
            raise PlanError(
                f"the captured graph of {self.entry} is not the plan, {count}:\n  " + "\n  ".join(lines),
                hint='a graph that is not proven is not replayed; mode="planned" runs the same steps without it',
            )
