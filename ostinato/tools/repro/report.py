"""What a repro bundle says of itself (`repro.json`), and what `ostinato repro` says of a run of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ostinato.tools.report import Report

__all__ = [
    "FORMAT",
    "VERSION",
    "Environment",
    "Needs",
    "Outcome",
    "ReproFile",
    "ReproReport",
    "Way",
    "Worst",
    "number",
    "shown_number",
]

FORMAT = "ostinato-repro"
VERSION = 1
Way = Literal["reference", "eager", "planned", "guarded", "captured", "saved"]
"""A mode, or the values that the bundle has saved as right."""
Outcome = Literal["mismatch", "agreement", "not repeated"]
"""Left and right differ; they agree; right differs from itself."""


Number = float | Literal["nan", "inf", "-inf"]
"""JSON has no others."""


def number(value: float) -> Number:
    """A float as JSON can have it."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def shown_number(value: Number, digits: int = 6) -> str:
    """For people."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"


class Worst(Report):
    """The largest difference: the output, where in it, and both values. A NaN on one side alone counts as infinite."""

    output: str
    index: tuple[int, ...]
    left: Number
    right: Number
    difference: Number


class Environment(Report):
    """Where a bundle was made."""

    library: str
    device: str
    isa: str
    target: str
    platform: str
    python: str
    numpy: str


class Needs(Report):
    """Code of the user's without which the bundle cannot run: operators and rows that the library does not have. `extension` is where it was, if known."""

    operators: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    extension: str = ""

    @property
    def any(self) -> bool:
        return bool(self.operators or self.rows)


class ReproFile(Report):
    """`repro.json`. `left` is held against `right`: bit for bit where both limits are 0, else an element may be off by `absolute` + `relative` * |left|.

    `expected` is the outcome that the bundle states. `fault` says in a sentence what was found, `nodes` are those of the model, `rows` the row of each node
    here ({} for those of the device), `places` the first bytes of storages where those are the fault, `runs` how often each side runs. `files` has the sha256
    of every other file that is read.
    """

    format: Literal["ostinato-repro"] = "ostinato-repro"
    version: Literal[1] = 1
    fault: str
    kind: str
    expected: Outcome
    left: Way
    right: Way
    absolute: float = Field(ge=0, allow_inf_nan=False)
    relative: float = Field(ge=0, allow_inf_nan=False)
    nodes: tuple[str, ...]
    rows: Mapping[str, str]
    places: Mapping[str, int]
    runs: int = Field(ge=1, le=1000)
    seed: int
    entry: str
    model: str
    worst: Worst | None
    environment: Environment
    needs: Needs
    files: Mapping[str, str]


class ReproReport(Report):
    """What `repro` prints. `ok`: the outcome is the one that the bundle states."""

    kind: Literal["repro"] = "repro"
    ok: bool
    path: str
    fault: str
    expected: Outcome
    outcome: Outcome
    left: Way
    right: Way
    absolute: float
    relative: float
    device: str
    nodes: tuple[str, ...]
    rows: Mapping[str, str]
    own_rows: bool
    runs: int
    worst: Worst | None
    same_environment: bool
