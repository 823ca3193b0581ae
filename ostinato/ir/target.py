"""What a device offers, as data: implementation rows and the target that holds them.

Passes choose among the rows of a `Target`; the planner asks the chosen row for workspace, in-place operands and the kernel call. Neither imports a
backend. A row reads its operands through a `CallSite`, never the graph.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Protocol

from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Exactness, Verdict
from ostinato.ir.graph import Node
from ostinato.ir.opdef import Sizes
from ostinato.ir.selection_policy import Gated, PassOmission, SelectionPolicy
from ostinato.ir.step import Launch, StepKind
from ostinato.ir.types import TensorType, is_contiguous

__all__ = ["ANY", "NATURAL", "CallSite", "Evidence", "Extents", "Impl", "Level", "Target"]

NATURAL = "row"
"""How a row's list of layouts spells the natural one, whatever the names of the axes."""


class Level(enum.IntEnum):
    """Implementation levels; they share one contract and one oracle."""

    REFERENCE = 0
    READABLE = 1
    TUNED = 2
    VENDOR = 3


_LEVELS = {level.name.lower(): level for level in Level}


@dataclass(frozen=True, slots=True)
class CallSite:
    """A node with the types of its operands and results.

    `strides` are each operand's strides in elements as seen through views (None for packed or absent operands); an operand is `contiguous` when they are the
    natural ones. `offsets` are the elements before each operand's first one in its aligned storage (empty: none). `counted` says that the leading extent is
    only partly valid in a run (`Graph.extents`).
    """

    node: Node
    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    counted: bool = False
    offsets: tuple[int, ...] = ()

    def operand(self, index: int) -> TensorType:
        """Type of a present operand."""
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise IndexError(f"operand {index} of {self.node.op} is absent")
        return found

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def offset(self, index: int) -> int:
        """Elements before an operand's first one in its aligned storage."""
        return self.offsets[index] if index < len(self.offsets) else 0

    @property
    def strided(self) -> tuple[int, ...]:
        """Places of the operands that are not contiguous."""
        seen = enumerate(zip(self.operands, self.strides, strict=True))
        return tuple(
            index
            for index, (tensor, strides) in seen
            if tensor is not None and strides is not None and not is_contiguous(tensor, strides)
        )

    def reading(self, strides: Mapping[str, tuple[int, ...] | None]) -> CallSite:
        """The call with values that lie otherwise, by name; the others lie as they do here."""
        pairs = zip_longest(self.node.operands, self.strides)
        return replace(self, strides=tuple(strides.get(name or "", own) for name, own in pairs))

    def integer(self, attr: str) -> int:
        value = self.node.attrs[attr]
        assert isinstance(value, int)
        return value

    def real(self, attr: str) -> float:
        value = self.node.attrs[attr]
        assert isinstance(value, int | float)
        return float(value)

    def boolean(self, attr: str) -> bool:
        value = self.node.attrs[attr]
        assert isinstance(value, bool)
        return value

    def text(self, attr: str) -> str:
        value = self.node.attrs[attr]
        assert isinstance(value, str)
        return value


def _no_workspace(site: CallSite) -> int:
    del site
    return 0


def _no_layout(site: CallSite) -> str | None:
    del site
    return None


Range = tuple[int, int | None]
"""Inclusive bounds; None: no upper one."""
_ALL: Range = (0, None)


@dataclass(frozen=True, slots=True)
class Extents:
    """The sizes of a call (`OpDef.sizes`) that a row is for: rows, sequences of a batch, and rows of a sequence, each within bounds that include their ends."""

    rows: Range = _ALL
    batch: Range = _ALL
    sequence: Range = _ALL

    @property
    def is_bounded(self) -> bool:
        """Whether another row must serve some sizes."""
        return self != ANY

    def refusal(self, sizes: Sizes) -> str | None:
        """Which bound a call does not keep, None when it keeps all."""
        for what, (low, high) in (("rows", self.rows), ("batch", self.batch), ("sequence", self.sequence)):
            found = getattr(sizes, what)
            if found < low or (high is not None and found > high):
                bounds = f"{low} and more" if high is None else f"at most {high}" if not low else f"{low} to {high}"
                noun = {"rows": "rows", "batch": "sequences", "sequence": "rows of a sequence"}[what]
                return f"the row is for {bounds} {noun}, found {found}"
        return None


