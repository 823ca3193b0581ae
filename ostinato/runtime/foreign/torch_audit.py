"""The audit of a torch graph: nodes as the driver tells them, against the allocator's blocks as they are now.

What is certain is an error: a pointer into freed memory, a copy from pageable host memory, two nodes without an order of which one is known to write what the
other uses. What is likely is a warning. Where nobody can know (which of its pointers a kernel writes) a note says so, and nothing is guessed.

An address that was freed and is another tensor's now looks like any live block: the allocator keeps no record of it. Naming the tensors that the graph should
use (`named`) finds that too: a pointer that leads to none of them, and a tensor that the graph does not use.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from ostinato.ir.foreign import ForeignGraph, ForeignNode, GraphDriver, short_name, words_of
from ostinato.runtime.foreign.hazards import missing_edges
from ostinato.runtime.foreign.numbers import real_of
from ostinato.runtime.foreign.report import (
    GraphNodeEntry,
    GraphPointer,
    GraphScalar,
    TorchFinding,
    TorchGraphReport,
    Where,
)
from ostinato.runtime.foreign.torch_memory import DEFAULT_POOL, Block, TorchMemory

__all__ = ["NamedBytes", "audit_graph"]

KEEP = "keep a reference to the tensor as long as the graph is replayed, and give it new values in place (static.copy_(new))"
_TENSOR_MAP = 128
"""Bytes of a CUtensorMap."""
_LEAST, _MOST = 1 << 36, 1 << 47
"""Between these lie the addresses that CUDA hands out on 64-bit systems."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is said of nodes of some kinds."""

    kinds: tuple[str, ...]
    severity: Literal["error", "warning", "note"]
    kind: str
    message: str
    hint: str


_RULES = (
    _Rule(
        ("mem alloc", "mem free"),
        "warning",
        "allocation inside of the graph",
        "{} nodes allocate or free memory of the driver's own pool in every replay, beside torch's allocator",
        "allocate in front of the capture; a graph that allocates and does not free cannot be launched twice",
    ),
    _Rule(
        ("host",),
        "warning",
        "host function",
        "{} nodes call a function of the host in every replay",
        "what it does with Python objects or data of the capture is what it did then; do it outside of the graph",
    ),
    _Rule(
        ("event wait", "semaphore wait"),
        "warning",
        "waits for something outside",
        "{} nodes wait for an event or semaphore of another graph or stream",
        "whoever signals it must do so before every replay; order replays by streams instead",
    ),
    _Rule(
        ("conditional", "batch mem op"),
        "note",
        "not looked into",
        "{} nodes have bodies or operations that are not read",
        "audit what they run where it is captured by itself",
    ),
)


@dataclass(frozen=True, slots=True)
class NamedBytes:
    """A tensor that the caller named: bytes [address, address + nbytes) of its storage."""

    name: str
    address: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.address + self.nbytes


