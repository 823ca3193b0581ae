"""Where torch's caching allocator has its memory, from `torch.cuda.memory_snapshot()`: segments by pool, and the blocks of each with their state.

Captured graphs allocate from a private pool (`CUDAGraph.pool()`), which keeps its segments as long as the graph lives: a block there that is inactive is a
temporary of the graph, and its bytes are the graph's all the same. Everywhere else an inactive block has been freed, and the next tensor may get it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ir.errors import InputError

__all__ = ["DEFAULT_POOL", "Block", "TorchMemory"]

DEFAULT_POOL = (0, 0)
LIVE = "active_allocated"
_WAITING = ("active_pending_free", "active_awaiting_free")


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes [address, address + nbytes) of a segment of a pool. `live`: a tensor has them; `waiting`: freed, and another stream may still use them.
    `allocated_at` is the line that asked for them, where the allocator's history was recorded."""

    address: int
    nbytes: int
    pool: tuple[int, int]
    device: int
    live: bool
    waiting: bool
    allocated_at: str

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.address + self.nbytes


class TorchMemory:
    """The blocks of a snapshot. Raises `InputError` for what is no snapshot."""

    def __init__(self, snapshot: Sequence[Mapping[str, Any]]) -> None:
        try:
            self.blocks = tuple(sorted(_blocks(snapshot), key=lambda block: block.address))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"this is no snapshot of torch's allocator: {error!r}", hint="pass torch.cuda.memory_snapshot()"
            ) from None
        self._starts = [block.address for block in self.blocks]

    def block(self, address: int) -> Block | None:
        """The block that an address lies in."""
        index = bisect_right(self._starts, address) - 1
        return self.blocks[index] if index >= 0 and address < self.blocks[index].end else None

    def is_near(self, address: int) -> bool:
        """Whether an address could have been the allocator's: its blocks are within a few gigabytes of it."""
        index = bisect_right(self._starts, address)
        return any(
            abs(self.blocks[at].address - address) < 1 << 34 for at in (index - 1, index) if 0 <= at < len(self.blocks)
        )


def _blocks(snapshot: Sequence[Mapping[str, Any]]) -> Iterable[Block]:
    for segment in snapshot:
        pool = tuple(segment.get("segment_pool_id", DEFAULT_POOL))
        place = int(segment["address"])
        for block in segment["blocks"]:
            nbytes, state = int(block["size"]), str(block["state"])
            yield Block(
                int(block.get("address", place)),
                nbytes,
                (int(pool[0]), int(pool[1])),
                int(segment.get("device", 0)),
                state == LIVE,
                state in _WAITING,
                _line(block.get("frames") or ()),
            )
            place += nbytes


def _line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The user's line: the innermost one that is Python and not torch's own."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file.endswith(".py") and "/torch/" not in file:
            return f"{file}:{frame.get('line')}"
    return ""
