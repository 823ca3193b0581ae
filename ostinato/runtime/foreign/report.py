"""What an audit of a torch graph says: every node with its pointers and numbers, and findings with what to do about each. Prints as markdown, saves as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ostinato.ir.foreign import short_name

__all__ = ["GraphNodeEntry", "GraphPointer", "GraphScalar", "TorchFinding", "TorchGraphReport", "Where"]

Where = Literal[
    "own pool",
    "live",
    "freed",
    "waiting",
    "other pool",
    "device",
    "managed",
    "pinned host",
    "pageable host",
    "unmapped",
]
"""Where a pointer leads: the graph's private pool; a block of the allocator that a tensor has, that nobody has, or that another stream still uses; another
graph's private pool; memory that torch did not allocate, on the device or the host; and an address that looks like one and that no memory has."""
_SHOWN = 40


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GraphPointer(_Frozen):
    """A pointer that a node was given: the argument and the place within it (-1: not of a kernel), where it leads, the block there, whether a tensor has it
    (`live`) and whether it is of a private pool, the caller's name for that, the line that allocated it as far as the allocator recorded its history, and what
    the node does there."""

    argument: int
    offset: int
    address: int
    where: Where
    block: int | None
    block_bytes: int
    live: bool
    private: bool
    name: str
    allocated_at: str
    access: Literal["reads", "writes", "unknown"]


class GraphScalar(_Frozen):
    """Bytes of a kernel's argument that are no pointer, as the integers and the float that they may be: the same in every replay."""

    argument: int
    offset: int
    nbytes: int
    integer: int
    real: float | None


class GraphNodeEntry(_Frozen):
    """A node of the graph, by its place in the driver's order."""

    index: int
    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    nbytes: int
    readable: bool
    """Whether the driver told the arguments."""
    pointers: tuple[GraphPointer, ...]
    scalars: tuple[GraphScalar, ...]


class TorchFinding(_Frozen):
    """Something to act on: an "error" makes replays wrong or may crash them, a "warning" may, a "note" says what could not be judged."""

    severity: Literal["error", "warning", "note"]
    kind: str
    nodes: tuple[int, ...]
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.message}\n  hint: {self.hint}"


class TorchGraphReport(_Frozen):
    """The audit of one captured graph. `ok`: neither errors nor warnings."""

    kind: Literal["torch_graph"] = "torch_graph"
    pool: tuple[int, int] | None
    pool_bytes: int
    """Of the segments that the graph's private pool holds."""
    edges: int
    nodes: tuple[GraphNodeEntry, ...]
    findings: tuple[TorchFinding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by kind."""
        return dict(Counter(node.kind for node in self.nodes))

    def of(self, kind: str) -> tuple[TorchFinding, ...]:
        """The findings of a kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def to_json(self) -> str:
        """The report as JSON."""
        return self.model_dump_json(indent=2)

    def __str__(self) -> str:
        return "\n".join(self._summary()) + ("" if not self.findings else "\n\n" + "\n".join(map(str, self.findings)))

    def markdown(self) -> str:
        """The report for an issue or a chat: findings first, then nodes and the pointers that lead out of the graph's own pool."""
        return "\n".join(self._markdown()) + "\n"

    def _summary(self) -> Iterator[str]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.items()) or "none"
        yield f"{len(self.nodes)} nodes ({kinds}), {self.edges} edges, private pool {self.pool} of {self.pool_bytes} bytes"
        places = Counter(pointer.where for node in self.nodes for pointer in node.pointers)
        yield f"{places.total()} pointers: " + (
            ", ".join(f"{count} {where}" for where, count in places.items()) or "none"
        )
        hidden = sum(node.kind == "kernel" and not node.readable for node in self.nodes)
        numbers = sum(len(node.scalars) for node in self.nodes)
        yield f"{numbers} by-value numbers, the same in every replay" + (
            f"; {hidden} kernels hide theirs" if hidden else ""
        )
        found = Counter(finding.severity for finding in self.findings)
        yield ", ".join(f"{found[severity]} {severity}s" for severity in ("error", "warning", "note"))

    def _markdown(self) -> Iterator[str]:
        yield "# Audit of a captured torch graph\n"
        yield from (f"- {line}" for line in self._summary())
        if self.findings:
            yield "\n## Findings\n"
            yield "| severity | kind | nodes | what | what to do |\n| --- | --- | --- | --- | --- |"
            for finding in self.findings:
                nodes = ", ".join(map(str, finding.nodes[:6])) + (" ..." if len(finding.nodes) > 6 else "")
                cells = (finding.severity, finding.kind, nodes, finding.message, finding.hint)
                yield "| " + " | ".join(map(_cell, cells)) + " |"
        yield "\n## Nodes\n"
        yield "| node | kind | name | pointers out of the pool |\n| --- | --- | --- | --- |"
        for node in self.nodes[:_SHOWN]:
            away = [f"{p.name or hex(p.address)} ({p.where})" for p in node.pointers if p.where != "own pool"]
            yield f"| {node.index} | {node.kind} | {_cell(short_name(node.name))} | {_cell(', '.join(away[:6]))} |"
        if len(self.nodes) > _SHOWN:
            yield f"\nand {len(self.nodes) - _SHOWN} more"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
