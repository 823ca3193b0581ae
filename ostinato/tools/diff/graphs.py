"""Two graphs held beside each other: nodes are matched by name first and by structure then, and what differs of each pair is said in words.

Structure means the operator, its attributes and what its operands were matched to, so that a graph whose values were only renamed has no node that was added
or removed. Linear in the size of the graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from ostinato.ir.decision import Decision
from ostinato.ir.graph import Graph, GraphInput, Node, Value
from ostinato.ir.types import TensorType
from ostinato.tools.diff.data import Fact, Figure, GraphDiff, NodeDiff

__all__ = ["diff_graphs", "out_of_order", "paired"]

Decisions = Mapping[str, Decision]


def diff_graphs(
    before: Graph,
    after: Graph,
    decisions_before: Decisions | None = None,
    decisions_after: Decisions | None = None,
    *,
    name: str = "",
) -> GraphDiff:
    """What differs between two graphs, called `name`, or as they are; with decisions by node name, also on what records nodes run as they do."""
    pairs = _matched(before, after)
    names = {value.name: value.name for value in _values(before) if value.name in after.types}
    for old, new in pairs.values():
        names.update((a.name, b.name) for a, b in zip(old.results, new.results, strict=False))
    first, second = decisions_before or {}, decisions_after or {}
    position = {node.name: place for place, node in enumerate(before.nodes)}
    found: list[NodeDiff] = []
    same = 0
    order: list[int] = []
    for place, node in enumerate(after.nodes):
        if node.name not in pairs:
            found.append(NodeDiff(None, node.name, node.op, place=place))
            continue
        old, _ = pairs[node.name]
        facts = tuple(_facts(old, node, names, first.get(old.name), second.get(node.name)))
        if facts or old.name != node.name:
            found.append(NodeDiff(old.name, node.name, node.op, facts, place))
        else:
            same += 1
        order.append(position[old.name])
    kept = {old.name for old, _ in pairs.values()}
    found += [
        NodeDiff(node.name, None, node.op, place=place)
        for place, node in enumerate(before.nodes)
        if node.name not in kept
    ]
    return GraphDiff(
        name=name or (after.name if before.name == after.name else f"{before.name} / {after.name}"),
        nodes=tuple(found),
        inputs=tuple(_inputs(before, after)),
        outputs=tuple(_outputs(before, after, names)),
        same=same,
        moved=out_of_order(order),
        figures=(
            Figure("nodes", len(before.nodes), len(after.nodes)),
            Figure("inputs", len(before.inputs), len(after.inputs)),
        ),
        matched=tuple((old.name, new.name) for old, new in pairs.values()),
    )


def paired(before: Iterable[str], after: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Entries that are held against each other: those of one name, and of the others those of one stem ("step" of "step[N=8,R=1]") in their order, where both
    sides have as many; one and one always."""
    old, new = dict.fromkeys(before), dict.fromkeys(after)
    pairs = [(name, name) for name in new if name in old]
    if not pairs and len(old) == len(new) == 1:
        return tuple(zip(old, new, strict=True))
    for stem in dict.fromkeys(name.partition("[")[0] for name in new if name not in old):
        alone, others = (
            [name for name in names if name not in known and name.partition("[")[0] == stem]
            for names, known in ((old, new), (new, old))
        )
        if len(alone) == len(others):
            pairs += zip(alone, others, strict=True)
    return tuple(pairs)


def out_of_order(places: Sequence[int]) -> int:
    """How many of different numbers must be moved to bring all into rising order: all but the longest rising part of them."""
    tails: list[int] = []
    for place in places:
        at = bisect_left(tails, place)
        tails[at : at + 1] = [place]
    return len(places) - len(tails)


def _matched(before: Graph, after: Graph) -> dict[str, tuple[Node, Node]]:
    """Pairs of nodes that are one, by the name in the second graph: of one name and operator; then of one structure; then of one name."""
    old = {node.name: node for node in before.nodes}
    by_name = {node.name: (old[node.name], node) for node in after.nodes if node.name in old}
    pairs = {name: pair for name, pair in by_name.items() if pair[0].op == pair[1].op}
    taken = {pair[0].name for pair in pairs.values()}
    names = {item.value.name: item.value.name for item in before.inputs if item.value.name in after.inputs_by_name}
    for first, second in pairs.values():
        names.update((a.name, b.name) for a, b in zip(first.results, second.results, strict=False))
    waiting: dict[Hashable, list[Node]] = {}
    for node in after.nodes:
        if node.name not in pairs:
            waiting.setdefault(_structure(node, {}), []).append(node)
    for node in before.nodes if waiting else ():
        alike = [] if node.name in taken else waiting.get(_structure(node, names), [])
        if alike:
            new = alike.pop(0)
            pairs[new.name] = (node, new)
            taken.add(node.name)
            names.update((a.name, b.name) for a, b in zip(node.results, new.results, strict=False))
    pairs.update((name, pair) for name, pair in by_name.items() if name not in pairs and pair[0].name not in taken)
    return pairs


