"""What a repro bundle says of itself (`repro.json`), and what `ostinato repro` says of a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ostinato.tools.report import Number, Report

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
    "required_text",
]

FORMAT = "ostinato-repro"
VERSION = 1
Way = Literal["reference", "eager", "planned", "guarded", "captured", "saved"]
"""A mode, or the values that the bundle has saved as right."""
Outcome = Literal["mismatch", "agreement", "not repeated"]
"""Left and right differ; they agree; right differs from itself."""


def required_text(absolute: float, relative: float) -> str:
    """How near two values must be, for people."""
    if absolute == relative == 0:
        return "bit for bit"
    return f"within {absolute:.3g}" + (f" + {relative:.3g} * |left|" if relative else "")


class Worst(Report):
    """The largest difference: the output, where in it, and both values. A NaN on one side alone counts as infinite."""

    output: str
    index: tuple[int, ...]
    left: Number
    right: Number
    difference: Number

    def __str__(self) -> str:
        return f"{self.difference:.3g} at {self.output}{list(self.index)}"


class Environment(Report):
    """Where a bundle was made: `card` is the device as its driver or system names it, `vendor_library` multiplies matrices, `compiler` made the kernels."""

    library: str
    device: str
    isa: str
    target: str
    platform: str
    python: str
    numpy: str
    card: str = ""
    driver: str = ""
    runtime: str = ""
    vendor_library: str = ""
    compiler: str = ""


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

    def __str__(self) -> str:
        stated = "as the bundle states" if self.ok else f"the bundle states {self.expected}"
        lines = [f"{self.left} / {self.right}: {self.outcome}, {stated} ({', '.join(self.nodes)}, on {self.device})"]
        if self.worst is not None:
            lines.append(f"largest difference {self.worst}: {self.worst.left:.6g} / {self.worst.right:.6g}")
        return "\n".join(lines)
