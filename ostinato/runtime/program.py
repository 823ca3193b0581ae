"""A compiled program: the plan with the graphs it came from. What every mode starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ostinato.ir.decision import Decision
from ostinato.ir.evidence import Validations
from ostinato.ir.explain import Explanation, explain
from ostinato.ir.explain_layout import LayoutAnswer, explain_layout
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import WeightSource

__all__ = ["NoWeights", "Program", "Relower", "Saver"]

Relower = Callable[[Callable[[Graph], Sequence[str]]], tuple[Graph, Mapping[str, Decision]]]
"""Lowers an entry again with more outputs, which the function that is given picks from the graph before any pass; the graph after them, and its decisions."""


class Saver(Protocol):
    """Writes an executable of a program to a file, as `Executable.save` says; whoever wires programs hands it in."""

    def __call__(self, executable: Any, path: Path, *, weights: bool, whole: bool) -> Path: ...


@dataclass(frozen=True, slots=True)
class Program:
    """A proven plan, the graph of each entry's plan, the target whose rows they name, and where the weights come from.

    Where values are computed again, `graphs` has the clones and `originals` the graph as it was before; of other entries it may have none. `decisions` say by
    entry and node why each row was chosen, `validations` what was validated for it on first use. `relower` has the entries whose model is at hand, not only
    what became of it. `saver` is there where the program can be written to a file.
    """

    plan: ProgramPlan
    graphs: Mapping[str, Graph]
    target: Target
    source: WeightSource
    originals: Mapping[str, Graph] = field(default_factory=dict)
    decisions: Mapping[str, Mapping[str, Decision]] = field(default_factory=dict)
    validations: Validations = field(default_factory=Validations)
    relower: Mapping[str, Relower] = field(default_factory=dict)
    saver: Saver | None = field(default=None, compare=False)

    def original(self, entry: str) -> Graph:
        """An entry's graph without clones."""
        return self.originals.get(entry, self.graphs[entry])

    def explain(self, pattern: str) -> Explanation:
        """Why the nodes of that name or pattern run as they do, in every entry; raises what `ir.explain.explain` raises."""
        return explain(self._explained, self.decisions, pattern)

    def explain_layout(self, pattern: str) -> LayoutAnswer:
        """Why the values of that name or pattern lie as they do, in every entry; raises what `ir.explain_layout.explain_layout` raises."""
        return explain_layout(self._explained, self.decisions, self.target, pattern)

    @property
    def _explained(self) -> dict[str, Graph]:
        """The graphs of which the decisions are."""
        return {name: self.original(name) for name in self.plan.entries}


class NoWeights:
    """The source of a program without weights: it has none of any name (`KeyError`)."""

    def dtype(self, tensor: str) -> DType:
        raise KeyError(tensor)

    def shape(self, tensor: str) -> tuple[int, ...]:
        raise KeyError(tensor)

    def row_order(self, tensor: str) -> Array | None:
        raise KeyError(tensor)

    def shift(self, tensor: str) -> float:
        raise KeyError(tensor)

    def map(self, tensor: str) -> Array:
        raise KeyError(tensor)

    def release(self, tensor: str) -> None:
        raise KeyError(tensor)
