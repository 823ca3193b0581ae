"""Policies of numerics: how exact the rows of a program must be, and which selection policies may put one row before another.

| policy | rows | selection policies |
| --- | --- | --- |
| `strict` | those with the bits of the reference; the plainest of the device where an operator has none: `reference` on the host, `readable` on a GPU | none |
| `batch_invariant` | those whose results of a row do not depend on the rows beside it, and one row of an operator for all sizes | none |
| `balanced` (the default) | all that keep the operator's tolerance | those that passed the gate of whole-model runs |
| `fast` | the same | all that are known |

Whatever the policy, only validated rows are taken. A policy is a value: one that is made by hand may bring selection policies of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Exactness
from ostinato.ir.selection_policy import SelectionPolicy
from ostinato.ir.target import Impl, Level, Target

__all__ = ["BALANCED", "BATCH_INVARIANT", "FAST", "POLICIES", "STRICT", "Policy", "Promotion", "named_policy"]


class Promotion(enum.Enum):
    """Which selection policies of a target hold."""

    NONE = "none"
    GATED = "gated"
    """Those whose gate passed: whole models ran faster, right, and in no more memory."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of numerics: rows are at least so exact. See the module text for the four that have names.

    `plainest`: rows of the device's lowest level serve too. `one_row`: no row that is for some sizes alone. `preferences` are selection policies of one's own,
    which come before those of the target and need no gate.
    """

    name: str
    exactness: Exactness = Exactness.TOLERANCE
    plainest: bool = False
    one_row: bool = False
    promotion: Promotion = Promotion.GATED
    preferences: tuple[SelectionPolicy, ...] = ()

    def __str__(self) -> str:
        """The name, all that a policy of that name does not say, and what is preferred: policies that choose differently print differently."""
        parts = [self.name]
        if POLICIES.get(self.name) != replace(self, preferences=()):
            flags = [flag for flag in ("plainest", "one_row") if getattr(self, flag)]
            parts.append("/".join((self.exactness.name.lower(), *flags, self.promotion.value)))
        return " ".join((*parts, *(preference.identity for preference in self.preferences)))

    def refusal(self, row: Impl, lowest: Level) -> str | None:
        """Why a row may not serve under this policy, on a device whose plainest level is `lowest`; None when it may."""
        if row.exactness < self.exactness and not (self.plainest and row.level == lowest):
            found, wanted = (exactness.name.lower().replace("_", " ") for exactness in (row.exactness, self.exactness))
            return f"policy {self.name} wants exactness {wanted!r}, the row's is {found!r}"
        if self.one_row and row.level is Level.REFERENCE:
            return f"policy {self.name} wants the same bits in any batch, and how numpy adds up depends on how many rows there are"
        if self.one_row and row.extents.is_bounded:
            return f"policy {self.name} wants one row for all sizes, this one is for some"
        return None

    def check(self, target: Target) -> None:
        """Raises `ConfigError` for a selection policy of this one that prefers a row which the target does not have."""
        for preference in self.preferences:
            if target.row(preference.op, preference.row_name) is None:
                known = [row.identity for row in target.rows]
                alike = get_close_matches(preference.row, known) or [
                    row.identity for row in target.rows_for(preference.op)
                ]
                raise ConfigError(
                    f"policy {self.name}: {preference.name} prefers {preference.row}, which is no row of {target.name}",
                    hint=f"rows of like name: {', '.join(alike) or 'none'}",
                )


STRICT = Policy("strict", Exactness.REFERENCE, plainest=True, promotion=Promotion.NONE)
BATCH_INVARIANT = Policy("batch_invariant", Exactness.ROW_INVARIANT, one_row=True, promotion=Promotion.NONE)
BALANCED = Policy("balanced")
FAST = Policy("fast", promotion=Promotion.ALL)

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (STRICT, BATCH_INVARIANT, BALANCED, FAST)}
)
"""The policies that have names."""


def named_policy(policy: object) -> Policy:
    """The policy itself, or the one of that name. Raises `ConfigError` for anything else."""
    if isinstance(policy, Policy):
        return policy
    found = POLICIES.get(policy) if isinstance(policy, str) else None
    if found is None:
        raise ConfigError(
            f"policy is {shown(policy)}", hint=f"use {', '.join(POLICIES)}, or a Policy; dtypes are `precision`"
        )
    return found
