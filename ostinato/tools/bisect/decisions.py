"""What can be decided otherwise about a side, kind by kind: the decisions by name, and the same side with only some of them in force.

Places, in-place results and early starts are changed in the plan that there is; nobody plans anew, so that nothing else changes with them. Rows are chosen
again for the graph as it is, so that fusions stay: a node that is not to keep its row gets the plainest one that takes it, the reference on the host, a
readable one on a GPU. Passes are run again from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.ir.graph import Graph
from ostinato.ir.ops import OP
from ostinato.ir.step import Step
from ostinato.ir.target import Level
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.choice import RowChoice
from ostinato.passes.pipeline import PASSES
from ostinato.passes.select_impl import SelectImpl
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.moved import apart, storages_of
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.runtime.captured import CapturedSteps
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.runtime.runners import PlannedRunner
from ostinato.runtime.weights import load_shared
from ostinato.stages import Passes
from ostinato.tools.bisect.subject import Outputs, Subject, fresh
from ostinato.tools.compare.workload import WorkStep
from ostinato.tools.repro.cut import plain_graph

__all__ = [
    "Decisions",
    "early_starts",
    "in_place",
    "passes_of",
    "prefix_outputs",
    "rows_of",
    "shared_bytes",
    "with_rows",
]

Made = Callable[[frozenset[str]], Executable]
"""The side with these decisions in force and none of the others of the kind."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of one kind, in the order of the program, by names that are unique among them; `about` says entry and names of each."""

    names: tuple[str, ...]
    made: Made
    about: Mapping[str, tuple[str, str]]


def shared_bytes(subject: Subject, entries: Iterable[str]) -> Decisions:
    """The slots whose bytes another slot has too. Those not in force get bytes of their own."""
    plans = subject.program.plan.entries
    about: dict[str, tuple[str, str]] = {}
    for entry in entries:
        slots = plans[entry].slots_on()
        for slot in slots:
            if any(slot is not other and slot.range.overlaps(other.range) for other in slots):
                about[f"{entry}/{slot.values[0]}"] = (entry, slot.values[0])

    def made(kept: frozenset[str]) -> Executable:
        changed: dict[str, list[Sequence[str]]] = {}
        for name, (entry, first) in about.items():
            if name not in kept:
                storages = storages_of(plans[entry], subject.program.graphs[entry])
                changed.setdefault(entry, []).append(storages[first])
        return _with_groups(subject, changed)

    return Decisions(tuple(about), made, about)


def in_place(subject: Subject, entries: Iterable[str]) -> Decisions:
    """The results that took an operand's bytes, by their storage. Those not in force get bytes of their own, and whoever took theirs with them."""
    plans, graphs = subject.program.plan.entries, subject.program.graphs
    about: dict[str, tuple[str, str]] = {}
    for entry in entries:
        for storages in storages_of(plans[entry], graphs[entry]).values():
            about.update({f"{entry}/{name}": (entry, name) for name in storages[1:]})

    def made(kept: frozenset[str]) -> Executable:
        changed: dict[str, list[Sequence[str]]] = {}
        for entry in {entry for name, (entry, _) in about.items() if name not in kept}:
            for first, *later in storages_of(plans[entry], graphs[entry]).values():
                groups = [[first]]
                for name in later:
                    if f"{entry}/{name}" in kept:
                        groups[-1].append(name)
                    else:
                        groups.append([name])
                changed.setdefault(entry, []).extend(groups[1:])
        return _with_groups(subject, changed)

    return Decisions(tuple(about), made, about)


def early_starts(subject: Subject, entries: Iterable[str]) -> Decisions:
    """The steps that start while the one before still runs. Those not in force wait for its end."""
    plans = subject.program.plan.entries
    about = {
        f"{entry}/{step.node}": (entry, step.node)
        for entry in entries
        for step in plans[entry].steps
        if step.launch is not None and step.launch.early
    }

    def made(kept: frozenset[str]) -> Executable:
        def late(entry: str, step: Step) -> Step:
            if step.launch is None or f"{entry}/{step.node}" in kept or f"{entry}/{step.node}" not in about:
                return step
            return replace(step, launch=replace(step.launch, early=False))

        changed = {}
        for entry in {entry for entry, _ in about.values()}:
            steps = tuple(late(entry, step) for step in plans[entry].steps)
            changed[entry] = plans[entry].model_copy(update={"steps": steps})
        return subject.with_plans(changed)

    return Decisions(tuple(about), made, about)


