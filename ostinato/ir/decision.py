"""Decisions of selection as values: the row that serves a node, on what evidence, and every other row of the operator with the reason against it.

Passes make them, executables carry them, `explain.py` prints them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.ir.evidence import Exactness, Finding, Verdict
from ostinato.ir.graph import Location
from ostinato.ir.target import Level

__all__ = ["Against", "Counters", "Decision", "Origin", "PolicyUse", "Rejection", "policy_counters", "reason_of"]


class Against(enum.Enum):
    """Kinds of reason against a row."""

    PREDICATE = "predicate"
    """The row does not take these dtypes, layouts or sizes."""
    FORCED = "forced"
    """Another row, or another level, is forced by hand, or this one's level is above the highest that is allowed."""
    POLICY = "policy"
    """The policy of numerics does not allow it."""
    NOT_VALIDATED = "not validated"
    STALE = "stale"
    FAILED = "failed"
    SLOWER = "slower"
    """A gate measured it and it does not pay."""
    MEMORY = "memory"
    """A gate measured it and it takes more memory."""
    ORDER = "order"
    """It would do, and comes after the one that was chosen."""


_FOUND = {
    Finding.MISSING: Against.NOT_VALIDATED,
    Finding.STALE: Against.STALE,
    Finding.FAILED: Against.FAILED,
    Finding.SLOWER: Against.SLOWER,
    Finding.MEMORY: Against.MEMORY,
}


def reason_of(finding: Finding) -> Against:
    """The kind of reason that a finding other than `VALIDATED` is."""
    return _FOUND[finding]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that was not chosen: what kind of reason speaks against it, in words, and the records that say so."""

    row: str
    level: Level
    reason: Against
    text: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        records = f" [{', '.join(self.evidence)}]" if self.evidence else ""
        return f"{self.row} ({self.level.name.lower()}): {self.reason.value}: {self.text}{records}"


@dataclass(frozen=True, slots=True)
class PolicyUse:
    """A selection policy whose range has this node: whether its row was taken, and why not where it was bypassed. Or a pass that may be left out by evidence,
    "fuse_updates=off", which would have replaced this node, or made it where it was not left out. `text` names the records of what was taken."""

    policy: str
    taken: bool
    text: str = ""

    @classmethod
    def by_gate(cls, policy: str, gate: Verdict) -> PolicyUse:
        """What a gate alone decides of a policy."""
        if gate.finding is Finding.VALIDATED:
            return cls(policy, True, f"records {', '.join(gate.evidence)}" if gate.evidence else "")
        return cls(policy, False, f"{gate.finding.value}: {gate.reason}")


@dataclass(frozen=True, slots=True)
class Origin:
    """A node of the traced graph: what it was called, its operator, and the user's line."""

    name: str
    op: str
    location: Location | None = None

    def __str__(self) -> str:
        return f"%{self.name} = {self.op}" + (f" at {self.location}" if self.location is not None else "")


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a node runs as it does.

    `evidence` are ids of the records that the chosen row rests on; none where rows are taken on trust, and where `note` says that nothing validated is left.
    `policies` are the selection policies in whose range the node is. `origins` are the nodes that it was made of, where passes fused or replaced some.
    """

    row: str
    level: Level
    exactness: Exactness = Exactness.TOLERANCE
    evidence: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    policies: tuple[PolicyUse, ...] = ()
    note: str = ""
    origins: tuple[Origin, ...] = ()

    def against(self, row: str) -> Rejection | None:
        """Why a row was not chosen; None for the chosen one, and for a row that the operator does not have."""
        return next((found for found in self.rejected if found.row == row), None)


@dataclass(frozen=True, slots=True)
class Counters:
    """How many nodes in the range of a selection policy took its row, and how many went by it."""

    taken: int = 0
    bypassed: int = 0


def policy_counters(decisions: Iterable[Decision]) -> dict[str, Counters]:
    """Counters of every selection policy that had a node in its range, by name. A node outside of the range counts nowhere."""
    found: dict[str, Counters] = {}
    for decision in decisions:
        for use in decision.policies:
            before = found.get(use.policy, Counters())
            found[use.policy] = Counters(before.taken + use.taken, before.bypassed + (not use.taken))
    return found