def _structure(node: Node, names: Mapping[str, str]) -> Hashable:
    operands = tuple(names.get(name, name) if name is not None else None for name in node.operands)
    return node.op, node.attrs, operands, tuple(value.type.dtype for value in node.results)


def _values(graph: Graph) -> Iterator[Value]:
    yield from (item.value for item in graph.inputs)
    for node in graph.nodes:
        yield from node.results


def _facts(
    old: Node, new: Node, names: Mapping[str, str], first: Decision | None, second: Decision | None
) -> Iterator[Fact]:
    """What differs of two nodes but their names, the row first."""
    yield from _fact("operator", old.op, new.op)
    rows = (first.row if first else old.impl or "", second.row if second else new.impl or "")
    yield from _fact("row", *rows)
    if first is not None and second is not None:
        yield from _fact("level", first.level.name.lower(), second.level.name.lower())
        yield from _fact("exactness", first.exactness.name.lower(), second.exactness.name.lower())
        yield from _fact("records", ", ".join(first.evidence), ", ".join(second.evidence))
        yield from _fact("note", first.note, second.note)
        yield from _fact("origins", ", ".join(map(str, first.origins)), ", ".join(map(str, second.origins)))
    for place in range(max(len(old.operands), len(new.operands))):
        a, b = (_at(node.operands, place) for node in (old, new))
        if names.get(a, a) != b:
            yield Fact(f"operand {place}", f"%{a}" if a else "", f"%{b}" if b else "")
    for key in dict.fromkeys((*old.attrs, *new.attrs)):
        yield from _fact(
            f"attribute {key}", *(str(node.attrs[key]) if key in node.attrs else "" for node in (old, new))
        )
    for a_value, b_value in zip(old.results, new.results, strict=False):
        yield from _type_facts(b_value.name, a_value.type, b_value.type)
    if len(old.results) != len(new.results):
        yield Fact("result count", str(len(old.results)), str(len(new.results)))


def _at(operands: Sequence[str | None], place: int) -> str:
    return (operands[place] if place < len(operands) else None) or ""


def _type_facts(name: str, old: TensorType, new: TensorType) -> Iterator[Fact]:
    layouts = (old.layout or "", new.layout or "")
    if (old.shape, old.dtype, old.axes) == (new.shape, new.dtype, new.axes):
        yield from _fact(f"layout of %{name}", *layouts)
    else:
        yield from _fact(f"type of %{name}", str(old), str(new))


def _fact(what: str, before: str, after: str) -> Iterator[Fact]:
    if before != after:
        yield Fact(what, before, after)


def _inputs(before: Graph, after: Graph) -> Iterator[NodeDiff]:
    for name in dict.fromkeys((*before.inputs_by_name, *after.inputs_by_name)):
        old, new = before.inputs_by_name.get(name), after.inputs_by_name.get(name)
        if old is None or new is None:
            role = next(item.role.value for item in (old, new) if item is not None)
            yield NodeDiff(name if old else None, name if new else None, role)
        elif facts := tuple(_input_facts(old, new)):
            yield NodeDiff(name, name, new.role.value, facts)


def _input_facts(old: GraphInput, new: GraphInput) -> Iterator[Fact]:
    yield from _fact("role", old.role.value, new.role.value)
    yield from _type_facts(new.value.name, old.value.type, new.value.type)
    if old.parts != new.parts:
        yield Fact(
            "parts",
            *(", ".join(f"{part.tensor}[{part.start}:{part.stop}]" for part in item.parts) for item in (old, new)),
        )
    if old.role is new.role and old.parts == new.parts and old.value == new.value and old != new:
        yield Fact("data" if old.carried == new.carried else "carried", "one", "another")


def _outputs(before: Graph, after: Graph, names: Mapping[str, str]) -> Iterator[Fact]:
    for place in range(max(len(before.outputs), len(after.outputs))):
        a, b = (_at(graph.outputs, place) for graph in (before, after))
        if names.get(a, a) != b:
            yield Fact(f"output {place}", f"%{a}" if a else "", f"%{b}" if b else "")
