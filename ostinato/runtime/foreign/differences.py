"""What differs between two captures of the same work: numbers that a replay would keep as they were, moved pointers, launches of another shape, other nodes.

Nodes are paired by kind and name, in order. Pointers into the private pool of each capture differ as they must. A number that differs is one that the program
computes on the host anew each time: the graph has the one of its capture for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from ostinato.ir.foreign import short_name
from ostinato.runtime.foreign.numbers import real_of
from ostinato.runtime.foreign.report import GraphNodeEntry, GraphScalar, TorchFinding, TorchGraphReport

__all__ = ["differences"]

_DEVICE = "keep what changes in a tensor on the device (torch.tensor(value, device=...)), and write it in place before each replay"
_STRUCTURE = 16
"""Bytes up to which an argument is a number or two, rather than a structure with gaps in it."""
_WORD, _NARROW = 8, 1 << 31
_LARGE = 1 << 20
"""Integers above that are rather the bits of a float, where they make a plain one."""


def differences(report: TorchGraphReport, other: TorchGraphReport) -> Iterator[TorchFinding]:
    """The findings of a graph against another capture; nodes are numbered as in the first."""
    mine, theirs = ([(node.kind, node.name) for node in each.nodes] for each in (report, other))
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for tag, first, last, begin, end in matcher.get_opcodes():
        if tag == "equal":
            for node, against in zip(report.nodes[first:last], other.nodes[begin:end], strict=True):
                yield from _of_nodes(node, against)
        else:
            names = [short_name(node.name) or node.kind for node in report.nodes[first:last]]
            others = [short_name(node.name) or node.kind for node in other.nodes[begin:end]]
            yield TorchFinding(
                severity="warning",
                kind="other nodes",
                nodes=tuple(range(first, last)),
                message=f"one capture has {_listed(names)} where the other has {_listed(others)}",
                hint="what is captured depends on something of the host (a branch, a shape, a cache): make it the same, or capture one graph for each",
            )


def _of_nodes(node: GraphNodeEntry, other: GraphNodeEntry) -> Iterator[TorchFinding]:
    who = f"node {node.index} ({short_name(node.name) or node.kind})"
    if (node.grid, node.block) != (other.grid, other.block):
        yield TorchFinding(
            severity="warning",
            kind="other launch",
            nodes=(node.index,),
            message=f"{who} was launched with {node.grid} x {node.block} and with {other.grid} x {other.block}: the work has another size",
            hint="capture one graph for each size, or pad to one",
        )
        return
    theirs = {(scalar.argument, scalar.offset): scalar for scalar in other.scalars}
    sizes: dict[int, int] = {}
    for scalar in node.scalars:
        sizes[scalar.argument] = sizes.get(scalar.argument, 0) + scalar.nbytes
    for scalar in node.scalars:
        against = theirs.get((scalar.argument, scalar.offset))
        if against is not None and against != scalar:
            yield TorchFinding(
                severity="warning" if sizes[scalar.argument] <= _STRUCTURE else "note",
                kind="frozen scalar",
                nodes=(node.index,),
                message=f"{who}: argument {scalar.argument} has {_shown(scalar, against)} at byte {scalar.offset} in one capture and "
                f"{_shown(against, scalar)} in the other; every replay uses that of its own capture"
                + (
                    ""
                    if sizes[scalar.argument] <= _STRUCTURE
                    else " (within a large structure, where it may be padding)"
                ),
                hint=_DEVICE,
            )
    places = {(pointer.argument, pointer.offset): pointer for pointer in other.pointers}
    for pointer in node.pointers:
        found = places.get((pointer.argument, pointer.offset))
        inside = pointer.where == "own pool" and (found is None or found.where == "own pool")
        if found is not None and found.address != pointer.address and not inside:
            yield TorchFinding(
                severity="note" if "own pool" in (pointer.where, found.where) else "warning",
                kind="other address",
                nodes=(node.index,),
                message=f"{who}: argument {pointer.argument} points at {pointer.address:#x} ({pointer.name or pointer.where}) in one capture and at "
                f"{found.address:#x} ({found.name or found.where}) in the other",
                hint="a tensor from outside of the graph was replaced between the captures: write into one static tensor instead",
            )


def _shown(scalar: GraphScalar, other: GraphScalar) -> str:
    """A number as what it seems to be: a double, an integer, or those of its two halves that differ, each as a float or an integer."""
    mine, theirs = (item.integer.to_bytes(item.nbytes, "little", signed=True) for item in (scalar, other))
    if len(mine) == _WORD and len(theirs) == _WORD and max(abs(scalar.integer), abs(other.integer)) >= _NARROW:
        if scalar.real is not None and other.real is not None:
            return f"{scalar.real!r}"
        halves = [(mine[at : at + 4], theirs[at : at + 4]) for at in (0, 4)]
        return ", ".join(_half(a, b) for a, b in halves if a != b)
    return _half(mine, theirs) if len(mine) == 4 and len(theirs) == 4 else str(scalar.integer)


def _half(mine: bytes, theirs: bytes) -> str:
    """Four bytes as a float where both sides make one that somebody would write, as an integer otherwise."""
    integers = [int.from_bytes(data, "little", signed=True) for data in (mine, theirs)]
    reals = [real_of(data) for data in (mine, theirs)]
    as_float = None not in reals and max(map(abs, integers)) > _LARGE
    return f"{reals[0]:.7g}" if as_float else str(integers[0])


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{len(names)} ({shown})" if names else "none"
