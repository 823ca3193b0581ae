"""Plans a graph within a limit of memory: without a clone where that fits, else with the cheapest clones found, else it says what is missing.

Walks under a budget, with and without a cut at the peak, propose scripts; clones that a script can do without are taken out again; the cheapest are planned for
real, since only a plan says what the arena takes. The budget is what the model counts for the limit: it falls where plans come out above the limit, and rises
where they leave room. Work is counted and never timed: the same graph and settings give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import StepKind
from ostinato.ir.target import Target
from ostinato.planner.lower import plan_entry, prepare
from ostinato.planner.order import Scheduled, program_order
from ostinato.planner.plan import EntryPlan
from ostinato.planner.problem import align_up
from ostinato.planner.recompute.clones import rewritten
from ostinato.planner.recompute.cut import cuts_at
from ostinato.planner.recompute.model import Script, recompute_model
from ostinato.planner.recompute.shortage import Floor, shortage
from ostinato.planner.recompute.trace import Trace, trimmed
from ostinato.planner.recompute.walk import POLICIES, walk
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings

__all__ = ["fit_entry", "least_arena"]

ROUNDS = 6
"""Budgets that are tried one below the other, as long as plans exceed the limit."""
HALVINGS = 4
"""Budgets that are tried between a limit that nothing keeps and the unlimited plan, to say what would do."""
PLANNED = 3
"""Scripts of a round that are planned for real."""
TRIED_BUDGETS = 3
"""Budgets, each lower by what the last exceeded it, that a walk is given to keep to the first."""
CHEAP = 1000
"""A script that adds less than this part to the work of the graph is not bettered."""
CUTS = 4
"""Steps at which one walk is given a cut: the peak, then each that a walk leaves above the budget."""


def fit_entry(
    graph: Graph,
    target: Target,
    *,
    name: str,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, str] | None = None,
    settings: PlanSettings = DEFAULT_SETTINGS,
    ops: Mapping[str, OpDef] = OP,
    thorough: bool = True,
) -> tuple[Graph, EntryPlan]:
    """The plan of a graph, in `settings.memory_limit` bytes of arena where a limit is set, and the graph it is the plan of: this one, or this one with clones.

    Raises what `plan_entry` raises, and `CapacityError` where nothing fits: how many bytes are missing, and who lives at the peak. Of the smallest plan that is
    found, which is looked for then, unless not `thorough`: for who has another graph to try.
    """
    task = _Task(graph, target, name, dims or {}, options or {}, settings, ops)
    plan = task.plan(graph)
    limit = settings.memory_limit
    if limit is None or plan.stats.arena_bytes <= limit:
        return graph, plan
    search = _Search(task, plan, limit)
    if settings.reuse:
        search.run(HALVINGS if thorough else 0)
    if search.found is None:
        raise shortage(*search.smallest, limit=limit, floor=search.floor, tried=search.tried)
    return search.found.graph, search.found.plan


def least_arena(
    graph: Graph, target: Target, *, settings: PlanSettings = DEFAULT_SETTINGS, ops: Mapping[str, OpDef] = OP
) -> int:
    """Bytes of arena that no plan of a graph goes below, in whatever order it runs and whatever it computes again: what the hungriest step takes by itself,
    operands included. Nothing is placed or searched."""
    program = program_order(graph, ops)
    prepared = prepare(graph, target, schedule=program, settings=settings, ops=ops)
    order = [turn.node.name for turn in program]
    model = recompute_model(prepared, order, in_place=settings.in_place, guard=settings.guard)
    return model.floor()[0] + align_up(settings.guard, target.alignment)


@dataclass(frozen=True, slots=True)
class _Task:
    """What is planned, and how."""

    graph: Graph
    target: Target
    name: str
    dims: Mapping[str, int]
    options: Mapping[str, str]
    settings: PlanSettings
    ops: Mapping[str, OpDef]

    def plan(self, graph: Graph, schedule: Iterable[Scheduled] | None = None) -> EntryPlan:
        return plan_entry(
            graph,
            self.target,
            name=self.name,
            dims=self.dims,
            options=self.options,
            schedule=None if schedule is None else tuple(schedule),
            settings=self.settings,
            ops=self.ops,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A script with its real plan."""

    script: Script
    graph: Graph
    plan: EntryPlan


