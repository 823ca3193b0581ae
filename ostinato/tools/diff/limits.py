"""What a comparison may find before it is a failure, for CI: `arena>3%`, `launches>0`, `step[N=1,R=1]:bound>64KiB`, `rows>0`.

    LIMIT  = [ENTRY ":"] FIGURE ">" AMOUNT
    AMOUNT = NUMBER "%" (part of what it was) | NUMBER [unit of bytes]

A figure that grew by more than the amount fails; one that shrank never does. Of counts of differences (`DIFFERENCES`) the count itself is what may not be above
the amount. Without an entry the figure of each one is meant, and of regions each region ("host:0/arena"), or all of them together ("regions").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostinato.ir.checks import byte_count
from ostinato.ir.errors import ConfigError
from ostinato.tools.diff.data import Figure, GraphDiff, PlanDiff

__all__ = ["DIFFERENCES", "Limit", "Verdict", "judge", "parse_limit"]

DIFFERENCES = (
    "rows",
    "layouts",
    "types",
    "nodes-added",
    "nodes-removed",
    "nodes-changed",
    "steps-changed",
    "slots-changed",
)
"""Counts of differences, which are not there on either side alone."""
_LIMIT = re.compile(
    r"(?:(?P<entry>.+?):)??(?P<figure>[a-z][a-z0-9-]*|[a-z][a-z0-9_]*:[0-9]+/[a-z]+)\s*>\s*(?P<amount>[^>]+)"
)
_HINT = "write FIGURE>AMOUNT, such as arena>3%, launches>0, host:0/weights>64KiB or step[N=1,R=1]:bound>0"


@dataclass(frozen=True, slots=True)
class Limit:
    """By how much a figure may grow: bytes or a count, or as `part` of what it was."""

    text: str
    entry: str | None
    figure: str
    amount: float
    part: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit beside a figure: what it was and is, whether that is within the limit, and the sentence that says so."""

    limit: str
    entry: str
    figure: str
    before: int
    after: int
    ok: bool
    text: str


def parse_limit(text: str) -> Limit:
    """Reads a limit. Raises `ConfigError` for a text that is none."""
    found = _LIMIT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no limit", hint=_HINT)
    entry, figure, amount = found.group("entry", "figure", "amount")
    amount = amount.strip()
    if amount.endswith("%"):
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?\s*%", amount):
            raise ConfigError(f"{amount!r} is no percentage", node=text, hint=_HINT)
        return Limit(text.strip(), entry, figure, float(amount[:-1]) / 100, True)
    return Limit(text.strip(), entry, figure, byte_count(amount, "what may be added"), False)


def judge(limits: Sequence[Limit], plan: PlanDiff | None, graphs: Sequence[GraphDiff]) -> tuple[Verdict, ...]:
    """Every limit beside every figure that it is about. Raises `ConfigError` for one that is about none, with those that there are."""
    figures = list(_figures(plan, graphs))
    found: list[Verdict] = []
    for limit in limits:
        about = [
            (entry, figure) for entry, figure in figures if figure.name == limit.figure and limit.entry in (None, entry)
        ]
        if not about:
            names = ", ".join(dict.fromkeys(figure.name for _, figure in figures))
            entries = ", ".join(dict.fromkeys(entry for entry, _ in figures))
            raise ConfigError(
                f"{limit.text!r} is about nothing that was compared",
                hint=f"figures: {names}; entries: {entries}",
            )
        found += [_verdict(limit, entry, figure) for entry, figure in about]
    return tuple(found)


def _figures(plan: PlanDiff | None, graphs: Sequence[GraphDiff]) -> Iterator[tuple[str, Figure]]:
    if plan is not None:
        yield from plan.figures()
        sizes = ([getattr(region, side) or 0 for region in plan.regions] for side in ("before", "after"))
        before, after = map(sum, sizes)
        yield "regions", Figure("regions", before, after, "B")
        for entry in plan.entries:
            yield entry.name, Figure("steps-changed", 0, len(entry.steps) + entry.order)
            yield entry.name, Figure("slots-changed", 0, len(entry.slots))
    for graph in graphs:
        for figure in graph.figures:
            yield graph.name, figure
        facts = [fact.what for node in graph.nodes for fact in node.facts]
        yield graph.name, Figure("rows", 0, facts.count("row"))
        for what, begin in (("layouts", "layout of "), ("types", "type of ")):
            yield graph.name, Figure(what, 0, sum(fact.startswith(begin) for fact in facts))
        for kind in ("added", "removed", "changed"):
            yield graph.name, Figure(f"nodes-{kind}", 0, len(graph.of_kind(kind)))


def _verdict(limit: Limit, entry: str, figure: Figure) -> Verdict:
    before, after = figure.before or 0, figure.after or 0
    ok = (figure.growth if limit.part else figure.change) <= limit.amount
    where = "" if entry == "regions" else f" of {entry}"
    if figure.name in DIFFERENCES:
        text = f"{after} {figure.name}{where}"
    elif figure.change > 0:
        by = (
            f"{figure.growth * 100:.3g} %"
            if limit.part and before
            else f"{figure.change}{' bytes' if figure.unit else ''}"
        )
        text = f"{figure.name}{where} grew by {by}, from {before} to {after}"
    else:
        text = f"{figure.name}{where} {'shrank' if figure.change else 'is the same'}, from {before} to {after}"
    if not ok:
        allowed = f"{limit.amount * 100:.3g} %" if limit.part else f"{limit.amount:.0f}"
        text += f": more than the {allowed} allowed"
    return Verdict(limit.text, entry, figure.name, before, after, ok, text)
