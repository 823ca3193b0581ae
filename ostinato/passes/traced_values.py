"""Which values of a graph a trace keeps: patterns become names, and whatever cannot be kept is said with its reason.

A value is kept by making it an output, so it must be one that a copy of is the value itself: not an update of state (that is read as state), not bytes that a
later node takes over, not a strided view. Integers are refused, never left out: a trace is for numbers that are compared, and one that seems empty misleads.
Names that a fusion swallowed are found among the origins of the nodes that swallowed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NoReturn

from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.ir.explain import unknown_name
from ostinato.ir.graph import Graph
from ostinato.ir.naming import matches
from ostinato.ir.ops import OP
from ostinato.ir.views import ViewTable
from ostinato.passes.rewrite import overwritten_values

__all__ = ["TracedValues", "traced_values", "with_outputs"]

_SHOWN = 5
_UNFUSED = "TraceSession(..., unfused=True) keeps it"


@dataclass(frozen=True, slots=True)
class TracedValues:
    """`names` in program order; by scope the values that leave it, where scopes were asked for; by name what a pattern found that cannot be kept, with the
    reason; and by pattern why it found nothing at all that can be."""

    names: tuple[str, ...]
    scopes: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str]
    missing: Mapping[str, ConfigError]


def with_outputs(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with more outputs; those that it has stay where they are."""
    return replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *names))))


