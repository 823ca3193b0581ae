"""The step record: the contract between planner, runtime and backend.

A step is one kernel launch (or copy, fill, ...) over byte ranges. Steps are ordered within a lane; across lanes only `signals` and `waits` order them.
`early` says of a read that it does not depend on an earlier step of the same run (weights, constants, older state, inputs), so an executor may load it
before it waits. The form of a sync edge is the executor's choice. Steps are data: no pointers, no callables.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from ostinato.ir.errors import PlanError

__all__ = [
    "MOVES",
    "REGION_KINDS",
    "RESERVED_KINDS",
    "WORKSPACE",
    "ByteRange",
    "KernelCall",
    "Launch",
    "Region",
    "Step",
    "StepKind",
    "StepOperand",
    "device_class",
    "is_device_name",
]

REGION_KINDS = ("arena", "weights", "state", "io", "constants")
RESERVED_KINDS = ("symmetric",)
"""Kinds that have a meaning (buffers that several devices address alike, for communication) and no plan of this version."""
WORKSPACE = "#workspace"
"""Value name of a step's workspace operand: no graph value, its bytes mean nothing before and after the step."""


class StepKind(enum.Enum):
    """Kinds of step; `number` is the one in `native/ostinato.h`."""

    LAUNCH = "launch"
    GEMM = "gemm"
    COPY = "copy"
    FILL = "fill"
    COLLECTIVE = "collective"
    CALL = "call"

    @property
    def number(self) -> int:
        return list(StepKind).index(self)


MOVES = frozenset({StepKind.COPY, StepKind.COLLECTIVE})
"""Kinds of step whose operands may lie on other devices than the step's own."""

_DEVICE_NAME = re.compile(r"[a-z][a-z0-9_]*:[0-9]+")


def is_device_name(text: str) -> bool:
    """Whether the text names one device: a class of devices and a number, such as "host:0"."""
    return _DEVICE_NAME.fullmatch(text) is not None


def device_class(name: str) -> str:
    """The class of a named device: "host" of "host:0". Implementation rows are the same for all devices of a class."""
    return name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of memory of one device; prints as "host:0/arena". Raises `PlanError` for a kind or a device name that is none."""

    device: str
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in REGION_KINDS and self.kind not in RESERVED_KINDS:
            raise PlanError(
                f"there is no kind of region {self.kind!r}",
                hint=f"kinds: {', '.join(REGION_KINDS)}; reserved: {', '.join(RESERVED_KINDS)}",
            )
        if not is_device_name(self.device):
            raise PlanError(f"a region lies on a device, {self.device!r} is none", hint='write one like "host:0"')

    def __str__(self) -> str:
        return f"{self.device}/{self.kind}"


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [offset, offset + size) of a region."""

    region: Region
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    def overlaps(self, other: ByteRange) -> bool:
        return self.region == other.region and self.offset < other.end and other.offset < self.end

    def contains(self, other: ByteRange) -> bool:
        return self.region == other.region and self.offset <= other.offset and other.end <= self.end

    def __str__(self) -> str:
        return f"{self.region}[{self.offset}:{self.end}]"


@dataclass(frozen=True, slots=True)
class StepOperand:
    """One operand of a step: the graph value it is, its bytes, and what the step does with them."""

    value: str
    range: ByteRange
    reads: bool
    writes: bool
    early: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch on a GPU: blocks of the grid and threads of a block (x, y, z), and bytes of dynamic shared memory of a block.

    `early`: the kernel may be started while the one before it still runs, because it waits by itself before it touches anything that a step of this run
    writes (`wait_for_earlier` in kernels/device.h); a device that cannot start kernels so starts it when the one before has ended.

    Prints as "4x1x1*256" (blocks, then threads), with "+16384" for the shared bytes and "~" for an early one. Raises `PlanError` for an extent below 1 or
    negative bytes.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    early: bool = False

    def __post_init__(self) -> None:
        if min(*self.grid, *self.block) < 1 or self.shared < 0:
            raise PlanError(f"expected extents of 1 or more and no negative bytes, found {self!r}")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    def __str__(self) -> str:
        shared = f"+{self.shared}" if self.shared else ""
        return f"{'x'.join(map(str, self.grid))}*{self.threads}{shared}{'~' if self.early else ''}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan. `operands` follow the kernel's order; None marks an absent optional operand.

    Operands lie on the step's `device`, but for those of `MOVES`, which carry bytes between devices.
    `launch` is the shape of a launch on a GPU, None elsewhere.
    `waits` and `signals` are event numbers; `node_count` is the number of graph nodes a capture of this step records, but for a vendor's product: how many that
    is follows from the algorithm, which no plan knows.
    `units`, `workers` and `cache_policy` are reserved for tile-level programs.
    """

    node: str
    kind: StepKind
    device: str
    kernel: str
    operands: tuple[StepOperand | None, ...]
    params: tuple[int | float, ...] = ()
    launch: Launch | None = None
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    node_count: int = 1
    units: int | None = None
    workers: tuple[int, int] | None = None
    cache_policy: str | None = None

    @property
    def workspace(self) -> ByteRange | None:
        """Bytes of the workspace operand, if the step has one."""
        for operand in self.operands:
            if operand is not None and operand.value == WORKSPACE:
                return operand.range
        return None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A step without addresses, whose `operands` it only counts: what may run on operands that differ from call to call."""

    node: str
    kernel: str
    params: tuple[int | float, ...]
    operands: int
    kind: StepKind = StepKind.LAUNCH
    launch: Launch | None = None

    @staticmethod
    def of(step: Step) -> KernelCall:
        """What a step of a plan calls."""
        return KernelCall(step.node, step.kernel, step.params, len(step.operands), step.kind, step.launch)
