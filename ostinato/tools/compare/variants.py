"""The ways in which `compare` runs one program: the modes of an executable, and two that need another plan of the same steps.

"guarded" runs with guards between all slots, "no-reuse" is the planned mode over a plan in which no byte serves twice. Both keep the order of the steps and
share the weights: a difference from "planned" is one of places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from ostinato.ir.interp import Observer
from ostinato.ir.step import StepKind
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.order import Scheduled
from ostinato.planner.program import build_program
from ostinato.planner.settings import DEFAULT_SETTINGS, GUARD_BYTES, PlanSettings
from ostinato.runtime.executable import Executable
from ostinato.runtime.options import MODES
from ostinato.runtime.program import Program

__all__ = ["VARIANTS", "in_plan", "in_variant"]

_NO_REUSE = "no-reuse"
_SETTINGS = frozenset(spec.name for spec in fields(PlanSettings))
VARIANTS = (*MODES, _NO_REUSE)


def in_variant(executable: Executable, variant: str, observer: Observer | None = None) -> Executable:
    """Another executable over the same weights that runs that way, with its own arena, io and (zeroed) state."""
    if variant == _NO_REUSE:
        return in_plan(executable, replace(DEFAULT_SETTINGS, reuse=False), "planned", observer)
    if variant == "guarded":
        return in_plan(executable, replace(DEFAULT_SETTINGS, guard=GUARD_BYTES), variant, observer)
    return executable.clone(variant, observer)


def in_plan(
    executable: Executable,
    settings: PlanSettings,
    mode: str,
    observer: Observer | None = None,
    capture: Sequence[str] | None = None,
) -> Executable:
    """Another executable over the same weights and steps, placed and proven anew with other settings. Raises what planning and loading raise."""
    program, shared = _replanned(executable.program, settings), executable.regions.shared
    return type(executable)(
        program,
        executable.device,
        shared,
        mode=mode,
        capture=capture,
        observer=observer,
        reference_weights=executable.reference_weights,
        **executable.own_options,
    )


def _replanned(program: Program, settings: PlanSettings) -> Program:
    """The same steps in the same order, placed and proven anew. Weights, state and constants lie where they did: that follows from the graphs."""
    entries = {}
    for name, known in program.plan.entries.items():
        graph, target = program.graphs[name], program.target
        nodes = {node.name: node for node in graph.nodes}
        launches = (step for step in known.steps if step.kind is not StepKind.COPY)
        schedule = [Scheduled(nodes[step.node], step.lane, step.waits, step.signals) for step in launches]
        options = {key: value for key, value in known.options.items() if key not in _SETTINGS}
        entry = plan_entry(
            graph, target, name=name, dims=known.dims, options=options, schedule=schedule, settings=settings
        )
        entries[name] = (graph, entry)
    plan = build_program(entries)
    check_program(plan, program.graphs, program.target)
    return replace(program, plan=plan)
