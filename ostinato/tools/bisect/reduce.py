"""From a culprit to the smallest sub-graph that shows it: the node, or the few nodes, with the values that they read, as a repro bundle in memory.

The values are those of the walk, which recorded what was made before anything spoilt it; where the other side has them, its own. Every bundle is run before
it is handed out: one that does not show the fault is no reduction. Then counted rows are taken away as long as the fault stays.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.graph import Graph, Role
from ostinato.ir.ops import OP
from ostinato.ir.rounding import plain_arithmetic
from ostinato.ir.types import Array
from ostinato.ir.version import VERSION
from ostinato.ir.views import ViewTable
from ostinato.planner.moved import storages_of
from ostinato.planner.plan import EntryPlan, workspace_of
from ostinato.planner.saved import program_to_json
from ostinato.runtime.device import Device
from ostinato.saving.facts import environment_of
from ostinato.tools.bisect.report import Culprit
from ostinato.tools.bisect.subject import Subject
from ostinato.tools.compare.judgement import limits_of
from ostinato.tools.repro.bundle import Bundle
from ostinato.tools.repro.cut import ENTRY, Cut, cut_graph, fewer_rows, weight_rows
from ostinato.tools.repro.report import Environment, Outcome, ReproFile, Way
from ostinato.tools.repro.run import judge, needs_of, run_way

__all__ = ["Reduced", "reduced"]

_MOST_NODES = 64
_RUNS = 20
"""Of a node that may not repeat itself."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A bundle that shows the fault, and the JSON of its plan where places are the fault."""

    bundle: Bundle
    plan: str = ""


@dataclass(frozen=True, slots=True)
class _Try:
    """Nodes to cut out, what they put out (None: all that none of them reads), how the two ways are called, and whether the places count."""

    nodes: tuple[str, ...]
    outputs: tuple[str, ...] | None
    left: Way
    right: Way
    exact: bool
    places: bool = False
    runs: int = 1
    expected: Outcome = "mismatch"


def reduced(
    subject: Subject,
    culprit: Culprit,
    values: Mapping[str, Array],
    *,
    saved: Mapping[str, Array],
    limit: float,
    seed: int,
    model: str,
    extension: str,
    told: Callable[[str], None],
) -> Reduced:
    """The smallest bundle found that shows the fault. `saved` are values of the other side by name, `limit` the largest difference that is allowed.

    Raises `ConfigError` where none of the cuts shows it, saying why.
    """
    graph, plan = subject.program.original(culprit.entry), subject.program.plan.entries[culprit.entry]
    reasons: list[str] = []
    for attempt in _attempts(graph, plan, culprit):
        told(f"reducing to {len(attempt.nodes)} nodes")
        try:
            found = _cut(subject, graph, plan, attempt, values, saved)
            right = _shown(subject.executable.device, found, attempt, saved, limit, graph)
        except OstinatoError as error:
            reasons.append(error.message)
            continue
        if right is None:
            reasons.append(f"{', '.join(attempt.nodes[:3])} alone do not show it")
            continue
        return _bundle(subject, culprit, right, attempt, saved, limit, seed, model, extension)
    raise ConfigError(
        "; ".join(dict.fromkeys(reasons)) or "there is nothing to cut out",
        hint="the report names what differs; it cannot be shown by fewer nodes",
    )


def _environment(device: Device) -> Environment:
    """This machine, as a bundle names it."""
    made = environment_of(device)
    return Environment(
        library=VERSION,
        device=device.name,
        isa=device.isa,
        target=device.target.name,
        platform=platform.platform(),
        python=platform.python_version(),
        numpy=np.__version__,
        card=made.device,
        driver=made.driver,
        runtime=made.runtime,
        vendor_library=made.vendor_library,
        compiler=made.compiler,
    )


