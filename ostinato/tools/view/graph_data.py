"""A graph as the plain data of a page: columns of numbers, with every text in the page's table, so that a model of many layers stays small.

`nodes` has one column for each fact, all of one length; a value is the number of its name. Decisions that are equal in all layers are written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.ir.decision import Decision
from ostinato.ir.graph import Graph, GraphInput, Node
from ostinato.tools.view.repeats import find_repeats
from ostinato.tools.view.strings import Strings

__all__ = ["graph_data"]

_WORTH = 3
"""Nodes that a repeat hides at least: a frame around fewer would take more room than they do."""


def graph_data(
    graph: Graph,
    strings: Strings,
    decisions: Mapping[str, Decision] | None = None,
    clones: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The data of one graph: `inputs`, `nodes`, `outputs`, `repeats` ([start, period, count]) and `decisions`. `clones` names nodes that compute again what
    another one has computed, each with its original."""
    made, again = decisions or {}, clones or {}
    numbers: dict[tuple[Any, ...], int] = {}
    chosen = [made.get(again.get(node.name, node.name)) for node in graph.nodes]
    return {
        "name": strings(graph.name),
        "inputs": [_input(item, strings) for item in graph.inputs],
        "nodes": {
            "op": [strings(node.op) for node in graph.nodes],
            "row": [strings(node.impl) for node in graph.nodes],
            "reads": [[-1 if name is None else strings(name) for name in node.operands] for node in graph.nodes],
            "makes": [[strings(value.name) for value in node.results] for node in graph.nodes],
            "types": [[strings(str(value.type)) for value in node.results] for node in graph.nodes],
            "attributes": [strings(_attributes(node)) for node in graph.nodes],
            "file": [strings(node.location.file if node.location else None) for node in graph.nodes],
            "line": [node.location.line if node.location else 0 for node in graph.nodes],
            "decision": [
                -1 if found is None else numbers.setdefault(_decision(found, strings), len(numbers)) for found in chosen
            ],
            "origins": [
                []
                if found is None
                else [[strings(o.name), strings(o.op), strings(str(o.location or ""))] for o in found.origins]
                for found in chosen
            ],
        },
        "clones": {node.name: again[node.name] for node in graph.nodes if node.name in again},
        "outputs": [strings(name) for name in graph.outputs],
        "repeats": [[item.start, item.period, item.count] for item in find_repeats(graph) if item.hidden >= _WORTH],
        "decisions": [list(decision) for decision in numbers],
    }


def _input(item: GraphInput, strings: Strings) -> list[int]:
    """Name, role, type."""
    return [strings(item.value.name), strings(item.role.value), strings(str(item.value.type))]


def _attributes(node: Node) -> str:
    """As text; empty texts, which stand for what an operator does anyway, are left out."""
    return ", ".join(f"{name}={value}" for name, value in node.attrs.items() if value != "")


def _decision(found: Decision, strings: Strings) -> tuple[Any, ...]:
    """Row, level, exactness, records, note, policies (name, taken, text), rejected rows (name, level, kind of reason, reason, records)."""
    return (
        strings(found.row),
        strings(found.level.name.lower()),
        strings(found.exactness.name.lower().replace("_", " ")),
        tuple(strings(record) for record in found.evidence),
        strings(found.note),
        tuple((strings(use.policy), int(use.taken), strings(use.text)) for use in found.policies),
        tuple(
            (
                strings(item.row),
                strings(item.level.name.lower()),
                strings(item.reason.value),
                strings(item.text),
                tuple(strings(record) for record in item.evidence),
            )
            for item in found.rejected
        ),
    )
