"""What a step is given, looked at before anything of it runs: ids within their tables, targets within the vocabulary or ignored, and at least one of them.

A GPU would tell of an index out of range only when the step is over, and the parameters with it. So every integer input is followed through views to the
operators that pick rows by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.ir.errors import BoundsError
from ostinato.ir.example import IGNORED
from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType

__all__ = ["IndexLimits", "index_limits"]


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """Of integer inputs by name: how many rows the smallest table has that they pick from, and which of them are targets."""

    rows: Mapping[str, int]
    targets: frozenset[str]

    def check(self, inputs: Mapping[str, Array]) -> None:
        """Raises `BoundsError`, naming the input, for values that no table has and for targets of which all are ignored."""
        for name, rows in self.rows.items():
            values = inputs[name]
            is_target = name in self.targets
            kept = values[values != IGNORED] if is_target else values
            if kept.size and not (int(kept.min()) >= 0 and int(kept.max()) < rows):
                also = f", and {IGNORED} for tokens that are not learned" if is_target else ""
                raise BoundsError(
                    f"values from {int(kept.min())} to {int(kept.max())}, the table has rows 0 to {rows - 1}{also}",
                    node=name,
                    hint="use the tokenizer of this model",
                )
            if is_target and values.size and not kept.size:
                raise BoundsError(
                    f"all targets are {IGNORED}: there is nothing to learn from",
                    node=name,
                    hint="leave batches out that have no target, or mend the mask",
                )


def index_limits(graph: Graph) -> IndexLimits:
    """What the operators of a graph ask of its integer inputs, reached as they are or through views."""
    rows: dict[str, int] = {}
    targets: set[str] = set()
    for item in graph.with_role(Role.INPUT):
        if item.value.type.dtype is not DType.I32:
            continue
        name = item.value.name
        for reader, operand in _readers(graph, name):
            found = _rows(graph, reader, operand)
            if found is not None:
                rows[name] = min(rows.get(name, found), found)
                targets |= {name} if operand == "target" else set()
    return IndexLimits(rows, frozenset(targets))


def _readers(graph: Graph, name: str) -> list[tuple[Node, str]]:
    """The nodes that compute with a value, through views too, each with what it calls its operand."""
    found: list[tuple[Node, str]] = []
    waiting = [name]
    while waiting:
        value = waiting.pop()
        for node in graph.users.get(value, ()):
            if OP[node.op].is_view:
                waiting.append(node.name)
                continue
            specs = zip(OP[node.op].operands, node.operands, strict=False)
            found += [(node, spec.name) for spec, operand in specs if operand == value]
    return found


def _rows(graph: Graph, node: Node, operand: str) -> int | None:
    """How many values an operator takes for that operand; None where it is no index of its."""
    types = dict(zip((spec.name for spec in OP[node.op].operands), graph.operand_types(node), strict=False))
    if operand == "ids" and (table := types.get("weight") or types.get("table")) is not None:
        return table.static_shape[0]
    if operand == "target" and (logits := types.get("logits")) is not None:
        return logits.static_shape[-1]
    return None
