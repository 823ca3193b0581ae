"""What an operator is: the half of the operator table that `ir` owns.

One `OpDef` holds all that is true of an operator on every device: schema, result types, effect, aliasing, numpy reference, samples, tolerance, cost.
What is true of one implementation (which layouts it takes, its kernel, its workspace, in-place operands) is an `Impl` row and lives in a backend.
References see float32 arrays for f16, bf16 and block operands (float64 for f64) and return arrays that the interpreter rounds once to the result dtype.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import numpy as np

from ostinato.ir.checks import shown
from ostinato.ir.derivative import Derivative
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.types import Array, Attr, DType, TensorType

__all__ = [
    "Attr",
    "AttrSpec",
    "Cost",
    "Effect",
    "OpDef",
    "OperandSpec",
    "OperandTypes",
    "Sample",
    "SampleOperand",
    "Sizes",
    "Tolerance",
    "View",
    "ViewRule",
    "complete_attributes",
    "rows_of_first",
]

OperandTypes = Sequence[TensorType | None]
"""Types of a node's operands in schema order; None for an absent optional operand."""


class Effect(enum.Enum):
    """What else a node does. The order search never permutes `ORDERED` nodes."""

    PURE = "pure"
    STATE = "state"
    RANDOM = "random"
    ORDERED = "ordered"


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """An operand of the schema. Optional operands come last and may be absent."""

    name: str
    dtypes: frozenset[DType]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """An attribute of the schema; `default` None means required."""

    name: str
    type: type
    default: Attr | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Result 0 shares the bytes of the first operand: strides in elements, and the offset in elements from that operand's own first element."""

    offset: int
    strides: tuple[int, ...]


class ViewRule(Protocol):
    """Where a view lies in its operand.

    `strides` are the operand's strides in elements as seen through earlier views; None means those of its type. Chains of views are composed by handing
    each rule the strides of the one before and adding the offsets. Raises `LayoutError` when no strides describe the view.
    """

    def __call__(
        self, operands: OperandTypes, attrs: Mapping[str, Attr], strides: tuple[int, ...] | None = None, /
    ) -> View: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations and bytes read plus written, of one execution at full extents."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - reference| <= absolute + relative * |reference|, with the reason for these numbers. (0, 0) means bit-exact."""

    absolute: float
    relative: float
    reason: str

    @property
    def is_exact(self) -> bool:
        return self.absolute == 0 and self.relative == 0

    def for_result(self, dtype: DType) -> Tolerance:
        """The tolerance of a result of that dtype: one unit in the last place of f16 or bf16 on top, since both sides round once. Exact stays exact."""
        if self.is_exact or dtype not in _LAST_PLACE:
            return self
        smallest, unit = _LAST_PLACE[dtype]
        return Tolerance(
            self.absolute + smallest,
            self.relative + unit,
            f"{self.reason}; one unit in the last place of {dtype.value}",
        )


# smallest step near zero, largest relative step
_LAST_PLACE = {DType.F16: (2.0**-24, 2.0**-10), DType.BF16: (2.0**-133, 2.0**-7)}


@dataclass(frozen=True, slots=True)
class SampleOperand:
    """An operand of a sample: a type, and its values where random normal numbers would not do (ids, positions, tables)."""

    type: TensorType
    data: Array | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an operator. `error` is the exception family an invalid sample must raise; None for a valid sample."""

    operands: tuple[SampleOperand | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    error: type[OstinatoError] | None = None


def _is_word(value: object) -> TypeGuard[int]:
    """A plain integer that a kernel's parameter holds."""
    return type(value) is int and -(2**63) <= value < 2**63


def complete_attributes(op: str, specs: Sequence[AttrSpec], given: Mapping[str, Attr]) -> dict[str, Attr]:
    """The attributes in schema order with defaults filled in; raises `ConfigError` for an unknown, missing or wrongly typed one."""
    if unknown := sorted(set(given) - {spec.name for spec in specs}):
        raise ConfigError(f"{op}: unknown attributes {unknown}", hint=f"{op} has {[spec.name for spec in specs]}")
    complete: dict[str, Attr] = {}
    for spec in specs:
        value = given.get(spec.name, spec.default)
        if value is None:
            raise ConfigError(f"{op}: attribute {spec.name} is missing", hint=f"it is required, a {spec.type.__name__}")
        if spec.type is float and _is_word(value):
            value = float(value)
        items = value if isinstance(value, tuple) else (value,) if spec.type is int else ()
        if type(value) is not spec.type or not all(_is_word(item) for item in items):
            raise ConfigError(
                f"{op}: attribute {spec.name} expected {spec.type.__name__}, found {shown(value)}",
                hint="pass a plain Python value; integers have 64 bits",
            )
        complete[spec.name] = value
    return complete


