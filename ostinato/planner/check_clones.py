"""The proof of recomputation: a graph with clones computes what the graph without them does.

Part of the checker, so it knows graphs and the operator table and nothing of how clones are chosen. With every clone taken out, and what it makes replaced by
what its original makes, the graph must be exactly the one that it came from: the same inputs, outputs and extents, the same nodes in the same order. And every
clone must be its original once more: the same operator, attributes, implementation and result types, operands that are equal up to clones, and pure. Then each
value of a clone equals its original's, by induction from the first clone on. That a clone finds its operands intact in memory is for the replay to prove, as it
is for any node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import Effect, OpDef

__all__ = ["clone_problems"]


def clone_problems(graph: Graph, source: Graph, clones: Mapping[str, str], ops: Mapping[str, OpDef]) -> list[str]:
    """What is wrong with `clones` (clone -> original) as all that `graph` has more than `source`; empty where the two compute the same."""
    same = {
        "name": graph.name == source.name,
        "inputs": graph.inputs == source.inputs,
        "extents": graph.extents == source.extents,
        "outputs": graph.outputs == source.outputs,
    }
    problems = [f"it has not the {what} of the graph without clones" for what, equal in same.items() if not equal]
    originals = {node.name: node for node in source.nodes}
    # value -> the value of `source` that it equals
    equals = {item.value.name: item.value.name for item in graph.inputs}
    made = Counter(equals.keys())
    left: list[Node] = []
    for node in graph.nodes:
        unknown = [name for name in node.operands if name is not None and name not in equals]
        problems += [f"%{node.name} reads %{name}, which nothing above it makes" for name in unknown]
        operands = tuple(name if name is None else equals.get(name, name) for name in node.operands)
        plain = replace(node, operands=operands)
        made.update(value.name for value in node.results)
        if node.name not in clones:
            left.append(plain)
            equals.update((value.name, value.name) for value in node.results)
            continue
        original = originals.get(clones[node.name])
        if original is None:
            problems.append(
                f"%{node.name} is a clone of %{clones[node.name]}, which is no node of the graph without clones"
            )
            continue
        problems += [f"%{node.name} is no clone of %{original.name}: {why}" for why in _differences(plain, original)]
        opdef = ops[node.op]
        if opdef.effect is not Effect.PURE or opdef.must_alias:
            effect = "writes over an operand" if opdef.must_alias else f"has the effect {opdef.effect.value}"
            problems.append(f"%{node.name} must not run twice: {node.op} {effect}")
        equals.update(zip((v.name for v in node.results), (v.name for v in original.results), strict=False))
    problems += [f"%{name} is made {count} times" for name, count in made.items() if count > 1]
    absent = clones.keys() - {node.name for node in graph.nodes}
    problems += [f"clone %{name} is no node of the graph" for name in sorted(absent)]
    for node, expected in zip_longest(left, source.nodes):
        if node != expected:
            found, wanted = ("nothing" if n is None else f"%{n.name} = {n.op}({_names(n)})" for n in (node, expected))
            problems.append(f"without its clones it has {found} where the graph that it came from has {wanted}")
            break  # those below are shifted
    return problems


def _differences(clone: Node, original: Node) -> list[str]:
    """In what a clone, its operands named as in the graph without clones, is not its original."""
    pairs = {
        "operator": (clone.op, original.op),
        "attributes": (clone.attrs, original.attrs),
        "implementation": (clone.impl, original.impl),
        "operands": (_names(clone), _names(original)),
        "types": ([str(value.type) for value in clone.results], [str(value.type) for value in original.results]),
    }
    return [f"{what} {found}, expected {wanted}" for what, (found, wanted) in pairs.items() if found != wanted]


def _names(node: Node) -> str:
    return ", ".join("_" if name is None else f"%{name}" for name in node.operands)
