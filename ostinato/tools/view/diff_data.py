"""What differs between two programs, as plain data of a page: the answers of `ostinato.tools.diff`, and the first program's plans to draw beside the second's.

Entries are held against each other as `ostinato diff` does it (`paired`).
"""

from __future__ import annotations

from typing import Any

from ostinato.tools.diff import diff_graphs, diff_plans
from ostinato.tools.diff.data import EntryDiff, Fact, Figure, GraphDiff, NodeDiff, SlotDiff, StepDiff
from ostinato.tools.diff.graphs import paired
from ostinato.tools.diff.plans import diff_entries
from ostinato.tools.view.plan_data import plan_data
from ostinato.tools.view.strings import Strings
from ostinato.tools.view.subjects import Viewed

__all__ = ["diff_data"]


def diff_data(before: Viewed, after: Viewed, strings: Strings) -> dict[str, Any]:
    """The difference from `before` to `after`, for a page whose entries are those of `after`."""
    plans = None if before.plan is None or after.plan is None else diff_plans(before.plan, after.plan)
    entries = [_side_by_side(before, after, *pair, strings) for pair in paired(before.graphs, after.graphs)]
    old, new = {entry["before"] for entry in entries}, {entry["name"] for entry in entries}
    return {
        "before": before.title,
        "after": after.title,
        "only_before": [name for name in before.graphs if name not in old],
        "only_after": [name for name in after.graphs if name not in new],
        "regions": [] if plans is None else [_figure(item) for item in plans.regions],
        "facts": [] if plans is None else [_fact(item) for item in plans.facts],
        "entries": entries,
    }


def _side_by_side(before: Viewed, after: Viewed, old: str, new: str, strings: Strings) -> dict[str, Any]:
    """One entry of each side: what differs between their graphs and plans, and the first one's plan."""
    graph, plan, earlier = before.graphs[old], None, None
    if before.plan is not None:
        earlier = plan_data(before.plan.entries[old], strings, graph)
        if after.plan is not None:
            plan = _entry(diff_entries(before.plan.entries[old], after.plan.entries[new]), strings)
    found = _graph(diff_graphs(graph, after.graphs[new], before.decisions[old], after.decisions[new]), strings)
    return {"name": new, "before": old, "graph": found, "plan": plan, "old": earlier}


def _graph(found: GraphDiff, strings: Strings) -> dict[str, Any]:
    return {
        "same": found.same,
        "moved": found.moved,
        "figures": [_figure(item) for item in found.figures],
        "outputs": [_fact(item) for item in found.outputs],
        "nodes": [_changed(item, item.op, strings) for item in (*found.inputs, *found.nodes)],
    }


def _entry(found: EntryDiff, strings: Strings) -> dict[str, Any]:
    return {
        "same_steps": found.same_steps,
        "same_slots": found.same_slots,
        "order": found.order,
        "figures": [_figure(item) for item in found.figures],
        "facts": [_fact(item) for item in found.facts],
        "steps": [_changed(item, item.kernel, strings) for item in found.steps],
        "slots": [_slot(item, strings) for item in found.slots],
    }


def _figure(item: Figure) -> list[Any]:
    return [item.name, item.before, item.after, item.unit]


def _fact(item: Fact) -> list[str]:
    return [item.what, item.before, item.after]


def _changed(item: NodeDiff | StepDiff, what: str, strings: Strings) -> dict[str, Any]:
    """A node with its operator, or a step with its kernel."""
    return {
        "kind": item.kind,
        "before": strings(item.before),
        "after": strings(item.after),
        "op": strings(what),
        "facts": [_fact(fact) for fact in item.facts],
    }


def _slot(item: SlotDiff, strings: Strings) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "before": [strings(name) for name in item.values_before],
        "after": [strings(name) for name in item.values_after],
        "offset": list(item.offset),
        "bytes": list(item.bytes),
        "steps": [list(steps) if steps else None for steps in (item.steps_before, item.steps_after)],
    }
