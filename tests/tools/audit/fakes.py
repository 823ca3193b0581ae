"""A torch and a driver that are none: graphs, tensors and the allocator's snapshot as plain data, put together the way the real ones tell them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.audit import TorchGraphReport, torch_graph
from ostinato.ir.foreign import ForeignArgument, ForeignGraph, ForeignNode

POOL, OTHER_POOL, DEFAULT = (0, 1), (0, 2), (0, 0)
BASE = 0x7F12_0000_0000


def kernel(name: str, *values: Any, hidden: bool = False) -> ForeignNode:
    """A kernel with arguments as a compiler lays them out: ints above 2^32 as pointers, other ints as i32, floats as f32, bytes as they are."""
    arguments: list[ForeignArgument] = []
    offset = 0
    for value in values:
        match value:
            case bytes():
                data = value
            case float():
                data = struct.pack("<f", value)
            case _:
                data = struct.pack("<Q", value) if value >= 1 << 32 else struct.pack("<i", value)
        unit = 8 if len(data) >= 8 else 4
        offset += -offset % unit
        arguments.append(ForeignArgument(offset, data))
        offset += len(data)
    return ForeignNode("kernel", name, None if hidden else tuple(arguments), (4, 1, 1), (128, 1, 1))


@dataclass
class FakeTensor:
    """Floats at an address."""

    address: int
    shape: tuple[int, ...] = (64,)

    def data_ptr(self) -> int:
        return self.address

    def element_size(self) -> int:
        return 4

    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def stride(self) -> tuple[int, ...]:
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))


@dataclass
class FakeGraph:
    """What `torch.cuda.CUDAGraph(keep_graph=True)` has."""

    handle: int
    private: tuple[int, int] = POOL

    def raw_cuda_graph(self) -> int:
        return self.handle

    def pool(self) -> tuple[int, int]:
        return self.private


@dataclass
class FakeDriver:
    """Graphs by handle, and what addresses are."""

    graphs: dict[int, ForeignGraph] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)

    def read(self, handle: int) -> ForeignGraph:
        return self.graphs[handle]

    def memory_kind(self, address: int) -> str:
        return self.kinds.get(address, "")


class FakeAllocator:
    """Segments of 64 KiB by pool, from which blocks are taken in order."""

    def __init__(self) -> None:
        self.segments: list[dict[str, Any]] = []

    def take(self, nbytes: int = 256, pool: tuple[int, int] = DEFAULT, line: str = "") -> int:
        """A live block; its address."""
        segment = next((found for found in self.segments if found["segment_pool_id"] == pool), None)
        if segment is None:
            address = BASE + len(self.segments) * (1 << 24)
            segment = {"device": 0, "address": address, "segment_pool_id": pool, "total_size": 1 << 16, "blocks": []}
            self.segments.append(segment)
        blocks = segment["blocks"]
        place = segment["address"] + sum(block["size"] for block in blocks)
        file, _, number = line.rpartition(":")
        frames = [{"filename": file, "line": int(number), "name": "f"}] if line else []
        blocks.append(
            {"size": nbytes, "requested_size": nbytes, "state": "active_allocated", "address": place, "frames": frames}
        )
        return int(place)

    def free(self, address: int, state: str = "inactive") -> None:
        """The block is nobody's any more."""
        for segment in self.segments:
            for block in segment["blocks"]:
                if block["address"] == address:
                    block["state"] = state

    def release(self, pool: tuple[int, int]) -> None:
        """The segments of a pool go back to the driver."""
        self.segments = [segment for segment in self.segments if segment["segment_pool_id"] != pool]


def chain(*nodes: ForeignNode) -> ForeignGraph:
    """Nodes one after the other, as one stream captures them."""
    return ForeignGraph(nodes, tuple((i, i + 1) for i in range(len(nodes) - 1)))


def audited(
    graph: ForeignGraph,
    memory: FakeAllocator,
    *,
    named: Any = None,
    against: ForeignGraph | None = None,
    kinds: dict[int, str] | None = None,
    pools: Sequence[tuple[int, int]] = (POOL, OTHER_POOL),
) -> TorchGraphReport:
    """The audit of a graph over a snapshot of the allocator as it is now."""
    driver = FakeDriver({1: graph, **({} if against is None else {2: against})}, kinds or {})
    other = None if against is None else FakeGraph(2, pools[1])
    return torch_graph(FakeGraph(1, pools[0]), against=other, named=named, snapshot=memory.segments, driver=driver)
