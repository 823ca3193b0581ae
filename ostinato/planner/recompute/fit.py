"""Plans a graph within a limit of memory: without a clone where that fits, else with the cheapest clones found, else it says what is missing.

The scripts that are planned come from a ladder of budgets (`ladder.py`) that does not know the limit. Those of the budgets below it are planned for real,
since only a plan says what the arena takes, and the cheapest that fits is taken: what is found for a limit is found for every higher one too, which never costs
more work. Work is counted and never timed: the same graph and settings give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ostinato.ir.errors import CapacityError
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
from ostinato.planner.recompute.ladder import Ladder
from ostinato.planner.recompute.model import Script, recompute_model
from ostinato.planner.recompute.shortage import Floor, Smallest, shortage
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings

__all__ = ["fit_entry", "least_arena"]


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

    Raises what `plan_entry` raises, and `CapacityError` where nothing fits: how many bytes are missing to the smallest limit that a plan is found for, and who
    lives at the peak of that plan. It is looked for then, unless not `thorough`, for who has another graph to try: then bytes are missing to what no plan of
    this order goes below.
    """
    task = _Task(graph, target, name, dims or {}, options or {}, settings, ops)
    plan = task.plan(graph)
    limit = settings.memory_limit
    if limit is None or plan.stats.arena_bytes <= limit:
        return graph, plan
    search = _Search(task, plan, limit)
    if settings.reuse:
        search.run()
    if search.found is not None:
        return search.found.graph, search.found.plan
    if not thorough:
        missing = max(search.least - limit, 0)
        raise CapacityError(
            f"memory_limit is {limit} bytes of arena: no plan is found", missing_bytes=missing, node=name
        )
    smallest = search.smallest() if settings.reuse else Smallest(graph, plan, plan.stats.arena_bytes)
    raise shortage(smallest, limit=limit, floor=search.floor, least=search.least, tried=search.tried)


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
    """`found` is the cheapest script whose plan fits, `least` the bytes that no script goes below in this order, `tried` how many scripts were planned."""

    def __init__(self, task: _Task, plan: EntryPlan, limit: int) -> None:
        self._task, self._whole, self._limit = task, plan, limit
        program = program_order(task.graph, task.ops)
        self._prepared = prepare(task.graph, task.target, schedule=program, settings=task.settings, ops=task.ops)
        order = [step.node for step in plan.steps if step.kind is not StepKind.COPY]
        settings = task.settings
        self._model = recompute_model(self._prepared, order, in_place=settings.in_place, guard=settings.guard)
        self._ladder = Ladder(self._model)
        self._ahead = align_up(settings.guard, task.target.alignment)  # before the first slot
        most, turn = self._model.floor()
        self.floor = Floor(most + self._ahead, order[turn])
        self.least = self._ladder.least + self._ahead
        self.found: _Found | None = None
        self._plans: dict[tuple[Script, bool], _Found] = {}

    @property
    def tried(self) -> int:
        return len(self._plans)

    def run(self) -> None:
        """Goes down the ladder from the limit until what is below costs more than what was found."""
        for budget in self._ladder.budgets:
            if budget + self._ahead > self._limit:
                continue
            if self.found is not None and self._ladder.work(budget) >= self._model.cost(self.found.script):
                break
            for script in self._ladder.scripts(budget):
                if self.found is not None and self._model.cost(script) >= self._model.cost(self.found.script):
                    break
                self._consider(script)

    def smallest(self) -> Smallest:
        """The plan of the lowest budget that has one; `run` finds it, or one that costs less, for the limit that is told."""
        whole = Smallest(self._task.graph, self._whole, self._whole.stats.arena_bytes)
        for budget in reversed(self._ladder.budgets):
            for script in self._ladder.scripts(budget)[:1]:
                found = self._planned(script)
                enough = max(found.plan.stats.arena_bytes, budget + self._ahead)
                return min(whole, Smallest(found.graph, found.plan, enough), key=lambda plan: plan.limit)
        return whole

    def _consider(self, script: Script) -> None:
        """Plans a script in its own order and, where that is too large, in one that is searched for; remembers it where it fits."""
        found = self._planned(script)
        if found.plan.stats.arena_bytes > self._limit and self._task.settings.order == "search":
            found = self._planned(script, searched=True)
        if found.plan.stats.arena_bytes <= self._limit:
            self.found = found

    def _planned(self, script: Script, *, searched: bool = False) -> _Found:
        task, key = self._task, (script, searched)
        if key not in self._plans:
            made = rewritten(task.graph, self._prepared.storages, self._model, script, task.ops)
            plan = task.plan(made.graph, None if searched else made.schedule)
            self._plans[key] = _Found(script, made.graph, self._marked(plan, script, made.clones))
        return self._plans[key]

    def _marked(self, plan: EntryPlan, script: Script, clones: Mapping[str, str]) -> EntryPlan:
        """The plan of a graph with clones, which says so."""
        extra = self._model.cost(script)
        work = {"recomputed": sum(map(len, script)), "extra_work": extra / self._model.work if extra else 0.0}
        stats = plan.stats.model_copy(update=work)
        return plan.model_copy(update={"clones": clones, "source_hash": self._prepared.graph_hash, "stats": stats})