ANY = Extents()
"""All sizes."""


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of an operator on one class of device, whose `architectures` it names ("host" for the CPU).

    `operands` lists the kernel's operands by name: names of the schema's operands and results, "count" (the valid-rows input, absent when the site has
    none), "workspace", or "-" (always absent). `accepts` returns None or the reason for refusing. `layouts` maps names of operands and results to every
    layout they may have, the preferred one first (`NATURAL` may be among them); a name that is not listed has its natural layout. `result_layout` is a
    layout the row would like for its first result when its consumers take it (None: natural). `workspace` is bytes, a pure function of the site.
    `in_place` pairs (result name, operand name): the result may take the operand's bytes when this is its last use. `launch` is the shape of the launch, a
    pure function of the site too; a row of the host has none. `kind` is that of its steps: a launch, or a product by the vendor's library.
    `extents` are the sizes that it is for, as data; `accepts` judges the rest. `exactness` is what its results are equal to. `ahead` names operands that its
    kernel may read while the step before still runs, or takes for constant as long as it lives, which is lawful where no step of the run writes them: a kernel
    that is started early waits before it touches anything else.
    """

    op: str
    name: str
    level: Level
    architectures: tuple[str, ...]
    operands: tuple[str, ...]
    kernel: Callable[[CallSite], str]
    params: Callable[[CallSite], tuple[int | float, ...]]
    accepts: Callable[[CallSite], str | None]
    layouts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    result_layout: Callable[[CallSite], str | None] = _no_layout
    workspace: Callable[[CallSite], int] = _no_workspace
    in_place: tuple[tuple[str, str], ...] = ()
    launch: Callable[[CallSite], Launch] | None = None
    kind: StepKind = StepKind.LAUNCH
    exactness: Exactness = Exactness.TOLERANCE
    ahead: tuple[str, ...] = ()
    extents: Extents = ANY
    strided: frozenset[str] = frozenset()
    """Operands that may be strided views; all others must be contiguous."""
    priority: int = 0

    @property
    def identity(self) -> str:
        return f"{self.op}@{self.name}"

    def launch_of(self, site: CallSite) -> Launch | None:
        """The shape of the launch at a site, None for a row that has none."""
        return None if self.launch is None else self.launch(site)

    def layouts_of(self, name: str) -> tuple[str, ...]:
        """The layouts that an operand or result may have, the preferred one first."""
        return next((layouts for key, layouts in self.layouts if key == name), (NATURAL,))


class Evidence(Protocol):
    """The records that hold on one device, as selection asks for them. A pure function of the row and the site: asked twice, it says the same."""

    def verdict(self, row: Impl, site: CallSite) -> Verdict: ...

    def gate(self, policy: Gated) -> Verdict:
        """What the whole-model runs say of a selection policy, as it is defined now, or of leaving a pass out: `VALIDATED` where it passed and may be a
        default."""
        ...


def _row_text(value: object) -> str:
    """A field of a row as text that is the same in every process."""
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)


@dataclass(frozen=True, slots=True)
class Target:
    """A device class and the device a plan is made for: its name, the rows it has, `device` ("host:0"), alignment in bytes of every planned buffer.

    `evidence` are the records that say which rows are right there; without them (None) rows are taken on trust, as a target that is made by hand is.
    `preferences` are the selection policies that are known of its rows, `omissions` the passes of which it is known that programs may do better without.
    """

    name: str
    rows: tuple[Impl, ...]
    device: str
    alignment: int = 256
    evidence: Evidence | None = None
    preferences: tuple[SelectionPolicy, ...] = ()
    omissions: tuple[PassOmission, ...] = ()

    @property
    def lowest(self) -> Level:
        """The level of the plainest rows there are: what is left where no row is validated. `REFERENCE` where the numpy references run in plans."""
        return min((row.level for row in self.rows), default=Level.READABLE)

    @property
    def rows_hash(self) -> str:
        """Hexadecimal sha256 over the rows in their order: all that they say as data, and the names of the functions that say the rest."""
        texts = (f"{spec.name}={_row_text(getattr(row, spec.name))}" for row in self.rows for spec in fields(row))
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def rows_for(self, op: str) -> tuple[Impl, ...]:
        return tuple(row for row in self.rows if row.op == op)

    def ranked(self, op: str) -> tuple[Impl, ...]:
        """The rows of an operator in order of preference: higher level, then higher priority, then the order of the table; never because a row is newest."""
        return tuple(sorted(self.rows_for(op), key=lambda row: (-row.level, -row.priority)))

    def forced(self, op: str, wanted: str, node: str | None = None) -> tuple[Impl, ...]:
        """The row of that name, or the rows of that level, in order of preference. Raises `ConfigError`, naming those there are, where there is none."""
        rows = self.ranked(op)
        found = tuple(row for row in rows if row.name == wanted)
        found = found or tuple(row for row in rows if row.level is _LEVELS.get(wanted))
        if not found:
            known = ", ".join(f"{row.name} ({row.level.name.lower()})" for row in rows) or "none"
            kind = "level" if wanted in _LEVELS else "row"
            oracle = wanted == Level.REFERENCE.name.lower() and self.lowest > Level.REFERENCE
            raise ConfigError(
                f"{self.name} has no {kind} {wanted!r} of {op}, which is forced"
                + (
                    ": the reference is the oracle on the host and never runs in a plan of this device"
                    if oracle
                    else ""
                ),
                node=node,
                hint=f"{'readable is the plainest level here; ' if oracle else ''}rows of {op}: {known}",
            )
        return found

    def row(self, op: str, name: str) -> Impl | None:
        return next((row for row in self.rows if row.op == op and row.name == name), None)
