"""A comparison for people: figures that differ, then one line for all layers of which the same is to be said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ostinato.ir.naming import any_layer
from ostinato.planner.plan import spelled
from ostinato.tools.console import count, size
from ostinato.tools.diff.data import EntryDiff, Fact, Figure, GraphDiff, NodeDiff, PlanDiff, SlotDiff, StepDiff
from ostinato.tools.diff.report import DiffReport

__all__ = ["diff_lines"]

MOST = 12
"""Lines of a kind, unless all are asked for."""
_LONG = 160
_ALWAYS = ("operator", "row", "type", "layout", "note", "role", "parts", "data")
_STEP = ("kernel", "kind", "device", "lane", "launch", "workspace")
"""First words of facts that are told in full."""
_GRAPH = "graph @"
_MARKS = {"added": "+", "removed": "-"}


def diff_lines(report: DiffReport, *, most: int | None = MOST) -> Iterator[str]:
    """The report as lines of text; at most `most` of each kind, None for all."""
    if not report.differs:
        yield "no difference"
    elif report.plan is not None:
        yield from _plan(report.plan, most)
    for graph in report.graphs:
        if graph.differs:
            yield from _graph(graph, most, inputs=report.plan is None)
    for names, side in ((report.only_before, report.before), (report.only_after, report.after)):
        if names:
            yield f"only in {side.name}: graphs {', '.join(names)}"
    if report.made_with:
        yield "made of and on"
        yield from _facts(report.made_with, most)
    for verdict in report.limits:
        yield f"{'ok' if verdict.ok else 'FAILED'} {verdict.limit}: {verdict.text}"


def _plan(plan: PlanDiff, most: int | None) -> Iterator[str]:
    for name in plan.only_before:
        yield f"- entry {name}"
    for name in plan.only_after:
        yield f"+ entry {name}"
    if plan.only_before and plan.only_after and not plan.entries:
        yield "no entry is in both, so only what they share is compared: a model is planned as step, `ostinato compile` and artifacts have prefill and decode"
    every = set.intersection(*(set(entry.facts) for entry in plan.entries)) if len(plan.entries) > 1 else set()
    if every:
        yield "every entry"
        yield from _facts([fact for fact in plan.entries[0].facts if fact in every], most)
    for entry in plan.entries:
        if entry.differs:
            yield f"plan of {entry.name}"
            yield from _entry(entry, [fact for fact in entry.facts if fact not in every], most)
    shared = [*_figures(plan.regions), *_facts(plan.facts, most)]
    if shared:
        yield "regions and shared tables"
        yield from shared


def _entry(entry: EntryDiff, facts: Sequence[Fact], most: int | None) -> Iterator[str]:
    yield from _figures(entry.figures)
    yield from _facts(facts, most)
    if entry.steps or entry.order:
        order = f", {count(entry.order)} in another order" if entry.order else ""
        yield f"  steps: {_kinds(step.kind for step in entry.steps)}{count(entry.same_steps)} the same{order}"
        yield from _cut(_alike(map(_step, entry.steps)), most)
    if entry.slots:
        yield f"  slots: {_kinds(slot.kind for slot in entry.slots)}{count(entry.same_slots)} the same"
        yield from _cut(_alike(_slot(slot) for slot in entry.slots if slot.kind not in ("moved", "shifted")), most)


def _graph(graph: GraphDiff, most: int | None, *, inputs: bool) -> Iterator[str]:
    """A graph; its inputs too, unless the tables of the plans have told of them."""
    moved = f", {count(graph.moved)} in another order" if graph.moved else ""
    yield f"graph of {graph.name}: nodes {_kinds(node.kind for node in graph.nodes)}{count(graph.same)} the same{moved}"
    yield from _cut(_alike(map(_node, (*(graph.inputs if inputs else ()), *graph.nodes))), most)
    yield from _facts(graph.outputs, most)


def _facts(facts: Iterable[Fact], most: int | None) -> Iterator[str]:
    """Facts; an option of several passes that changes alike is one."""
    return _cut(_grouped(((_key(fact), _short(fact)) for fact in facts), "  "), most)


def _key(fact: Fact) -> str:
    what, _, name = fact.what.partition(" ")
    text = _short(fact)
    return text.replace(name, "*") if what == "option" and fact.before.startswith(name) else any_layer(text)


def _figures(figures: Iterable[Figure]) -> Iterator[str]:
    for figure in figures:
        if figure.differs:
            before, after = (
                "none" if value is None else size(value) if figure.unit else count(value)
                for value in (figure.before, figure.after)
            )
            by = f" ({figure.growth:+.1%})" if figure.before and figure.after is not None else ""
            exact = f", {figure.change:+d} bytes" if figure.unit else ""
            yield f"  {figure.name} {before} -> {after}{by}{exact}"


def _kinds(kinds: Iterable[str]) -> str:
    """Counts by kind, with a comma behind each: "3 added, "."""
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return "".join(f"{count(number)} {kind}, " for kind, number in found.items())


def _alike(texts: Iterable[str]) -> list[str]:
    """Lines; those that are equal or differ in the number of a layer alone as one."""
    return _grouped(((any_layer(text), text) for text in texts), "    ")


def _grouped(texts: Iterable[tuple[str, str]], indent: str) -> list[str]:
    """Lines; those of one key as that, with how many there are."""
    groups: dict[str, list[str]] = {}
    for key, text in texts:
        groups.setdefault(key, []).append(text)
    return [
        f"{indent}{same[0]}" if len(same) == 1 else f"{indent}{key} ({count(len(same))} alike)"
        for key, same in groups.items()
    ]


def _cut(lines: Sequence[str], most: int | None) -> Iterator[str]:
    shown = lines if most is None or len(lines) <= most + 1 else lines[:most]
    yield from shown
    if len(shown) < len(lines):
        yield f"    and {count(len(lines) - len(shown))} more; --all shows them"


def _short(fact: Fact) -> str:
    text = str(fact)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _node(node: NodeDiff) -> str:
    """A node: where it is another operator now, its operands and attributes are only said to differ."""
    whats = {fact.what for fact in node.facts}
    told = _ALWAYS if "operator" in whats else (*_ALWAYS, "operand", "attribute")
    return _line(node.kind, node.before, node.after, node.op, node.facts, told)


def _step(step: StepDiff) -> str:
    """A step: what follows from what it runs is only said to differ."""
    facts = [Fact(fact.what, _called(fact.before), _called(fact.after)) for fact in step.facts]
    return _line(step.kind, step.before, step.after, _called(step.kernel), facts, _STEP)


def _called(kernel: str) -> str:
    """A kernel's name: of a step that the reference runs, whose kernel is a graph, the operator's."""
    return f"reference {kernel[len(_GRAPH) :].partition(' ')[0]}" if kernel.startswith(_GRAPH) else kernel


def _line(
    kind: str, before: str | None, after: str | None, what: str, facts: Sequence[Fact], told: Sequence[str]
) -> str:
    name = f"%{after or before}" if before in (None, after) or after is None else f"%{before} -> %{after}"
    said = [_short(fact) for fact in facts if fact.what.split(" ")[0] in told]
    rest = dict.fromkeys(fact.what.split(" ")[0] for fact in facts if fact.what.split(" ")[0] not in told)
    if rest:
        names = [word if word.endswith("s") else f"{word}s" for word in rest]
        said.append(f"other {', '.join(names)}")
    text = f": {'; '.join(said)}" if said else ""
    return f"{_MARKS.get(kind, '~')} {name} {what}{text}"


def _slot(slot: SlotDiff) -> str:
    sizes = [size(value) for value in slot.bytes if value is not None]
    where = f" {' -> '.join(dict.fromkeys(sizes))}"
    shares = ""
    if slot.kind == "reshared":
        gone = spelled(tuple(name for name in slot.values_before if name not in slot.values_after))
        came = spelled(tuple(name for name in slot.values_after if name not in slot.values_before))
        shares = "; ".join(f"{how} shared by {names}" for how, names in (("now", came), ("no longer", gone)) if names)
    text = f": {shares}" if shares else ""
    return f"{_MARKS.get(slot.kind, '~')} slot of {spelled((slot.name,))}{where}{text}"
