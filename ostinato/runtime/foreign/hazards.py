"""Missing edges of a foreign graph: nodes that use the same memory and that no path of edges orders.

Copies and fills say what they read and write, kernels do not say which of their pointers they write. So two nodes without an order are an error only where one
of them is known to write bytes that the other is known to use; where both are kernels, or where only the block is the same, it is "unknown": they may both
only read. Free blocks of the graph's own pool are what is left of several temporaries: there the address must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ostinato.ir.foreign import ForeignGraph, short_name
from ostinato.runtime.capture_order import order_of
from ostinato.runtime.foreign.report import GraphNodeEntry, TorchFinding

__all__ = ["missing_edges"]

_JOIN = "let the streams of the capture wait for one another (side.wait_stream(main) after the fork, main.wait_stream(side) before the join)"
_PAIRS = 256
"""Pairs that are looked at for one block, where many nodes without an order use it."""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a node does to bytes [start, end) of a block; `end` is `start` + 1 where only the pointer is known."""

    node: int
    start: int
    end: int
    writes: bool
    known: bool
    live: bool


def missing_edges(graph: ForeignGraph, nodes: Sequence[GraphNodeEntry]) -> Iterator[TorchFinding]:
    """One finding for each pair that certainly lacks an order, and one note for each block where some pair may."""
    order = order_of(len(graph.nodes), graph.edges)
    if len(order) < len(graph.nodes):
        yield TorchFinding(
            severity="error",
            kind="cycle",
            nodes=tuple(sorted(set(range(len(graph.nodes))) - set(order))),
            message="the edges form a cycle, so that the graph has no order at all",
            hint="capture it again",
        )
        return
    before = _ancestors(order, graph.edges)
    rank = {node: place for place, node in enumerate(order)}
    for block, uses in _uses(nodes).items():
        ranked = sorted(uses, key=lambda use: rank[use.node])
        distinct = list(dict.fromkeys(use.node for use in ranked))
        if all(before[later] >> earlier & 1 for earlier, later in pairwise(distinct)):
            continue  # a chain, in which everything is ordered
        yield from _of_block(block, ranked, before, nodes)


def _of_block(
    block: int, uses: Sequence[_Use], before: dict[int, int], nodes: Sequence[GraphNodeEntry]
) -> Iterator[TorchFinding]:
    said: set[tuple[int, int]] = set()
    unknown: dict[tuple[int, int], None] = {}
    looked = 0
    for first, second in combinations(uses, 2):
        pair = (first.node, second.node)
        if first.node == second.node or pair in said or before[second.node] >> first.node & 1:
            continue
        looked += 1
        if looked > _PAIRS:
            break
        overlap = first.start < second.end and second.start < first.end
        if overlap and (first.writes or second.writes):
            said.add(pair)
            kind = "write/write" if first.writes and second.writes and first.known and second.known else "read/write"
            names = [f"node {node} ({short_name(nodes[node].name) or nodes[node].kind})" for node in pair]
            yield TorchFinding(
                severity="error",
                kind="missing edge",
                nodes=pair,
                message=f"{kind} at {max(first.start, second.start):#x}: no path of edges orders {names[0]} and {names[1]}",
                hint=_JOIN,
            )
        elif not (first.known and second.known) and (first.live or first.start == second.start):
            unknown[pair] = None
    left = [pair for pair in unknown if pair not in said]
    if left:
        involved = tuple(dict.fromkeys(node for pair in left for node in pair))
        shown = ", ".join(f"{a} and {b}" for a, b in left[:4]) + (" ..." if len(left) > 4 else "")
        yield TorchFinding(
            severity="note",
            kind="unknown order",
            nodes=involved,
            message=f"nodes {shown} use the block at {block:#x} without an order; which of them write there is unknown",
            hint=f"if one of them writes it, {_JOIN}; parallel readers need none",
        )


def _uses(nodes: Sequence[GraphNodeEntry]) -> dict[int, list[_Use]]:
    """Who uses each block of the allocator."""
    found: dict[int, list[_Use]] = {}
    for node in nodes:
        for pointer in node.pointers:
            if pointer.block is not None:
                known = pointer.access != "unknown"
                end = pointer.address + (max(node.nbytes, 1) if known else 1)
                use = _Use(node.index, pointer.address, end, pointer.access == "writes", known, pointer.live)
                found.setdefault(pointer.block, []).append(use)
    return found


def _ancestors(order: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """For each node the set of nodes before it, as bits."""
    incoming: dict[int, list[int]] = {}
    for earlier, later in edges:
        incoming.setdefault(later, []).append(earlier)
    found: dict[int, int] = {}
    for node in order:
        bits = 0
        for earlier in incoming.get(node, ()):
            bits |= found[earlier] | 1 << earlier
        found[node] = bits
    return found
