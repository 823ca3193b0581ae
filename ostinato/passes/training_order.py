"""The order of a training step: every micro-batch forward and backward before the next, every piece of the head likewise, and an optimizer node as soon as
it can.

Differentiation puts all gradients behind all of the forward graph, which keeps the activations of every micro-batch alive at once. Nothing but the loss that is
printed needs that: the gradient of a mean by one of its terms is known from the targets alone. So the nodes are handed out again, each when all it reads is
there: the last micro-batch first, since sums of gradients begin with it, within it the trunk forward, the pieces of the head one by one, and the trunk
backward. What belongs to none of these comes as early as it can, and so does what follows from the batch alone, such as the gradient of that mean. A node that
overwrites a value waits for all who read it.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ostinato.ir.graph import Graph, Node, Role
from ostinato.ir.ops import OP
from ostinato.ir.training import CHUNK, MICRO, is_backward

__all__ = ["in_training_order"]

_MICRO: Final = re.compile(rf"(?:^|\.){MICRO}(\d+)(?:\.|$)")
_CHUNK: Final = re.compile(rf"(?:^|\.){CHUNK}(\d+)(?:\.|$)")
_FIRST: Final = -(2**62)
Rank = tuple[int, int, int, int]


def in_training_order(graph: Graph) -> Graph:
    """The graph with its nodes in the order of the module text."""
    nodes = graph.nodes
    waits, behind = _edges(nodes)
    given = _of_the_batch(graph)
    ranks = [_rank(node, index, node.name in given) for index, node in enumerate(nodes)]
    ready = [(ranks[index], index) for index, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(nodes[index])
        for after in behind[index]:
            waits[after] -= 1
            if not waits[after]:
                heapq.heappush(ready, (ranks[after], after))
    assert len(order) == len(nodes), "edges follow the order that was given"
    return Graph(graph.name, graph.inputs, tuple(order), graph.outputs, graph.extents)


def _of_the_batch(graph: Graph) -> set[str]:
    """The nodes that follow from inputs and constants alone."""
    known = {item.value.name for role in (Role.INPUT, Role.CONSTANT) for item in graph.with_role(role)}
    found: set[str] = set()
    for node in graph.nodes:
        if all(name is None or name in known for name in node.operands):
            found.add(node.name)
            known.update(value.name for value in node.results)
    return found


def _rank(node: Node, index: int, of_the_batch: bool) -> Rank:
    """Lowest first: what belongs to no micro-batch, then micro-batches from the last; in each the trunk forward, the head by pieces, the trunk backward."""
    micro, chunk = _MICRO.search(node.name), _CHUNK.search(node.name)
    backward = not of_the_batch and is_backward(node.name)
    turn = _FIRST if micro is None else -int(micro[1])
    if chunk is not None:
        return (turn, 1, -int(chunk[1]), index)
    return (turn, 2 if backward else 0, 0, index)


def _edges(nodes: Sequence[Node]) -> tuple[list[int], dict[int, list[int]]]:
    """How many nodes each waits for, and who waits for it: makers before readers, readers of bytes before who overwrites them."""
    maker: dict[str, int] = {}
    base: dict[str, str] = {}  # the value whose bytes a view shows
    readers: dict[str, list[int]] = defaultdict(list)
    pairs: set[tuple[int, int]] = set()
    for index, node in enumerate(nodes):
        given = [name for name in node.operands if name is not None]
        pairs.update((maker[name], index) for name in given if name in maker)
        opdef = OP[node.op]
        for _, operand in opdef.aliased(node.operands):
            name = node.operands[operand]
            assert name is not None
            pairs.update((reader, index) for reader in readers[base.get(name, name)])
        for name in given:
            readers[base.get(name, name)].append(index)
        for value in node.results:
            maker[value.name] = index
        if opdef.is_view:
            base[node.name] = base.get(given[0], given[0])
    waits, behind = [0] * len(nodes), defaultdict(list)
    for before, after in pairs:
        waits[after] += 1
        behind[before].append(after)
    return waits, behind
