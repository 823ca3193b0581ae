"""What the runtime asks of a device.

Structural protocols: a backend satisfies them without importing this file. Addresses are integers; a device owns the memory it hands out. Memory may be out of
the host's reach: it is read and written by copies, and a `Window` is host memory that stands for it. On the host the window is the memory itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from ostinato.ir.step import KernelCall, StepKind
from ostinato.ir.step import Launch as LaunchShape
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import PackSource

__all__ = [
    "Buffer",
    "CapturedNode",
    "Device",
    "DeviceEvent",
    "DeviceStream",
    "Graph",
    "Launch",
    "OrderedDevice",
    "ResolvedStep",
    "Ring",
    "Table",
    "WeightSource",
    "Window",
]


class Window(Protocol):
    """Host memory that stands for a buffer of a device."""

    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A writable numpy array over the host's bytes at `offset`; keeps them alive."""
        ...

    def upload(self, first: int, stop: int) -> None:
        """Submits the copy of bytes [first, stop) to the device, in the order of its stream. Nothing where the window is the memory."""
        ...

    def download(self, first: int, stop: int) -> None:
        """Submits the copy back: the bytes are there when the stream, or a table of it, has finished."""
        ...

    def ring(self, first: int, stop: int, slots: int) -> Ring:
        """So many slots for bytes [first, stop) of the device's memory."""
        ...


