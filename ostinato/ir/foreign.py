"""A captured graph of somebody else's as the driver tells it: nodes with their arguments as bytes, and edges. Whoever reads graphs satisfies `GraphDriver`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ForeignArgument", "ForeignGraph", "ForeignNode", "GraphDriver", "Word", "short_name", "words_of"]

POINTER = 8
"""Bytes of a pointer."""


@dataclass(frozen=True, slots=True)
class ForeignArgument:
    """One argument of a kernel, by value: its offset among the kernel's parameters, and its bytes."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ForeignNode:
    """A node: "kernel", "memcpy", "memset", "host", "child", "empty", "event wait", "event record", "semaphore signal", "semaphore wait", "mem alloc",
    "mem free", "batch mem op", "conditional", or "type 17" for one that has no name here.

    `name` is a kernel's (readable where it can be made so). `arguments` is None where the driver does not tell them, and for what is no kernel. A memcpy reads
    `source` and writes `to`, a memset writes `to`, an allocation returns `to` and a free takes it; `nbytes` each. `value` is a memset's.
    `child`: the node is part of a graph that another node embeds.
    """

    kind: str
    name: str = ""
    arguments: tuple[ForeignArgument, ...] | None = None
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0
    to: int = 0
    source: int = 0
    nbytes: int = 0
    value: int = 0
    child: bool = False


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """Nodes in the driver's order, and edges (from, to) by index; graphs that nodes embed are in it, each in place of its node."""

    nodes: tuple[ForeignNode, ...]
    edges: tuple[tuple[int, int], ...]


class GraphDriver(Protocol):
    """What reads captured graphs."""

    def read(self, handle: int) -> ForeignGraph:
        """The graph behind a handle, embedded graphs included. Raises `BackendError` for what the driver refuses."""
        ...

    def memory_kind(self, address: int) -> str:
        """ "device", "pinned" (host memory that the driver knows), "managed", or "" for an address that the driver does not know."""
        ...


@dataclass(frozen=True, slots=True)
class Word:
    """Eight bytes of an argument that may be a pointer: the argument's number, the place within it, and the number."""

    argument: int
    offset: int
    value: int


def words_of(arguments: Sequence[ForeignArgument]) -> Iterator[Word]:
    """Every word of the arguments, aligned as a kernel's parameters are: pointers inside of structures among them."""
    for number, argument in enumerate(arguments):
        for start in range(-argument.offset % POINTER, len(argument.data) - POINTER + 1, POINTER):
            yield Word(number, start, int.from_bytes(argument.data[start : start + POINTER], "little"))


def short_name(name: str, width: int = 60) -> str:
    """A kernel's name without return type, template arguments and parameters, as far as it has any."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    kept: list[str] = []
    depth = 0
    for character in text:
        depth += character == "<"
        if not depth and character == "(":
            break
        if not depth:
            kept.append(character)
        depth -= character == ">"
    found = "".join(kept).strip() or name
    return found if len(found) <= width else f"{found[: width - 3]}..."
