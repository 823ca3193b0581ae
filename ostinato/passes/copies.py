"""Which steps of a lowered graph only move bytes, and why each of them is left: the copies of strided views, and repeated heads in memory.

Worked out from the graph itself, so that it holds for whatever made it. A copy is counted in `PlanStats.strided_copies` where it gathers through strides; one
that repeats is said here, with what kept the attention around it from sharing heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ostinato.ir.explain_layout import row_refusals
from ostinato.ir.graph import Graph, Location, Node
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import TensorType
from ostinato.ir.views import StorageView, ViewTable
from ostinato.passes.attention_islands import Left, find_islands

__all__ = ["Copy", "copies_of"]

_COPY, _REPEAT, _REPEAT_PAIR = "contiguous", "repeat_interleave", "repeat_gqa_kv_bthd"


@dataclass(frozen=True, slots=True)
class Copy:
    """A node that only moves bytes: `value` of `type` is written again for `readers` ("return" for an output).

    `kind` is "view" where it gathers `strides` (in elements), "repeat" where it repeats heads. `location` is the line of the model that reads it.
    `reasons` are (row, why that row of the first reader does not take the value as it lies), for a repeat (what was tried, why not).
    """

    node: str
    kind: str
    value: str
    type: TensorType
    strides: tuple[int, ...]
    nbytes: int
    readers: tuple[str, ...]
    location: Location | None
    reasons: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        where = "" if self.location is None else f" at {self.location}"
        what = f"gathers strides {list(self.strides)} of" if self.kind == "view" else "repeats"
        lines = [
            f"%{self.node} {what} %{self.value}: {self.type}, {self.nbytes} bytes, for {_named(self.readers)}{where}"
        ]
        return "\n".join([*lines, *(f"    {row}: {reason}" for row, reason in self.reasons)])


def _named(readers: tuple[str, ...]) -> str:
    return ", ".join(reader if reader == "return" else f"%{reader}" for reader in readers)


def copies_of(graph: Graph, target: Target) -> tuple[Copy, ...]:
    """Every copy that a lowered graph makes, in program order."""
    storage = ViewTable(graph)
    return tuple(_copies(graph, target, storage))


def _copies(graph: Graph, target: Target, storage: Mapping[str, StorageView]) -> Iterator[Copy]:
    left = {found.softmax.name: found.reason for found in find_islands(graph) if isinstance(found, Left)}
    for node in graph.nodes:
        if node.op == _COPY and not storage[node.operands[0] or ""].contiguous:
            yield _of_view(graph, node, target, storage)
        elif node.op in (_REPEAT, _REPEAT_PAIR):
            yield _of_heads(graph, node, left)


def _of_view(graph: Graph, node: Node, target: Target, storage: Mapping[str, StorageView]) -> Copy:
    (value,) = node.results
    name = node.operands[0]
    assert name is not None
    strides = storage[name].strides
    assert strides is not None, "a lowered graph has no symbolic view"
    readers = graph.users.get(value.name, ())
    names = (*(reader.name for reader in readers), *(("return",) if value.name in graph.outputs else ()))
    if "return" in names:
        reasons: tuple[tuple[str, str], ...] = (("return", "an output lies in its logical order"),)
    else:
        first = readers[0]
        reasons = tuple(row_refusals(graph, first, value.name, strides, target, storage))
    location = readers[0].location if readers else node.location
    return Copy(value.name, "view", name, value.type, strides, value.type.nbytes, names, location, reasons)


def _of_heads(graph: Graph, node: Node, left: Mapping[str, str]) -> Copy:
    name = node.operands[0]
    assert name is not None
    readers = tuple(dict.fromkeys(user for value in node.results for user in graph.users.get(value.name, ())))
    names = tuple(reader.name for reader in readers)
    if any(value.name in graph.outputs for value in node.results):
        names = (*names, "return")
    nbytes = sum(value.type.nbytes for value in node.results)
    reason = ("grouped heads", _why_repeated(graph, node, left))
    location = readers[0].location if readers else node.location
    return Copy(node.name, "repeat", name, graph.types[name], (), nbytes, names, location, (reason,))


def _why_repeated(graph: Graph, node: Node, left: Mapping[str, str]) -> str:
    if node.op == _REPEAT_PAIR:
        return "the products by repeated heads have rows of a higher level than those by shared ones"
    near = _softmax_near(graph, node)
    if near is None:
        return "nothing that reads it is a product of attention"
    return left.get(
        near,
        "this attention has no form that shares heads (names of axes, other readers), or fuse_attention is left out",
    )


def _softmax_near(graph: Graph, node: Node) -> str | None:
    """A softmax in front of or behind a product that reads a value through views."""
    waiting, seen = [node], set[str]()
    while waiting:
        found = waiting.pop()
        for user in graph.users.get(found.name, ()):
            if user.name in seen:
                continue
            seen.add(user.name)
            if OP[user.op].is_view:
                waiting.append(user)
            elif user.op == "matmul":
                around = [graph.producers.get(name or "") for name in user.operands]
                for near in (*around, *graph.users.get(user.name, ())):
                    if near is not None and near.op in ("softmax", "causal_softmax"):
                        return near.name
    return None