def audit_graph(
    graph: ForeignGraph,
    driver: GraphDriver,
    memory: TorchMemory,
    pool: tuple[int, int] | None,
    named: Sequence[NamedBytes] = (),
) -> TorchGraphReport:
    """Audits a graph of a private pool (None: not known, so that every private pool counts as its own)."""
    places = _Places(driver, memory, pool, named, graph)
    nodes = tuple(_entry(index, node, places) for index, node in enumerate(graph.nodes))
    findings = [
        *_pointer_findings(nodes),
        *_node_findings(graph.nodes),
        *_named_findings(nodes, named),
        *missing_edges(graph, nodes),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    held = sum(block.nbytes for block in memory.blocks if block.pool == pool)
    return TorchGraphReport(pool=pool, pool_bytes=held, edges=len(graph.edges), nodes=nodes, findings=tuple(findings))


class _Names:
    """The caller's tensors by address: of those that hold one, the first that was given. Between two neighbouring ends that is the same tensor everywhere."""

    def __init__(self, named: Sequence[NamedBytes]) -> None:
        order = sorted((tensor.address, place) for place, tensor in enumerate(named) if tensor.nbytes)
        self._ends = sorted({end for tensor in named if tensor.nbytes for end in (tensor.address, tensor.end)})
        self._names: list[str] = []
        holding: list[int] = []
        begun = 0
        for address in self._ends:
            while begun < len(order) and order[begun][0] <= address:
                heappush(holding, order[begun][1])
                begun += 1
            while holding and named[holding[0]].end <= address:
                heappop(holding)
            self._names.append(named[holding[0]].name if holding else "")

    def of(self, address: int) -> str:
        """The name of the tensor that has an address, "" where none has."""
        index = bisect_right(self._ends, address) - 1
        return self._names[index] if index >= 0 else ""


class _Places:
    """What lies at an address."""

    def __init__(
        self,
        driver: GraphDriver,
        memory: TorchMemory,
        pool: tuple[int, int] | None,
        named: Sequence[NamedBytes],
        graph: ForeignGraph,
    ) -> None:
        self._driver, self._memory, self._pool = driver, memory, pool
        self._names = _Names(named)
        self._own = [(node.to, node.to + node.nbytes) for node in graph.nodes if node.kind == "mem alloc"]
        self._kinds: dict[int, str] = {}

    def of(self, address: int, *, certain: bool) -> tuple[Where, Block | None] | None:
        """Where an address leads, and the block there; None for a number that is no address (never so where it is `certain` that it is one)."""
        block = self._memory.block(address)
        if block is not None:
            return self._of_block(block), block
        if any(start <= address < end for start, end in self._own):
            return "own pool", None
        if not certain and not _LEAST <= address < _MOST:
            return None
        if address not in self._kinds:
            self._kinds[address] = self._driver.memory_kind(address)
        match self._kinds[address]:
            case "device":
                return "device", None
            case "managed":
                return "managed", None
            case "pinned":
                return "pinned host", None
        if self._memory.is_near(address):
            return "unmapped", None
        return ("pageable host", None) if certain else None

    def name(self, address: int) -> str:
        """The tensor of the caller's that has an address."""
        return self._names.of(address)

    def _of_block(self, block: Block) -> Where:
        private = block.pool != DEFAULT_POOL
        if block.pool == self._pool or (private and self._pool is None):
            return "own pool"
        if block.live:
            return "live"
        if block.waiting:
            return "waiting"
        return "other pool" if private else "freed"


def _entry(index: int, node: ForeignNode, places: _Places) -> GraphNodeEntry:
    pointers: list[GraphPointer] = []
    scalars: list[GraphScalar] = []
    if node.kind == "kernel":
        taken: set[tuple[int, int]] = set()
        for word in words_of(node.arguments or ()):
            found = places.of(word.value, certain=False)
            if found is not None:
                taken.add((word.argument, word.offset))
                pointers.append(_pointer(word.argument, word.offset, word.value, found, places, "unknown"))
        scalars += _scalars(node, taken)
    else:
        sides = ((node.source, "reads"), (node.to, "writes")) if node.kind != "mem free" else ((node.to, "unknown"),)
        for address, access in sides:
            if address and (found := places.of(address, certain=True)):
                pointers.append(_pointer(-1, 0, address, found, places, access))
    return GraphNodeEntry(
        index=index,
        kind=node.kind,
        name=node.name,
        grid=node.grid,
        block=node.block,
        nbytes=node.nbytes,
        readable=node.kind != "kernel" or node.arguments is not None,
        pointers=tuple(pointers),
        scalars=tuple(scalars),
    )


def _pointer(
    argument: int, offset: int, address: int, found: tuple[Where, Block | None], places: _Places, access: str
) -> GraphPointer:
    where, block = found
    return GraphPointer(
        argument=argument,
        offset=offset,
        address=address,
        where=where,
        block=None if block is None else block.address,
        block_bytes=0 if block is None else block.nbytes,
        live=block is not None and block.live,
        private=block is not None and block.pool != DEFAULT_POOL,
        name=places.name(address),
        allocated_at="" if block is None else block.allocated_at,
        access="reads" if access == "reads" else "writes" if access == "writes" else "unknown",
    )


def _scalars(node: ForeignNode, pointers: set[tuple[int, int]]) -> Iterator[GraphScalar]:
    """Every other piece of a kernel's arguments: whole ones of up to 8 bytes, and the words of structures."""
    for number, argument in enumerate(node.arguments or ()):
        size = len(argument.data)
        for start in range(0, size, 8):
            if (number, start) not in pointers:
                data = argument.data[start : min(start + 8, size)]
                yield GraphScalar(
                    argument=number,
                    offset=start,
                    nbytes=len(data),
                    integer=int.from_bytes(data, "little", signed=True),
                    real=real_of(data),
                )


# findings


def _pointer_findings(nodes: Sequence[GraphNodeEntry]) -> Iterator[TorchFinding]:
    """One finding a block, with all the nodes that use it."""
    used: dict[tuple[Where, int], list[tuple[GraphNodeEntry, GraphPointer]]] = {}
    for node in nodes:
        for pointer in node.pointers:
            used.setdefault((pointer.where, pointer.block or pointer.address), []).append((node, pointer))
    for (where, _), uses in used.items():
        indices = tuple(dict.fromkeys(node.index for node, _ in uses))
        node, pointer = uses[0]
        who = f"{short_name(node.name) or node.kind}"
        at = f"{pointer.address:#x}"
        block = (
            "" if pointer.block is None else f", block [{pointer.block:#x}, {pointer.block + pointer.block_bytes:#x})"
        )
        by = f"{pointer.name or at}{block}" + (f", allocated at {pointer.allocated_at}" if pointer.allocated_at else "")
        match where:
            case "freed" | "waiting":
                again = "as soon as another stream is done with it, " if where == "waiting" else ""
                yield TorchFinding(
                    severity="error",
                    kind="freed memory",
                    nodes=indices,
                    message=f"{who} uses {by}, which was freed: {again}the allocator gives it to the next tensor that fits",
                    hint=f"{KEEP}; with torch 2.13, capture with check_input_liveness=True to be told at the replay",
                )
            case "unmapped":
                yield TorchFinding(
                    severity="warning",
                    kind="unmapped address",
                    nodes=indices,
                    message=f"{who} was given {at}, which looks like an address near torch's memory and lies in none: its segment was given back",
                    hint=f"{KEEP}; empty_cache() returns segments that nobody uses",
                )
            case "other pool":
                yield TorchFinding(
                    severity="error",
                    kind="another graph's memory",
                    nodes=indices,
                    message=f"{who} uses {by}, a temporary of another graph's private pool, which that graph overwrites",
                    hint="keep the output of the other graph alive (a reference), or clone() it, or capture both with one pool and replay them in order",
                )
            case "pageable host":
                yield TorchFinding(
                    severity="error",
                    kind="pageable host memory",
                    nodes=indices,
                    message=f"{who} copies from or to {at}, ordinary host memory: each replay takes what is there then, and it may be gone",
                    hint="copy from pinned memory that lives as long as the graph (x.pin_memory()), or copy outside of the capture",
                )
            case "pinned host":
                yield TorchFinding(
                    severity="note",
                    kind="pinned host memory",
                    nodes=indices,
                    message=f"{who} uses pinned host memory at {at}: nobody can see whether its tensor is still alive",
                    hint="keep the pinned tensor, and write new values into it before each replay",
                )
            case "device" | "managed":
                yield TorchFinding(
                    severity="note",
                    kind="memory of another allocator",
                    nodes=indices,
                    message=f"{who} uses {where} memory at {at} that torch did not allocate (a library's own, or another framework's)",
                    hint="whoever allocated it must keep it until the last replay",
                )


def _node_findings(nodes: Sequence[ForeignNode]) -> Iterator[TorchFinding]:
    for rule in _RULES:
        found = tuple(index for index, node in enumerate(nodes) if node.kind in rule.kinds)
        if found:
            text = rule.message.format(len(found))
            yield TorchFinding(severity=rule.severity, kind=rule.kind, nodes=found, message=text, hint=rule.hint)
    hidden = tuple(i for i, node in enumerate(nodes) if node.kind == "kernel" and node.arguments is None)
    if hidden:
        yield TorchFinding(
            severity="note",
            kind="unreadable arguments",
            nodes=hidden,
            message=f"the driver does not tell the arguments of {len(hidden)} kernels: their pointers are not audited",
            hint="a driver from 12.4 on tells them, as far as the code of a kernel describes its parameters",
        )


def _named_findings(nodes: Sequence[GraphNodeEntry], named: Sequence[NamedBytes]) -> Iterator[TorchFinding]:
    """Where the caller named the tensors that the graph should use: those that it does not, and live memory of nobody's that was named."""
    if not named:
        return
    pointers = [(node, pointer) for node in nodes for pointer in node.pointers]
    hidden = any(not node.readable or _has_tensor_map(node) for node in nodes)
    used = sorted({pointer.address for _, pointer in pointers})
    for tensor in named:
        if bisect_left(used, tensor.address) == bisect_left(used, tensor.end) and tensor.nbytes:
            yield TorchFinding(
                severity="note" if hidden else "warning",
                kind="unused tensor",
                nodes=(),
                message=f"no node uses {tensor.name} [{tensor.address:#x}, {tensor.address + tensor.nbytes:#x}): "
                "the graph has the address of another one, if it was replaced after the capture",
                hint=f"write new values in place ({tensor.name}.data.copy_(new)) instead of assigning a new tensor, or capture again",
            )
    strangers: dict[int, list[tuple[GraphNodeEntry, GraphPointer]]] = {}
    for node, pointer in pointers:
        if pointer.where == "live" and not pointer.name:
            strangers.setdefault(pointer.block or pointer.address, []).append((node, pointer))
    for block, uses in strangers.items():
        node, pointer = uses[0]
        line = f", allocated at {pointer.allocated_at}" if pointer.allocated_at else ""
        yield TorchFinding(
            severity="note" if pointer.private else "warning",
            kind="unnamed tensor",
            nodes=tuple(dict.fromkeys(node.index for node, _ in uses)),
            message=f"{short_name(node.name) or node.kind} uses a live block at {block:#x} ({pointer.block_bytes} bytes{line}) that is none of the tensors "
            "named: it may be an old one, or another tensor that got a freed address",
            hint="name it if it belongs to the graph (a library's workspace and the state of torch's random generator are such blocks too), or capture again",
        )


def _has_tensor_map(node: GraphNodeEntry) -> bool:
    """Whether a kernel takes a structure with room for one of CUDA's tensor maps and no pointer within: its address may be hidden there."""
    sizes: dict[int, int] = {}
    for scalar in node.scalars:
        sizes[scalar.argument] = sizes.get(scalar.argument, 0) + scalar.nbytes
    pointing = {pointer.argument for pointer in node.pointers}
    return any(size >= _TENSOR_MAP and argument not in pointing for argument, size in sizes.items())