def rows_of(subject: Subject) -> Decisions:
    """The rows of all nodes that run, but for those that have the plainest already."""
    program = subject.program
    plainest = _plainest(program)
    about: dict[str, tuple[str, str]] = {}
    for entry, graph in program.graphs.items():
        for node in graph.nodes:
            row = None if OP[node.op].is_view else program.target.row(node.op, node.impl or "")
            if row is not None and row.level > plainest and node.name not in about:
                about[node.name] = (entry, node.name)
    return Decisions(tuple(about), lambda kept: with_rows(subject, kept), about)


def with_rows(subject: Subject, kept: frozenset[str]) -> Executable:
    """The side over rows chosen again: nodes in `kept` have theirs, all others the plainest. Its weights are loaded anew: they may lie otherwise.

    Raises `BackendError` where a node has no such row.
    """
    base, program = subject.executable, subject.program
    target, plainest = replace(program.target, evidence=None), _plainest(program).name.lower()
    entries: dict[str, tuple[Graph, EntryPlan]] = {}
    graphs: dict[str, Graph] = {}
    decisions = {}
    for name, plan in program.plan.entries.items():
        graph = program.original(name)
        running = [node for node in graph.nodes if not OP[node.op].is_view]
        forced = {node.name: (node.impl or plainest) if node.name in kept else plainest for node in running}
        choice = RowChoice().and_forced(forced)
        chosen, decisions[name] = SelectImpl(choice).decide(
            AssignLayout(choice).apply(plain_graph(graph), target), target
        )
        graphs[name] = chosen
        entries[name] = (chosen, plan_entry(chosen, target, name=name, dims=plan.dims))
    made = build_program(entries)
    check_program(made, graphs, target)
    chosen_program = Program(made, graphs, target, program.source, decisions=decisions)
    shared = load_shared(base.device, made, program.source)
    return type(base)(chosen_program, base.device, shared, mode=base.mode)


def passes_of(subject: Subject) -> tuple[Decisions, Sequence[str], Callable[[int], Executable]]:
    """The optional passes that ran, and the user's own by name, in order, with what makes the side with only the first k of those.

    Nothing where the side was not made here.
    """
    side = subject.side
    if side is None or not side.compiled or subject.sides is None or subject.sides.model is None:
        return Decisions((), lambda kept: subject.again(), {}), (), lambda count: subject.again()
    ran = {name for plan in subject.program.plan.entries.values() for name in plan.options}
    own: Passes = tuple(side.passes)
    names = tuple(name for name, item in PASSES.items() if item.optional and name in ran)

    def made(kept: frozenset[str]) -> Executable:
        off = tuple(name for name in names if name not in kept)
        return subject.made_otherwise(replace(side, disable=(*side.disable, *off)))

    def truncated(count: int) -> Executable:
        return subject.made_otherwise(replace(side, passes=tuple(own)[:count]))

    return Decisions(names, made, {name: ("", name) for name in names}), [item.name for _, item in own], truncated


def prefix_outputs(subject: Subject, work: Sequence[WorkStep], entry: str, count: int) -> Outputs:
    """What the workload gives when of one entry only the first `count` steps are captured, the others submitted one by one, and of other entries none.

    Raises what capturing raises.
    """
    executable = subject.executable.clone("planned")
    runner = executable.runner(entry)
    assert isinstance(runner, PlannedRunner), "a planned executable has planned runners"
    loaded, ranges = runner.loaded, [(0, count)] if count else []
    steps = CapturedSteps(executable.program.plan, loaded, executable.regions, ranges)
    fresh(executable)
    found = []
    for step in work:
        if step.entry == entry:
            for name, array in step.inputs.items():
                runner.inputs[name][...] = array
            loaded.exchange.give()
            steps.enqueue()
            outputs = loaded.exchange.take((step.output,))
            loaded.table.finish()
        else:
            outputs = executable.run(step.entry, step.inputs, (step.output,))
        found.append(np.array(outputs[step.output][: step.valid_rows]))
    return tuple(found)


def _with_groups(subject: Subject, changed: Mapping[str, Sequence[Sequence[str]]]) -> Executable:
    """The side over plans in which each group of storages has bytes of its own."""
    plans, graphs = subject.program.plan.entries, subject.program.graphs
    return subject.with_plans({entry: apart(plans[entry], graphs[entry], groups) for entry, groups in changed.items()})


def _plainest(program: Program) -> Level:
    return program.target.lowest
