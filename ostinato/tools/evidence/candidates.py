"""What may be tried on a model: each optional pass left out, and each row that could come first where another one does now.

A candidate is a name that a gate's record can be found by, and options of the compiler. Rows are taken from the program itself: those of the chosen row's level
or above that accept a node as it stands. For each there are two policies, one for as many rows as decode steps have and one for more, since what pays for one
row seldom pays for hundreds. What the target already knows as selection policies is tried as it is. The baseline has no selection policy at all.

A candidate that makes the baseline's program is not run. One whose rows are not all validated is refused, whatever it might be worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.backend_hip.evidence.gates import BASELINE
from ostinato.ir.errors import ConfigError
from ostinato.ir.evidence import Finding
from ostinato.ir.ops import OP
from ostinato.ir.selection_policy import SelectionPolicy
from ostinato.ir.step import StepKind
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.text import print_graph
from ostinato.ir.views import ViewTable, call_site, types_refusal
from ostinato.passes.choice import RowChoice
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.passes.policy import BALANCED, Policy, Promotion
from ostinato.stages import Entries, Lowered
from ostinato.tools.report import Report

__all__ = [
    "PLAIN",
    "SCREENED",
    "Candidate",
    "Lowering",
    "Options",
    "candidates_for",
    "differing",
    "lowered_with",
    "named",
    "refusal_of",
]


class Options(Report):
    """How a candidate is compiled: passes left out, and selection policies that hold; no other one does, whatever passed its gate. `solutions`: what was
    screened of a vendor's library on this card is used."""

    disable: tuple[str, ...] = ()
    preferences: tuple[SelectionPolicy, ...] = ()
    solutions: bool = False

    @property
    def policy(self) -> Policy:
        """Policy `balanced` with these selection policies and no others."""
        return Policy(BALANCED.name, promotion=Promotion.NONE, preferences=self.preferences)

    def pipeline(self, precision: str) -> PipelineOptions:
        """As the compiler takes them."""
        return PipelineOptions(precision, frozenset(self.disable), RowChoice(policy=self.policy))


@dataclass(frozen=True, slots=True)
class Candidate:
    """`name` is what its records are found by: "fuse_qkv=off", the identity of a selection policy, or `SCREENED`."""

    name: str
    options: Options


PLAIN = Candidate(BASELINE, Options())
SCREENED = Candidate("vendor_solutions=on", Options(solutions=True))
"""Other algorithms of a vendor's library for the same products."""
Lowering = Mapping[str, Lowered]
"""The entries of a program after the passes, by name."""


def lowered_with(candidate: Candidate, entries: Entries, target: Target, precision: str) -> Lowering:
    """The entries with a candidate's options. Raises what lowering raises."""
    options = candidate.options.pipeline(precision)
    return {
        name: traced.lower(target, dims=dims, name=name, options=options) for name, (traced, dims) in entries.items()
    }


def candidates_for(
    baseline: Lowering, target: Target, decode_rows: int, *, screened: bool = False
) -> Iterator[Candidate]:
    """What may be tried beside the baseline; `decode_rows` is the most rows that a decode step has, `screened` says that there are screened algorithms."""
    if screened:
        yield SCREENED
    for item in pipeline():
        if item.optional:
            yield Candidate(f"{item.name}=off", Options(disable=(item.name,)))
    found = {preference.identity: preference for preference in target.preferences}
    for preference in _alternatives(baseline, target, decode_rows):
        found.setdefault(preference.identity, preference)
    for identity, preference in found.items():
        yield Candidate(identity, Options(preferences=(preference,)))


def differing(baseline: Lowering, candidate: Candidate, lowering: Lowering, target: Target) -> tuple[str, ...]:
    """The entries that a candidate changes: those with another graph, and for screened algorithms those with products of a vendor's library."""
    if candidate.options.solutions:
        return tuple(name for name, lowered in baseline.items() if _has_products(lowered, target))
    return tuple(name for name in baseline if print_graph(baseline[name].graph) != print_graph(lowering[name].graph))


def _has_products(lowered: Lowered, target: Target) -> bool:
    rows = {target.row(node.op, node.impl) for node in lowered.graph.nodes if node.impl is not None}
    return any(row is not None and row.kind is StepKind.GEMM for row in rows)


def refusal_of(candidate: Candidate, lowering: Lowering, target: Target) -> str:
    """Why a candidate may not be run: a row that it puts first, or that its program has, and that is not validated. Empty where it may."""
    if target.evidence is None:
        return ""
    for lowered in lowering.values():
        for site in _sites(lowered):
            chosen = target.row(site.node.op, site.node.impl or "")
            rows = [row for row in (chosen, _preferred(candidate, site, target)) if row is not None]
            for row in rows:
                verdict = target.evidence.verdict(row, site)
                if verdict.finding is not Finding.VALIDATED and row.level is not Level.REFERENCE:
                    return f"{row.identity} is {verdict.finding.value}{f': {verdict.reason}' if verdict.reason else ''}"
    return ""


def _preferred(candidate: Candidate, site: CallSite, target: Target) -> Impl | None:
    """The row that a candidate puts first at a call, where there is one."""
    opdef = OP[site.node.op]
    for preference in candidate.options.preferences:
        if preference.op == site.node.op and preference.covers(opdef.sizes(site.operands).rows):
            row = target.row(preference.op, preference.row_name)
            if row is not None and types_refusal(row, site, opdef) is None:
                return row
    return None


def _alternatives(baseline: Lowering, target: Target, decode_rows: int) -> Iterator[SelectionPolicy]:
    """A policy for each row that takes a node which another row has, by the size of the node."""
    seen: set[tuple[str, bool]] = set()
    for lowered in baseline.values():
        for site in _sites(lowered):
            opdef = OP[site.node.op]
            chosen = target.row(site.node.op, site.node.impl or "")
            many = opdef.sizes(site.operands).rows > decode_rows
            for row in target.ranked(site.node.op):
                if (
                    chosen is None
                    or row.name == chosen.name
                    or row.level < chosen.level
                    or (row.identity, many) in seen
                ):
                    continue
                if types_refusal(row, site, opdef) is None:
                    seen.add((row.identity, many))
                    low, high = (decode_rows + 1, None) if many else (0, decode_rows)
                    yield SelectionPolicy("many_rows" if many else "few_rows", row.identity, low, high)


def _sites(lowered: Lowered) -> Iterator[CallSite]:
    views = ViewTable(lowered.graph)
    for node in lowered.graph.nodes:
        if not OP[node.op].is_view:
            yield call_site(lowered.graph, node, views)


def named(candidates: Sequence[Candidate], patterns: Sequence[str]) -> tuple[Candidate, ...]:
    """Those whose name has one of the patterns in it; all of them without patterns. Raises `ConfigError` for a pattern that none has."""
    for pattern in patterns:
        if not any(pattern in candidate.name for candidate in candidates):
            known = ", ".join(candidate.name for candidate in candidates)
            raise ConfigError(f"no candidate has {pattern!r} in its name", hint=f"candidates: {known or 'none'}")
    return tuple(
        candidate for candidate in candidates if not patterns or any(pattern in candidate.name for pattern in patterns)
    )