def _attempts(graph: Graph, plan: EntryPlan, culprit: Culprit) -> Iterable[_Try]:
    node = culprit.node
    match culprit.kind:
        case "row" | "nan":
            yield _Try((node,), None, "reference", "planned", exact=False)
        case "nondeterminism":
            yield _Try((node,), None, "planned", "planned", exact=True, runs=_RUNS, expected="not repeated")
        case "pass":
            yield _Try((node,), None, "saved", "reference", exact=False)
            yield _Try((node,), None, "saved", "planned", exact=False)
        case "bytes" | "in_place":
            for nodes, outputs in _tenants(graph, plan, culprit):
                yield _Try(nodes, outputs, "eager", "planned", exact=True, places=True)
        case "capture" | "early":
            for nodes in _windows(plan, node):
                yield _Try(nodes, None, "planned" if culprit.kind == "capture" else "eager", "captured", exact=True)
        case _:
            raise ConfigError(
                f"a fault of kind {culprit.kind} is not one of the graph: it cannot be cut out of it",
                hint="the report says what to do about it",
            )


def _tenants(graph: Graph, plan: EntryPlan, culprit: Culprit) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The nodes that make and read the storages of a culprit, from few to many, and what the last of them puts out. First those of the two storages that the
    walk saw, then those of whole slots."""
    nodes = {node.name: node for node in graph.nodes if not OP[node.op].is_view}
    order = [step.node for step in plan.steps if step.node in nodes]
    position = {name: index for index, name in enumerate(order)}
    owners = {name: view.base for name, view in ViewTable(graph).items()}
    slots = storages_of(plan, graph).values()
    whole = {name for group in slots if set(group) & set(culprit.names) for name in group}
    for storages in (set(culprit.names[:2]), whole):
        values = {value for value, owner in owners.items() if owner in storages}
        touched = {name for name in order if values & {*(o for o in nodes[name].operands if o), *_results(graph, name)}}
        touched |= {name for name in order if workspace_of(name) in storages}
        if not touched:
            continue
        every = sorted(touched, key=position.__getitem__)
        reader = culprit.node if culprit.node in touched else every[-1]
        near = every[: every.index(reader) + 1]
        yield tuple(near), _results(graph, near[-1])
        yield tuple(every), _results(graph, every[-1])
        window = order[position[every[0]] : position[every[-1]] + 1]
        if len(window) <= _MOST_NODES:
            yield tuple(window), _results(graph, window[-1])


def _windows(plan: EntryPlan, node: str) -> Iterable[tuple[str, ...]]:
    """The step, and those before it, four times as many each time."""
    order = list(dict.fromkeys(step.node for step in plan.steps))
    last, size = order.index(node), 1
    while size <= _MOST_NODES:
        yield tuple(order[max(0, last - size + 1) : last + 1])
        if size > last:
            return
        size *= 4


def _results(graph: Graph, name: str) -> tuple[str, ...]:
    return tuple(value.name for value in graph.producers[name].results)


def _cut(
    subject: Subject,
    graph: Graph,
    plan: EntryPlan,
    attempt: _Try,
    values: Mapping[str, Array],
    saved: Mapping[str, Array],
) -> Cut:
    """Raises `ConfigError` for a value that nobody has."""
    cut = cut_graph(graph, attempt.nodes, attempt.outputs)
    found: dict[str, Array] = {}
    for item in cut.inputs:
        name = item.value.name
        if item.role is Role.WEIGHT:
            found[name] = weight_rows(graph.inputs_by_name[name], subject.program.source)
        elif item.role is not Role.CONSTANT:
            array = values.get(name)
            if array is None:
                raise ConfigError(f"%{name} was not seen", hint="a bundle needs the values that its nodes read")
            good = saved.get(name)
            fits = good is not None and (good.shape, good.dtype) == (array.shape, array.dtype)
            found[name] = np.array(good if fits and good is not None else array)
    rows = {node.name: node.impl for node in graph.nodes if node.name in attempt.nodes and node.impl is not None}
    made = Cut(cut, found, rows, {})
    if not attempt.places:
        return made
    lowered, program = made.lowered(subject.executable.device)
    own = {name for group in storages_of(program.plan.entries[ENTRY], lowered).values() for name in group}
    places: dict[str, int] = {}
    for slot in plan.slots_on():
        for name in storages_of(plan, graph)[slot.values[0]]:
            if name in own:
                places[name] = slot.range.offset
    low = min(places.values(), default=0)
    return replace(made, places={name: offset - low for name, offset in places.items()})


def _limits(attempt: _Try, cut: Cut, limit: float, device: Device) -> tuple[float, float]:
    """What an element may be off by: nothing, what the operators of the outputs allow, or what the sides allow."""
    if attempt.exact:
        return 0.0, 0.0
    if attempt.left == "saved":
        return limit, 0.0
    (right,) = run_way(cut, {}, device, "reference", 1)
    with plain_arithmetic(), np.errstate(all="ignore"):
        (plain,) = run_way(cut, {}, device, "reference", 1)
    types, makers = cut.graph.types, cut.graph.producers
    limits = [
        limits_of(types[name], OP[makers[name].op].tolerance, array, plain[name]) for name, array in right.items()
    ]
    return max(absolute for absolute, _ in limits), max(relative for _, relative in limits)


def _shown(
    device: Device, cut: Cut, attempt: _Try, saved: Mapping[str, Array], limit: float, graph: Graph
) -> Cut | None:
    """The cut, with as few rows as show the fault; None where it does not show it."""

    def shows(some: Cut) -> bool:
        right = _right(some, attempt, saved)
        absolute, relative = _limits(attempt, some, limit, device)
        try:
            found = judge(some, right, device, attempt.left, attempt.right, absolute, relative, attempt.runs)[0]
        except OstinatoError:
            return False
        return found == attempt.expected

    if attempt.left == "saved" and not all(name in saved for name in cut.graph.outputs):
        raise ConfigError("the other side has no such values", hint="both sides must make the values of the bundle")
    if not shows(cut):
        return None
    if attempt.left == "saved":
        return cut
    for axis in cut.counts:
        extents = [t.static_shape[t.axes.index(axis)] for t in cut.graph.types.values() if axis in t.axes]
        rows, most = 1, max(extents, default=1)
        while rows < most:
            fewer = fewer_rows(cut, axis, rows)
            if fewer is not None and shows(fewer):
                cut = fewer
                break
            rows *= 2
    return cut


def _right(cut: Cut, attempt: _Try, saved: Mapping[str, Array]) -> dict[str, Array]:
    """The valid rows of the outputs that are saved as right."""
    return cut.valid({name: saved[name] for name in cut.graph.outputs}) if attempt.left == "saved" else {}


def _bundle(
    subject: Subject,
    culprit: Culprit,
    cut: Cut,
    attempt: _Try,
    saved: Mapping[str, Array],
    limit: float,
    seed: int,
    model: str,
    extension: str,
) -> Reduced:
    device = subject.executable.device
    right = _right(cut, attempt, saved)
    absolute, relative = _limits(attempt, cut, limit, device)
    _, worst = judge(cut, right, device, attempt.left, attempt.right, absolute, relative, attempt.runs)
    about = ReproFile(
        fault=culprit.text,
        kind=culprit.kind,
        expected=attempt.expected,
        left=attempt.left,
        right=attempt.right,
        absolute=absolute,
        relative=relative,
        nodes=tuple(attempt.nodes),
        rows=dict(cut.rows),
        places=dict(cut.places),
        runs=attempt.runs,
        seed=seed,
        entry=culprit.entry,
        model=model,
        worst=worst,
        environment=_environment(device),
        needs=needs_of(cut.graph, cut.rows, extension),
        files={},
    )
    plan = ""
    if cut.places:
        lowered, program = cut.lowered(device)
        plan = program_to_json(program.plan, {ENTRY: lowered})
    return Reduced(Bundle(about, cut, right), plan)
