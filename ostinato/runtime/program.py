"""A compiled program: the plan with the graphs it came from. What every mode starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import WeightSource

__all__ = ["Program"]


@dataclass(frozen=True, slots=True)
class Program:
    """A proven plan, the selected graph of each entry, the target whose rows they name, and where the weights come from."""

    plan: ProgramPlan
    graphs: Mapping[str, Graph]
    target: Target
    source: WeightSource
