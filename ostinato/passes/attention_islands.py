"""Attention that is composed of products, a softmax, repeated heads and transposes, as hand-written and imported graphs have it: found and described.

An island is matmul -> softmax -> matmul over values [B,H,T,D]. Eligibility is narrow and said: what does not fit stays as it is, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.ir.graph import Graph, Node

__all__ = ["HEADS_SWAPPED", "Heads", "Island", "Left", "find_islands"]

HEADS_SWAPPED = (0, 2, 1, 3)
"""The order of axes that turns [B,T,H,D] into [B,H,T,D], and back."""
_KEYS_TURNED = (0, 2, 3, 1)
"""Of [B,T,H,D], as [B,H,D,T]."""
_LAST_SWAPPED = (0, 1, 3, 2)
_SOFTMAX = ("softmax", "causal_softmax")
_PRODUCTS = ("matmul", "matmul_add")


@dataclass(frozen=True, slots=True)
class Heads:
    """Where a value [B,H,T,D] has its heads from: `source` [B,G,T,D], or [B,T,G,D] where it is token-major, each head of it `repeats` times."""

    source: str
    token_major: bool
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Island:
    """The nodes of one attention, where its queries, keys and values come from, and the transposes that read its context (none: it is read otherwise)."""

    scores: Node
    softmax: Node
    context: Node
    q: Heads
    k: Heads
    v: Heads
    readers: tuple[Node, ...]
    alone: bool
    """Whether nothing else reads the scores and the probabilities."""

    @property
    def causal(self) -> bool:
        return self.softmax.op == "causal_softmax"


@dataclass(frozen=True, slots=True)
class Left:
    """A softmax between products that is no island, and why."""

    softmax: Node
    reason: str


def find_islands(graph: Graph) -> Iterator[Island | Left]:
    """Every softmax between two products, in program order."""
    for node in graph.nodes:
        if node.op in _SOFTMAX:
            scores = graph.producers.get(node.operands[0] or "")
            contexts = [user for user in graph.users.get(node.name, ()) if user.op in _PRODUCTS]
            if scores is not None and scores.op == "matmul" and contexts:
                yield _island(graph, scores, node, contexts)


def _island(graph: Graph, scores: Node, softmax: Node, contexts: list[Node]) -> Island | Left:
    if len(contexts) > 1:
        return Left(softmax, f"its probabilities go into {len(contexts)} products")
    (context,) = contexts
    if context.op != "matmul":
        return Left(softmax, "its context is added to something")
    rank = softmax.results[0].type.rank
    if rank != 4:
        return Left(softmax, f"heads must be an axis of [B,H,T,D], found scores of {rank} axes")
    if scores.attrs["transpose_a"]:
        return Left(softmax, "its queries are read transposed")
    turned = any(context.attrs[flag] for flag in ("transpose_a", "transpose_b"))
    if turned or context.operands[0] != softmax.name or context.operands[1] == softmax.name:
        return Left(softmax, "its context is not probabilities times values as they lie")
    if context.attrs["scale"] != 1.0:
        return Left(softmax, "its context is scaled")
    keys = _keys(graph, scores)
    if keys is None:
        return Left(softmax, "its keys are neither [B,H,S,D] read transposed nor [B,H,D,S]")
    users = graph.users.get(context.name, ())
    swapped = all(user.op == "transpose" and user.attrs["order"] == HEADS_SWAPPED for user in users)
    readers = users if swapped and context.name not in graph.outputs else ()
    alone = not {scores.name, softmax.name} & set(graph.outputs) and all(
        len(graph.users[name]) == 1 for name in (scores.name, softmax.name)
    )
    q, v = (_heads(graph, name) for name in (scores.operands[0], context.operands[1]))
    return Island(scores, softmax, context, q, keys, v, readers, alone)


def _producer(graph: Graph, name: str, op: str) -> Node | None:
    found = graph.producers.get(name)
    return found if found is not None and found.op == op else None


def _heads(graph: Graph, name: str | None) -> Heads:
    """Where the heads of a value [B,H,T,D] come from: through a repeat of its heads, a transpose, and a repeat before that."""
    assert name is not None
    repeats = 1
    repeated = _producer(graph, name, "repeat_interleave")
    if repeated is not None and repeated.attrs["axis"] == 1:
        name, repeats = _source(repeated), _repeats(repeated)
    swapped = _producer(graph, name, "transpose")
    if swapped is None or swapped.attrs["order"] != HEADS_SWAPPED:
        return Heads(name, token_major=False, repeats=repeats)
    name = _source(swapped)
    repeated = _producer(graph, name, "repeat_interleave")
    if repeats == 1 and repeated is not None and repeated.attrs["axis"] == 2:
        name, repeats = _source(repeated), _repeats(repeated)
    return Heads(name, token_major=True, repeats=repeats)


def _keys(graph: Graph, scores: Node) -> Heads | None:
    """The same of the keys of a product, which may be transposed by its flag or before it."""
    name = scores.operands[1]
    if scores.attrs["transpose_b"]:
        return _heads(graph, name)
    turned = _producer(graph, name or "", "transpose")
    if turned is None:
        return None
    if turned.attrs["order"] == _LAST_SWAPPED:
        return _heads(graph, turned.operands[0])
    if turned.attrs["order"] != _KEYS_TURNED:
        return None
    source = _source(turned)
    repeated = _producer(graph, source, "repeat_interleave")
    if repeated is not None and repeated.attrs["axis"] == 2:
        return Heads(_source(repeated), token_major=True, repeats=_repeats(repeated))
    return Heads(source, token_major=True)


def _source(node: Node) -> str:
    found = node.operands[0]
    assert found is not None, "the first operand is never optional"
    return found


def _repeats(node: Node) -> int:
    found = node.attrs["repeats"]
    assert isinstance(found, int)
    return found
