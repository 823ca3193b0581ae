"""What gates of whole-model runs say of optional passes, and where in a program that shows.

A pass that programs were measured to run better without is left out where its gate passed. What it would have replaced then has the gate on record, and what it
made where the gate is known and did not pass: explanations name the runs either way, as they do for rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ostinato.ir.decision import PolicyUse
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.passes.base import Pass
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.policy import Policy, Promotion

__all__ = ["uses_of", "weighed"]


def weighed(passes: Sequence[Pass], target: Target, policy: Policy) -> dict[str, Verdict]:
    """The optional passes of which it is known that programs may do better without, by name, with what decides: left out are those that are validated. That is
    for the gate, or of policies that take all or none of what is known for nobody."""
    if policy.promotion is Promotion.NONE:
        return {}
    optional, evidence = {item.name for item in passes if item.optional}, target.evidence
    found: dict[str, Verdict] = {}
    for each in target.omissions:
        if each.name in optional:
            if policy.promotion is Promotion.ALL:
                found[each.name] = Verdict(Finding.VALIDATED)
            elif evidence is not None:
                found[each.name] = evidence.gate(each)
    return found


def uses_of(item: Pass, gate: Verdict, before: Graph, after: Graph, target: Target) -> Iterator[tuple[str, PolicyUse]]:
    """The nodes that a gate on a pass is about, `before` and `after` being what it takes and makes: those that it would have replaced where it was left out,
    and those that it made where it was not."""
    use = PolicyUse.by_gate(f"{item.name}=off", gate)
    old, new = ({node.name: node for node in graph.nodes} for graph in (before, DeadCode().apply(after, target)))
    here, there = (old, new) if use.taken else (new, old)
    yield from ((name, use) for name, node in here.items() if there.get(name) != node)
