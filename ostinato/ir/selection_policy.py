"""Selection policies: named preferences, as data, that put a row before others within a range of sizes, and passes that are better left out.

The order of a table's rows is the baseline. A policy promotes one row where it was measured to pay; which policies hold is for the policy of numerics that is
asked for (`passes/policy.py`): those whose gate passed, all of them, or none. Below `minimum_rows` and above `maximum_rows` a policy is not there: nothing is
decided or counted differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError

__all__ = ["Gated", "PassOmission", "SelectionPolicy", "parse_gated"]

_PREFERENCE = re.compile(r"(?P<name>.+):(?P<row>[^:@]+@[^:@\[]+)\[(?P<low>[0-9]+)\.\.(?P<high>[0-9]*)\]")
_OMISSION = re.compile(r"(?P<name>\w+)=off")


@dataclass(frozen=True, slots=True)
class SelectionPolicy:
    """The row of that identity ("linear@hip_few_rows") comes first for calls of `minimum_rows` to `maximum_rows` rows (None: any number above).

    Rows of a call are those that `OpDef.sizes` says. Raises `ConfigError` for an empty name, an identity that is none and a range that holds nothing.
    """

    name: str
    row: str
    minimum_rows: int = 0
    maximum_rows: int | None = None

    def __post_init__(self) -> None:
        given: tuple[object, object] = (self.name, self.row)
        if not all(isinstance(text, str) and text for text in given):
            raise ConfigError(f"a selection policy has {given!r}, expected a name and a row, as text")
        if not all(self.row.partition("@")):
            raise ConfigError(
                f"selection policy {self.name} prefers {self.row!r}", hint='name a row like "linear@hip_few_rows"'
            )
        low = integer(self.minimum_rows, f"minimum_rows of {self.name}", low=0)
        if self.maximum_rows is not None:
            integer(self.maximum_rows, f"maximum_rows of {self.name}", low=low)

    @property
    def op(self) -> str:
        """The operator whose row it is."""
        return self.row.partition("@")[0]

    @property
    def row_name(self) -> str:
        """The row's name within its operator."""
        return self.row.partition("@")[2]

    @property
    def identity(self) -> str:
        """The policy with all that it says: what a gate's record is about."""
        high = "" if self.maximum_rows is None else self.maximum_rows
        return f"{self.name}:{self.row}[{self.minimum_rows}..{high}]"

    def covers(self, rows: int) -> bool:
        """Whether a call of so many rows is in its range."""
        return self.minimum_rows <= rows and (self.maximum_rows is None or rows <= self.maximum_rows)


@dataclass(frozen=True, slots=True)
class PassOmission:
    """The optional pass of that name is left out."""

    name: str

    @property
    def identity(self) -> str:
        """What a gate's record is about."""
        return f"{self.name}=off"


Gated = SelectionPolicy | PassOmission
"""What a gate decides on."""


def parse_gated(identity: str) -> Gated | None:
    """What has that identity, None for a text that is none."""
    if found := _OMISSION.fullmatch(identity):
        return PassOmission(found["name"])
    if found := _PREFERENCE.fullmatch(identity):
        high = int(found["high"]) if found["high"] else None
        try:
            return SelectionPolicy(found["name"], found["row"], int(found["low"]), high)
        except ConfigError:  # a range that holds nothing
            return None
    return None