class Ring(Protocol):
    """Slots of host memory for the same bytes of a buffer, as they were at different times."""

    def fetch(self, slot: int) -> None:
        """Submits the copy of the bytes to a slot, in the order of the window's stream."""
        ...

    def wait(self, slot: int) -> None:
        """Returns when the slot has what was last fetched to it, whatever was submitted since."""
        ...

    def view(self, slot: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """A numpy array over a slot."""
        ...


class DeviceStream(Protocol):
    """An order in which a device works, beside the orders of others."""

    @property
    def handle(self) -> int:
        """As the driver knows it; 0 is the default one of a device."""
        ...

    def synchronize(self) -> None: ...


class DeviceEvent(Protocol):
    """A place in the order of a stream."""

    def record(self, stream: DeviceStream | None = None) -> None:
        """From now on it is the place behind all that the stream has now."""
        ...

    def wait(self, stream: DeviceStream | None = None) -> None:
        """What is submitted to the stream from now on runs after that place."""
        ...

    def synchronize(self) -> None:
        """Returns when the device has come there."""
        ...

    def milliseconds_to(self, later: Any) -> float:
        """From this place to another one behind it, both made with `timing` and reached."""
        ...


class Buffer(Protocol):
    """Memory of a device, valid until `free` or until the last reference is gone."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def freed(self) -> bool:
        """Whether `free` was called."""
        ...

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """A copy of the values at `offset`, after what the device does to them now is done."""
        ...

    def write(self, values: Array, offset: int = 0) -> None:
        """Puts the bytes of a contiguous array at `offset`; done on return."""
        ...

    def fill(self, value: int, offset: int = 0, nbytes: int = -1) -> None:
        """Sets bytes [offset, offset + nbytes) (-1: to the end) to one value; done on return."""
        ...

    def window(self, stream: DeviceStream | None = None) -> Window:
        """The host's window on this memory, whose copies go in the order of a stream of its device."""
        ...

    def free(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step with addresses: what a device turns into one entry of its step table. An absent operand is (0, 0); `launch` is the shape of a GPU's."""

    node: str
    kind: StepKind
    kernel: str
    operands: tuple[tuple[int, int], ...]
    params: tuple[int | float, ...]
    lane: int = 0
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    launch: LaunchShape | None = None


class CapturedNode(Protocol):
    """A node of a captured graph, read back: what the driver says will run."""

    @property
    def type(self) -> str:
        """ "kernel", "copy", "fill" or another kind of node."""
        ...

    @property
    def function(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def arguments(self) -> tuple[bytes, ...] | None:
        """The bytes of each argument; None where the driver or the kernel does not tell."""
        ...

    @property
    def to(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def value(self) -> int: ...


class Graph(Protocol):
    """Captured steps, ready to be replayed as they are.

    Beside what was read back it tells what the table it was captured of must have recorded: the address of the table's status word, and for every step of the
    table the handle of its kernel's function (0 where it launches none of ours) and the number of its nodes.
    """

    @property
    def status(self) -> int: ...
    @property
    def functions(self) -> tuple[int, ...]: ...
    @property
    def node_counts(self) -> tuple[int, ...]: ...

    @property
    def node_count(self) -> int: ...
    @property
    def nodes(self) -> Sequence[CapturedNode]: ...
    @property
    def edges(self) -> Sequence[tuple[int, int]]:
        """(from, to) by index in `nodes`."""
        ...

    @property
    def early_edges(self) -> Sequence[tuple[int, int]]:
        """Those of `edges` that start the later kernel while the earlier one still runs: it waits by itself."""
        ...

    def enqueue(self) -> None:
        """Submits one replay in the order of the stream it was captured on."""
        ...

    def release(self) -> None: ...


class Table(Protocol):
    """A loaded step table."""

    @property
    def status_bytes(self) -> int:
        """Device memory of its own, through which its kernels report."""
        ...

    def enqueue(self, first: int = 0, count: int = -1) -> None:
        """Submits steps [first, first + count) (-1: to the end) in one native call, without the GIL. They may not be done on return."""
        ...

    def finish(self) -> None:
        """Waits for what was submitted, graphs of this table included, and raises typed errors that name the node."""
        ...

    def run(self, first: int = 0, count: int = -1) -> None:
        """`enqueue` and `finish`."""
        ...

    def capture(self, first: int = 0, count: int = -1) -> Graph:
        """The steps as a graph; nothing runs. For devices that capture."""
        ...


class Launch(Protocol):
    """One kernel with its parameters, run on operands that may differ from call to call. Threads may share it."""

    def run(self, operands: tuple[tuple[int, int], ...], stream: DeviceStream | None = None) -> None:
        """One native call, without the GIL, that allocates nothing; raises typed errors that name the node. An absent operand is (0, 0).

        It runs in the order of the stream, of the device's default one where that is None, and may not be done on return.
        """
        ...


class Device(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str:
        """The kernel unit of a CPU, the architecture of a GPU."""
        ...

    @property
    def target(self) -> Target:
        """The rows that it runs: what programs for it are lowered for."""
        ...

    @property
    def captures(self) -> bool:
        """Whether its tables can be captured."""
        ...

    @property
    def replay_doubt(self) -> str:
        """Why replays of what is captured may be wrong, in a sentence; "" where nothing is known against them."""
        ...

    @property
    def launches(self) -> int:
        """How many launches ran so far."""
        ...

    @property
    def free_bytes(self) -> int | None:
        """Bytes that it could give now; None where they are not told."""
        ...

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> Buffer:
        """Memory; raises `CapacityError` with the bytes asked for when there is none."""
        ...

    def open_stream(self) -> DeviceStream | None:
        """An order of work of its own; None where the device works while it is called."""
        ...

    def make_table(self, steps: Sequence[ResolvedStep], stream: DeviceStream | None = None) -> Table: ...
    def prepare(self, calls: Sequence[KernelCall]) -> None:
        """Makes ready what launches and tables of these calls take, all of it side by side; they do so themselves otherwise, one after the other."""
        ...

    def make_launch(self, call: KernelCall) -> Launch:
        """Raises `LifecycleError` while this thread captures, which is when nothing can be made ready."""
        ...

    def wait(self) -> None:
        """Waits for all work, and asks no launch what it met."""
        ...

    def finish(self, stream: DeviceStream | None = None) -> None:
        """Waits for a stream, None for the default order; raises what launches on it met since somebody last waited."""
        ...

    def synchronize(self) -> None:
        """Waits for all work; raises what launches on any stream met since somebody last waited."""
        ...

    def pack(self, tensor_type: TensorType, address: int, source: PackSource, first_row: int) -> None:
        """Writes `source` as logical rows [first_row, first_row + len(row_index)) of the weight at `address`, in its dtype and layout.

        A vector is a column of rows of one element. Float dtypes convert into one another, blocks dequantise; floats never become blocks (`DTypeError`).
        """
        ...

    def unpack(self, tensor_type: TensorType, address: int) -> Array:
        """The logical values of the weight at `address` as float32: what `pack` wrote, blocks dequantised."""
        ...


class OrderedDevice(Device, Protocol):
    """A device that works while its host goes on."""

    def launch_stream(self, *, non_blocking: bool = False) -> DeviceStream:
        """A stream for launches. `non_blocking`: beside the default order of the device too."""
        ...

    def external_stream(self, handle: int) -> DeviceStream | None:
        """A stream that somebody else made and keeps; None for the handle of the default one."""
        ...

    def make_event(self, *, timing: bool = False) -> DeviceEvent:
        """A place in the order of any of its streams, not recorded yet; with `timing` it knows how long after another one it is."""
        ...

    def stopwatch(self, ticks: int = 0) -> tuple[KernelCall, KernelCall]:
        """Calls of two kernels: one that writes the time of the device, a count of ticks, to its operand (int64), and one without operands that is over so
        many ticks after it began."""
        ...

    def order(self, first: int, then: int) -> None:
        """What is submitted to the stream with the handle `then` from now on runs after what that with the handle `first` has now; 0 is the default order."""
        ...


class WeightSource(Protocol):
    """Where weights come from: a checkpoint, seen by name. A class that derives from it has rows as they lie, nothing to add and nothing to release."""

    def dtype(self, tensor: str) -> DType: ...
    def shape(self, tensor: str) -> tuple[int, ...]: ...
    def row_order(self, tensor: str) -> Array | None:
        """Source row of every logical row (int64), or None for the identity."""
        del tensor
        return None

    def shift(self, tensor: str) -> float:
        """What is added to every stored value, in float32; 0 for nothing."""
        del tensor
        return 0.0

    def map(self, tensor: str) -> Array:
        """The stored bytes, uint8 [nbytes], read-only, not copied."""
        ...

    def release(self, tensor: str) -> None:
        """The bytes have been used: resident pages may go."""
        del tensor
