"""Why nodes run as they do: decisions put beside the nodes that they are about, as values that print.

A question is a name or a pattern (`naming.py`). It finds nodes by their own names and by those of the nodes that they were made of: who asks for `q_proj` gets
the product that query, key and value became.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ostinato.ir.checks import shown
from ostinato.ir.decision import Counters, Decision, policy_counters
from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Exactness
from ostinato.ir.graph import Graph, Location, Node
from ostinato.ir.naming import any_layer, matches

__all__ = ["ExplainedNode", "Explanation", "explain", "one_for_all_layers", "unknown_name"]

_LIKE = 5
_EXACTNESS = {
    Exactness.TOLERANCE: "within tolerance",
    Exactness.ROW_INVARIANT: "the same in any batch",
    Exactness.REFERENCE: "the bits of the reference",
}


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """A node of an entry with its decision: name and operator, the user's line, and the types of its results with their layouts."""

    entry: str
    name: str
    op: str
    location: Location | None
    results: tuple[str, ...]
    decision: Decision

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        found = self.decision
        where = f" at {self.location}" if self.location is not None else ""
        records = f"; records {', '.join(found.evidence)}" if found.evidence else ""
        yield f"{self.entry}: %{self.name} = {self.op}{where}"
        yield f"  runs {self.op}@{found.row} ({found.level.name.lower()}), {_EXACTNESS[found.exactness]}{records}"
        if found.note:
            yield f"  {found.note}"
        yield f"  makes {', '.join(self.results)}"
        for origin in found.origins:
            yield f"  made of {origin}"
        for use in found.policies:
            yield f"  policy {use.policy}: {': '.join(filter(None, ('taken' if use.taken else 'bypassed', use.text)))}"
        for rejection in found.rejected:
            yield f"  not {rejection}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The nodes that a question found, entry by entry in program order. Prints as text, a paragraph each; layers of which the same is to be said have one."""

    nodes: tuple[ExplainedNode, ...]

    def __str__(self) -> str:
        return one_for_all_layers((node.name, str(node)) for node in self.nodes)

    @property
    def policies(self) -> dict[str, Counters]:
        """How often each selection policy was taken and bypassed among these nodes."""
        return policy_counters(node.decision for node in self.nodes)


def explain(
    graphs: Mapping[str, Graph], decisions: Mapping[str, Mapping[str, Decision]], pattern: object
) -> Explanation:
    """The nodes of all entries that a name or pattern finds, with their decisions; "*" finds all.

    Raises `ConfigError` for one that finds none, with names that are like it.
    """
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"explain {shown(pattern)}: expected a name or a pattern, as text")
    text = pattern.removeprefix("%")
    found: list[ExplainedNode] = []
    known: dict[str, None] = {}
    for entry, graph in graphs.items():
        for node in graph.nodes:
            decision = decisions.get(entry, {}).get(node.name)
            if decision is not None:
                names = _names(node, decision)
                known.update(dict.fromkeys(names))
                if any(matches(text, name) for name in names) or text == node.op:
                    results = tuple(f"%{value.name}: {value.type}" for value in node.results)
                    found.append(ExplainedNode(entry, node.name, node.op, node.location, results, decision))
    if not found:
        raise unknown_name(pattern, known, "node that runs")
    return Explanation(tuple(found))


def unknown_name(pattern: object, known: Iterable[str], what: str) -> ConfigError:
    """The error for a name or pattern that finds nothing of that kind, with names that are like it."""
    names = list(dict.fromkeys(known))
    parts = [part for name in names for part in name.split(".")]
    alike = get_close_matches(str(pattern).removeprefix("%"), list(dict.fromkeys((*names, *parts))), _LIKE)
    return ConfigError(
        f"{pattern!r} names no {what}",
        hint=f"names that are like it: {', '.join(alike)}"
        if alike
        else f'patterns match whole parts of names, such as {next(iter(names), "layers.0")!r}; "*" finds all',
    )


def one_for_all_layers(paragraphs: Iterable[tuple[str, str]]) -> str:
    """Paragraphs, each with the name that it is about, as one text: those that differ in the number of a layer alone stand there once."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, text in paragraphs:
        alike.setdefault(any_layer(text), []).append((name, text))
    return "\n\n".join(f"{first}{_the_same([name for name, _ in others])}" for (_, first), *others in alike.values())


def _the_same(others: Sequence[str]) -> str:
    """The last line of a paragraph that stands for several nodes."""
    if not others:
        return ""
    names = [f"%{name}" for name in others]
    shown = ", ".join(names) if len(names) < _LIKE else f"{len(names)} more, {names[0]} to {names[-1]}"
    return f"\n  the same for {shown}"


def _names(node: Node, decision: Decision) -> list[str]:
    """What a node is called, and what the nodes were called that it was made of."""
    return [*(value.name for value in node.results), *(origin.name for origin in decision.origins)]