def _bytes_only(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    del attrs
    types = [*(t for t in operands if t is not None), *results]
    return Cost(0, sum(t.nbytes for t in types))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a call is, as the ranges of rows and policies count it: `rows` of work, shared out among `batch` sequences, `sequence` each on average."""

    rows: int
    batch: int = 1

    @property
    def sequence(self) -> int:
        return -(-self.rows // max(1, self.batch))


def rows_of_first(operands: OperandTypes) -> Sizes:
    """The product of all axes of the first operand but the last; one row for a vector or a scalar."""
    first = operands[0]
    return Sizes(1 if first is None else math.prod(first.static_shape[:-1]))


@dataclass(frozen=True, slots=True)
class OpDef:
    """One operator.

    `results` names the results; a trailing "*" ("y*") means any number. `infer` returns the result types or raises a typed error that says expected and
    found. Aliasing is declared here and nothing else aliases: with a `view` rule, result 0 lies in the bytes of its operand; `must_alias` lists (result,
    operand) pairs that are the same bytes, and such an operand has no later reader; where it is optional, it is absent together with its result, which is
    among the last ones. `extent` names the operand or result whose leading axis counts the rows of work (the first result if empty). `sizes` says how many rows
    a call has, and of how many sequences. `cost` counts bytes alone unless given. `derivative` makes the nodes of its operands' gradients; None
    where operands have none that could be wanted (integers, tables).
    """

    name: str
    summary: str
    operands: tuple[OperandSpec, ...]
    results: tuple[str, ...]
    infer: Callable[[OperandTypes, Mapping[str, Attr]], tuple[TensorType, ...]]
    reference: Callable[[Sequence[Array | None], Mapping[str, Attr], Sequence[TensorType]], tuple[Array, ...]]
    samples: Callable[[np.random.Generator], Iterator[Sample]]
    tolerance: Tolerance
    attrs: tuple[AttrSpec, ...] = ()
    effect: Effect = Effect.PURE
    view: ViewRule | None = None
    must_alias: tuple[tuple[int, int], ...] = ()
    extent: str = ""
    sizes: Callable[[OperandTypes], Sizes] = rows_of_first
    cost: Callable[[OperandTypes, Sequence[TensorType], Mapping[str, Attr]], Cost] = _bytes_only
    derivative: Derivative | None = None

    def attributes(self, given: Mapping[str, Attr]) -> dict[str, Attr]:
        """All attributes in schema order; see `complete_attributes`."""
        return complete_attributes(self.name, self.attrs, given)

    @property
    def is_view(self) -> bool:
        return self.view is not None

    @property
    def only_updates(self) -> bool:
        """Whether every result is an operand updated, so that a call has nothing else to give."""
        return len(self.must_alias) == len(self.results)

    def place(self, operand: str) -> int:
        """Which operand has that name; raises `KeyError` where none has."""
        for index, spec in enumerate(self.operands):
            if spec.name == operand:
                return index
        raise KeyError(f"{self.name} has no operand {operand}")

    def leading(self, operands: OperandTypes, results: Sequence[TensorType]) -> TensorType | None:
        """What has the rows of work along its leading axis (`extent`); None where it is an operand that is absent."""
        if not self.extent:
            return results[0]
        for spec, tensor in zip(self.operands, operands, strict=True):
            if spec.name == self.extent:
                return tensor
        return results[next(index for index in range(len(results)) if self.result_name(index) == self.extent)]

    def aliased(self, operands: Sequence[object]) -> tuple[tuple[int, int], ...]:
        """The pairs of `must_alias` that a node with these operands (None where absent) has."""
        return tuple(pair for pair in self.must_alias if pair[1] < len(operands) and operands[pair[1]] is not None)

    def result_name(self, index: int) -> str:
        """The schema's name of result `index`, without its star: "y" for every result of "y*"."""
        return self.results[min(index, len(self.results) - 1)].removesuffix("*")