def traced_values(
    graph: Graph,
    decisions: Mapping[str, Decision],
    values: Sequence[str],
    results_of: Sequence[str] = (),
) -> TracedValues:
    """The values that patterns name (`ir/naming.py`: "layers.0" is everything in that layer), and those that leave the scopes of `results_of` ("layers.*": one
    scope a layer).

    Raises `DTypeError` that lists integers among them.
    """
    found = _Finder(graph, decisions)
    left_out: dict[str, str] = {}
    scopes: dict[str, tuple[str, ...]] = {}
    missing: dict[str, ConfigError] = {}
    names: set[str] = set()
    for pattern in values:
        try:
            kept, out = found.by_name(pattern)
        except ConfigError as error:
            missing[pattern] = error
        else:
            names.update(kept)
            left_out.update(out)
    for pattern in results_of:
        try:
            scopes.update(found.by_scope(pattern))
        except ConfigError as error:
            missing[pattern] = error
    names.update(name for kept in scopes.values() for name in kept)
    made = [value.name for node in graph.nodes for value in node.results]
    return TracedValues(tuple(name for name in made if name in names), scopes, left_out, missing)


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a value cannot be kept, and what to do instead."""

    text: str
    hint: str


class _Finder:
    def __init__(self, graph: Graph, decisions: Mapping[str, Decision]) -> None:
        self._graph = graph
        self._made = {value.name: value.type for node in graph.nodes for value in node.results}
        self._updates = _updates(graph)
        self._taken_over = overwritten_values(graph)
        self._views = ViewTable(graph) if not graph.dims else None
        self._inside = {
            origin.name: name
            for name, decision in decisions.items()
            for origin in decision.origins
            if origin.name not in self._made
        }

    def by_name(self, pattern: str) -> tuple[list[str], dict[str, str]]:
        """The values that a pattern names, and those that it names and that cannot be kept. Raises `ConfigError` where none can."""
        text = pattern.removeprefix("%")
        # a name is itself alone, though others may have its parts
        names = [text] if text in self._made else [name for name in self._made if matches(text, name)]
        integers = [name for name in names if not self._made[name].dtype.is_float]
        if integers:
            shown = ", ".join(f"%{name} ({self._made[name].dtype.value})" for name in integers[:_SHOWN])
            more = f" and {len(integers) - _SHOWN} more" if len(integers) > _SHOWN else ""
            raise DTypeError(
                f"only float values are traced, {pattern!r} names {shown}{more}",
                node=integers[0],
                hint="name the float values; integer outputs such as token ids are what the call itself gives",
            )
        left_out = {name: reason for name in names if (reason := self._against(name))}
        for name, node in self._inside.items():
            if name == text or matches(text, name):
                left_out[name] = _Reason(f"it is made inside of %{node}, which keeps no value of that name", _UNFUSED)
        kept = [name for name in names if name not in left_out]
        if not kept:
            self._refuse(pattern, text, left_out)
        return kept, {name: reason.text for name, reason in left_out.items()}

    def by_scope(self, pattern: str) -> dict[str, tuple[str, ...]]:
        """The scopes whose names have as many parts as the pattern and match it, each with the values that leave it."""
        wanted = pattern.removeprefix("%").split(".")
        inside: dict[str, list[str]] = {}
        for name in self._made:
            parts = name.split(".")
            if len(parts) > len(wanted) and all(map(fnmatchcase, parts, wanted)):
                inside.setdefault(".".join(parts[: len(wanted)]), []).append(name)
        if not inside:
            scopes = list(dict.fromkeys(name.rpartition(".")[0] for name in self._made if "." in name))
            last = [scope for scope in scopes if scope.count(".") >= len(wanted) and matches(pattern, scope)]
            within = [scope for scope in last if all(map(fnmatchcase, scope.split(".")[-len(wanted) :], wanted))]
            alike = within[:_SHOWN] or get_close_matches(pattern, scopes, _SHOWN) or scopes[:_SHOWN]
            raise ConfigError(
                f"results_of={pattern!r} names no scope", hint=f"scopes are {', '.join(alike) or 'none here'}"
            )
        found: dict[str, tuple[str, ...]] = {}
        for scope, names in inside.items():
            kept = tuple(name for name in names if self._leaves(name, scope) and not self._against(name))
            floats = tuple(name for name in kept if self._made[name].dtype.is_float)
            if not floats:
                raise ConfigError(
                    f"no float value that can be kept leaves {scope}",
                    node=scope,
                    hint=f"name values of it, such as {names[-1]!r}; {_UNFUSED}",
                )
            found[scope] = floats
        return found

    def _leaves(self, name: str, scope: str) -> bool:
        """Whether somebody outside of the scope has it: a node with no result there nor in what derives the scope, or the caller."""
        inside = (f"{scope}.", f"d.{scope}.")
        if name in self._graph.outputs:
            return True
        return any(
            not any(value.name.startswith(inside) for value in user.results) for user in self._graph.users.get(name, ())
        )

    def _against(self, name: str) -> _Reason | None:
        """Why a float value cannot be kept; None where it can."""
        if name in self._updates:
            return _Reason(f"it is an update of {self._updates[name]}", "read_state() reads that")
        if name in self._taken_over:
            return _Reason("its bytes are taken over by a later node, which updates them", "trace what that makes")
        if self._views is not None:
            place = self._views[name]
            if OP[self._graph.producers[name].op].is_view and not place.contiguous:
                return _Reason(f"it is a strided view of %{place.base}", f"trace {place.base!r}")
        return None

    def _refuse(self, pattern: str, text: str, left_out: Mapping[str, _Reason]) -> NoReturn:
        if left_out:
            name, reason = next(iter(left_out.items()))
            others = f" (so are {len(left_out) - 1} more that {pattern!r} names)" if len(left_out) > 1 else ""
            raise ConfigError(f"cannot be kept{others}: {reason.text}", node=name, hint=reason.hint or None)
        if text in self._graph.inputs_by_name:
            role = self._graph.inputs_by_name[text].role.value
            raise ConfigError(
                f"it is an input of the graph ({role}), not a value that a run makes",
                node=text,
                hint="name what a node makes; state is read with read_state, other inputs are what was given",
            )
        raise unknown_name(pattern, (*self._made, *self._inside), "value that a run makes")


def _updates(graph: Graph) -> dict[str, str]:
    """Values that lie in the bytes of state, a parameter or a carried input, with what they update."""
    owner = {item.value.name: item.value.name for item in graph.updated}
    found: dict[str, str] = {}
    for node in graph.nodes:
        for result, operand in OP[node.op].aliased(node.operands):
            source = node.operands[operand]
            if source in owner:
                found[node.results[result].name] = owner[node.results[result].name] = owner[source]
    return found