class _Search:
    """`found` is the cheapest script whose plan fits, `smallest` the graph and plan that need fewest bytes, `tried` how many scripts with clones
    were planned."""

    def __init__(self, task: _Task, plan: EntryPlan, limit: int) -> None:
        self._task, self._limit = task, limit
        program = program_order(task.graph, task.ops)
        self._prepared = prepare(task.graph, task.target, schedule=program, settings=task.settings, ops=task.ops)
        order = [step.node for step in plan.steps if step.kind is not StepKind.COPY]
        settings = task.settings
        self._model = recompute_model(self._prepared, order, in_place=settings.in_place, guard=settings.guard)
        self._ahead = align_up(settings.guard, task.target.alignment)  # before the first slot
        most, turn = self._model.floor()
        self.floor = Floor(most + self._ahead, order[turn])
        self.found: _Found | None = None
        self.smallest = (task.graph, plan)
        self._planned: dict[Script, _Found] = {}

    @property
    def tried(self) -> int:
        return sum(map(any, self._planned))

    def run(self, halvings: int) -> None:
        """Lowers the budget until a plan fits, then takes out the clones that there is room to do without; where none fits, looks for the smallest there is."""
        unit = self._task.target.alignment
        least = self.floor.bytes - self._ahead
        budget = self._limit - self._ahead
        for _ in range(ROUNDS):
            excess = self._round(budget) if budget >= least else 0
            if not excess:
                break
            budget -= max(excess, unit)
        low, high = max(self._limit - self._ahead, least), Trace(self._model, self._model.nothing).peak
        for _ in range(halvings):
            if self.found is not None or high - low <= unit:
                break
            middle = (low + high) // 2
            self._round(middle, planned=1)
            if self.smallest[1].stats.arena_bytes - self._ahead <= middle:
                high = middle
            else:
                low = middle
        while self.found is not None:
            before = self.found
            room = self._limit - before.plan.stats.arena_bytes
            self._consider(trimmed(self._model, before.script, Trace(self._model, before.script).peak + room))
            if self.found is before:
                break

    def _round(self, budget: int, planned: int = PLANNED) -> int:
        """Plans up to `planned` scripts for a budget, the cheapest first, until one fits; the bytes by which the smallest exceeds the limit, 0 when there is
        none."""
        model = self._model
        peaks: dict[Script, int] = {}
        for script, trace in self._proposals(budget):
            peaks[script] = trace.peak
            if trace.peak <= budget and model.cost(script) * CHEAP <= model.work:
                break
        within = sorted((script for script in peaks if peaks[script] <= budget), key=model.cost)
        lean = dict.fromkeys(trimmed(model, script, budget) for script in within[:planned])
        chosen = sorted(lean, key=model.cost) or sorted(peaks, key=lambda script: (peaks[script], model.cost(script)))
        excess: list[int] = []
        for script in chosen[:planned]:
            excess.append(max(self._consider(script).stats.arena_bytes - self._limit, 0))
            if not excess[-1]:
                break
        return min(excess, default=0)

    def _proposals(self, budget: int) -> Iterator[tuple[Script, Trace]]:
        """Scripts that may keep to a budget: walks by every policy, then walks with a cut at the peak and at every step that is still above the budget."""
        model = self._model
        for policy in POLICIES:
            given = budget
            for _ in range(TRIED_BUDGETS):
                script = walk(model, given, policy)
                if script is None:
                    break
                trace = Trace(model, script)
                yield script, trace
                if trace.peak <= budget:
                    break
                given -= trace.peak - budget
        for cut in cuts_at(model, Trace(model, model.nothing).place, budget):
            cuts = {cut.turn: cut}
            while True:
                script = walk(model, budget, cuts=tuple(cuts.values()))
                if script is None:
                    break
                trace = Trace(model, script)
                yield script, trace
                more = cuts_at(model, trace.place, budget)
                if trace.peak <= budget or trace.place in cuts or len(cuts) == CUTS or not more:
                    break
                cuts[trace.place] = more[0]

    def _consider(self, script: Script) -> EntryPlan:
        """Plans a script in its own order and, where that is too large, in one that is searched for; remembers it where it is the best so far."""
        found = self._planned.get(script)
        if found is None:
            task = self._task
            made = rewritten(task.graph, self._prepared.storages, self._model, script, task.ops)
            plan = task.plan(made.graph, made.schedule)
            if plan.stats.arena_bytes > self._limit and task.settings.order == "search":
                plan = min(plan, task.plan(made.graph), key=lambda plan: plan.stats.arena_bytes)
            found = self._planned[script] = _Found(script, made.graph, self._marked(plan, script, made.clones))
        arena = found.plan.stats.arena_bytes
        if arena < self.smallest[1].stats.arena_bytes:
            self.smallest = (found.graph, found.plan)
        cost = self._model.cost
        if arena <= self._limit and (self.found is None or cost(script) < cost(self.found.script)):
            self.found = found
        return found.plan

    def _marked(self, plan: EntryPlan, script: Script, clones: Mapping[str, str]) -> EntryPlan:
        """The plan of a graph with clones, which says so."""
        extra = self._model.cost(script)
        work = {"recomputed": sum(map(len, script)), "extra_work": extra / self._model.work if extra else 0.0}
        stats = plan.stats.model_copy(update=work)
        return plan.model_copy(update={"clones": clones, "source_hash": self._prepared.graph_hash, "stats": stats})
