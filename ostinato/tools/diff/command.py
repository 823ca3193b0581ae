"""`ostinato diff`: two models, plans, graphs, artifacts or dumps held beside each other, with an exit code for CI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ostinato.ir.checks import byte_count
from ostinato.ir.errors import ConfigError
from ostinato.tools.completion import models_and
from ostinato.tools.console import emit_json, output, plain, progress
from ostinato.tools.diff.data import Fact, GraphDiff
from ostinato.tools.diff.graphs import diff_graphs, paired
from ostinato.tools.diff.limits import Limit, judge, parse_limit
from ostinato.tools.diff.plans import diff_plans
from ostinato.tools.diff.report import DiffReport
from ostinato.tools.diff.show import MOST, diff_lines
from ostinato.tools.diff.side import DiffSide, open_side
from ostinato.tools.named import Planning
from ostinato.tools.options import (
    EXIT_FAILED,
    PLANNED_SHAPES,
    ContextOption,
    DisableOption,
    JsonOption,
    MemoryLimitOption,
    PolicyOption,
    PrecisionOption,
    ShapesOption,
    TargetOption,
    parse_shapes,
)

__all__ = ["diff_command", "diff_sides"]

_FILES = models_and(".toml", ".json", ".graph", ".ir")
_SIDE = "a model, also with options (smollm2,policy=strict), an artifact (.ost), a saved plan (.json), a training run (.toml), a graph or a dump."


def diff_command(
    before: Annotated[
        str, typer.Argument(metavar="A", show_default=False, autocompletion=_FILES, help=f"What was: {_SIDE}")
    ],
    after: Annotated[
        str, typer.Argument(metavar="B", show_default=False, autocompletion=_FILES, help="What is: the same.")
    ],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="LIMIT",
            show_default=False,
            help="Fail only where a figure grew by more than this: arena>3%, launches>0, step[N=1,R=1]:bound>64KiB, rows>0; may be given several times.",
        ),
    ] = None,
    shapes: ShapesOption = PLANNED_SHAPES,
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    target: TargetOption = "host",
    memory_limit: MemoryLimitOption = None,
    disable: DisableOption = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Print every line, not {MOST} of a kind.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What differs between two plans, graphs, models or artifacts; exit code 1 where something does, or exceeds a limit.

    Example: ostinato diff smollm2 smollm2,policy=strict

    Example: ostinato diff main/plan.json plan.json --fail-if 'arena>3%' --fail-if 'launches>0'
    """
    limits = [parse_limit(text) for text in fail_if or ()]
    planning = Planning(
        parse_shapes(shapes),
        policy=policy,
        dtype=precision,
        target=target,
        context=context,
        memory_limit=None if memory_limit is None else byte_count(memory_limit, "--memory-limit"),
        disable=tuple(disable or ()),
    )
    with progress(as_json) as steps:
        sides: list[DiffSide] = []
        for text in (before, after):
            steps.begin(f"reading {text}")
            sides.append(open_side(text, planning))
    report = diff_sides(sides[0], sides[1], limits)
    if as_json:
        emit_json(report)
    else:
        for line in diff_lines(report, most=None if everything else MOST):
            output().print(plain(line))
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def diff_sides(before: DiffSide, after: DiffSide, limits: list[Limit] | None = None) -> DiffReport:
    """What differs between two sides. Raises `ConfigError` where they have nothing in common that could be compared, and for limits that are about nothing."""
    plan = None if before.plan is None or after.plan is None else diff_plans(before.plan, after.plan)
    pairs = paired(before.graphs, after.graphs)
    if plan is None and not pairs:
        raise ConfigError(
            f"{before.name} ({before.kind}) and {after.name} ({after.kind}) have neither plans nor graphs in common",
            hint="compare two plans, two graphs, or a model or a dumped folder, which have both, with either",
        )
    graphs = tuple(_graphs(before, after, *pair) for pair in pairs)
    old, new = {a for a, _ in pairs}, {b for _, b in pairs}
    only_before = tuple(name for name in before.graphs if pairs and name not in old)
    only_after = tuple(name for name in after.graphs if pairs and name not in new)
    verdicts = judge(limits or (), plan, graphs)
    made_with = tuple(_made_with(before, after)) if before.made_with and after.made_with else ()
    graphs_differ = any(graph.differs for graph in graphs)
    differs = bool((plan and plan.differs) or graphs_differ or only_before or only_after or made_with)
    return DiffReport(
        before=DiffReport.Side(name=before.name, kind=before.kind),
        after=DiffReport.Side(name=after.name, kind=after.kind),
        differs=differs,
        ok=all(verdict.ok for verdict in verdicts) if limits else not differs,
        plan=plan,
        graphs=graphs,
        only_before=only_before,
        only_after=only_after,
        limits=verdicts,
        made_with=made_with,
    )


def _made_with(before: DiffSide, after: DiffSide) -> Iterator[Fact]:
    old, new = before.made_with, after.made_with
    for what in dict.fromkeys((*old, *new)):
        if old.get(what, "") != new.get(what, ""):
            yield Fact(what, old.get(what, ""), new.get(what, ""))


def _graphs(before: DiffSide, after: DiffSide, old: str, new: str) -> GraphDiff:
    return diff_graphs(
        before.graphs[old],
        after.graphs[new],
        before.decisions.get(old),
        after.decisions.get(new),
        name=new if old == new else f"{old} / {new}",
    )
