"""`ostinato explain`: why nodes have their rows, values their layouts and addresses, the arena its bytes at the peak, and a device its mode.

One bucket of a model is lowered, and planned where the question is about bytes; of an artifact the program in it is asked. No weight is loaded; the target need
not be here, but for a question about a mode, which is one about a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ostinato.backend_hip.target import named_target
from ostinato.ir.checks import byte_count
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError
from ostinato.ir.explain import ExplainedNode, explain
from ostinato.ir.explain_layout import explain_layout
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.planner.explain import explain_address, explain_peak
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.explains import explain_mode
from ostinato.runtime.options import Route, settle_route
from ostinato.saving.read import is_artifact
from ostinato.stages import Lowered, Planned, open_device
from ostinato.tools.artifacts import planned_program
from ostinato.tools.commands_passes import DimsOption, traced_bucket
from ostinato.tools.completion import among
from ostinato.tools.console import emit_json, output, plain, progress
from ostinato.tools.options import (
    MODE_NAMES,
    CaptureOption,
    ContextOption,
    DisableOption,
    EntryOption,
    JsonOption,
    LogitsOption,
    MemoryLimitOption,
    ModelOption,
    ModelOrRunArgument,
    PolicyOption,
    PrecisionOption,
    TargetOption,
    chosen_model,
    refuse_unread,
)
from ostinato.tools.schemas import ExplainReport
from ostinato.tools.train.job import is_run, plan_of_run

__all__ = ["explain_command"]

_ABOUT = "What is asked (default: why these rows)"
_QUESTIONS = ("--layout", "--address", "--peak", "--mode")
_OF_AN_ARTIFACT = {
    "model",
    "model_option",
    "node",
    "layout",
    "address",
    "peak",
    "mode",
    "device",
    "capture",
    "entry",
    "as_json",
}
_OF_A_RUN = (_OF_AN_ARTIFACT - {"entry"}) | {"target"}
"""Parameters that are read where the program of an artifact, or of a training run, is asked about."""


def explain_command(
    invocation: typer.Context,
    model: ModelOrRunArgument = None,
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="A name of a node or value, before or after fusion, an operator, or a pattern like layers.0 or layers.*.ffn.",
        ),
    ] = "*",
    model_option: ModelOption = None,
    layout: Annotated[
        bool, typer.Option("--layout", rich_help_panel=_ABOUT, help="Why values lie in the order that they do.")
    ] = False,
    address: Annotated[
        bool,
        typer.Option(
            "--address",
            rich_help_panel=_ABOUT,
            help="Why values lie where they do: region, offset, who shares the bytes, who lies below and above.",
        ),
    ] = False,
    peak: Annotated[
        bool,
        typer.Option(
            "--peak",
            rich_help_panel=_ABOUT,
            help="Why so many bytes: who has the arena where it is fullest, and what would lower it.",
        ),
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="MODE",
            show_default=False,
            autocompletion=among("auto", *MODE_NAMES),
            rich_help_panel=_ABOUT,
            help="Why a device would run this mode (auto, eager, planned, captured) or another one in its place.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            show_default=False,
            autocompletion=among("auto", "cpu", "hip"),
            help="The device that --mode asks about: auto, cpu or hip[:N].",
        ),
    ] = None,
    capture: CaptureOption = None,
    entry: EntryOption = None,
    dims: DimsOption = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
    policy: PolicyOption = "balanced",
    target: TargetOption = "host",
    memory_limit: MemoryLimitOption = None,
    disable: DisableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why nodes run as they do and values lie where they do: rows and their records, layouts, addresses, the bytes at the peak, the mode.

    Example: ostinato explain smollm2 layers.0

    Example: ostinato explain smollm2 logits --target sm_90 --policy fast

    Example: ostinato explain smollm2 layers.0.ffn --address

    Example: ostinato explain smollm2 --peak --dims N=512,R=1

    Example: ostinato explain smollm2.ost layers.0 --entry "decode[R=1]"

    Example: ostinato explain run.toml --peak
    """
    name = chosen_model(model, model_option)
    asked = [
        option for option, given in zip(_QUESTIONS, (layout, address, peak, mode is not None), strict=True) if given
    ]
    _check(asked, node, device, capture, memory_limit, target)
    question = asked[0] if asked else ""
    if is_artifact(name):
        refuse_unread(
            invocation, f"{name} is an artifact", _OF_AN_ARTIFACT, "ask about the program in it, or about its model"
        )
    elif is_run(name):
        refuse_unread(invocation, f"{name} is a training run", _OF_A_RUN, "write them into its file")
    limit = None if memory_limit is None else byte_count(memory_limit, "--memory-limit")
    route = None if mode is None else settle_route(open_device(device or "auto"), mode, capture=capture)
    with progress(as_json) as steps:
        steps.begin(f"reading {name}")
        if is_artifact(name):
            found = _of_artifact(name, entry)
        elif is_run(name):
            planned = plan_of_run(Path(name), named_target(target) if route is None else route.device.target).planned
            found = _of_model(planned.lowered, planned)
        else:
            traced, sizes, chosen = traced_bucket(name, entry, dims, logits, context, precision, target)
            chosen = chosen if route is None else route.device.target
            lowered = traced.lower(chosen, dims=sizes, disable=disable or (), policy=policy)
            steps.begin(f"planning {name}")
            found = _of_model(lowered, None if question in ("", "--layout") else lowered.plan(limit))
        report, text = _answer(name, found, question, node, route)
    if as_json:
        emit_json(report)
    else:
        output().print(plain(text), highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Explained:
    """What is asked: graphs with their decisions by entry, the rows they are of, and where bytes are asked about the plan and the graphs it is of."""

    graphs: Mapping[str, Graph]
    decisions: Mapping[str, Mapping[str, Decision]]
    target: Target
    plan: ProgramPlan | None
    planned: Mapping[str, Graph]


def _of_model(lowered: Lowered, planned: Planned | None) -> _Explained:
    graphs, decisions = {lowered.name: lowered.graph}, {lowered.name: lowered.decisions}
    if planned is None:
        return _Explained(graphs, decisions, lowered.target, None, {})
    return _Explained(graphs, decisions, lowered.target, planned.program, {lowered.name: planned.graph})


def _of_artifact(name: str, entry: str | None) -> _Explained:
    found = planned_program(name)
    if entry is not None and entry not in found.plan.entries:
        raise ConfigError(f"{name} has no entry {entry!r}", hint=f"entries: {', '.join(found.plan.entries)}")
    entries = {key: plan for key, plan in found.plan.entries.items() if entry in (None, key)}
    plan = found.plan.model_copy(update={"entries": entries})
    graphs = {key: found.original(key) for key in entries}
    return _Explained(graphs, found.decisions, found.target, plan, found.graphs)


def _answer(name: str, found: _Explained, question: str, node: str, route: Route | None) -> tuple[ExplainReport, str]:
    """The answer to a question, as a report and as text."""
    report = ExplainReport(model=name, entry=", ".join(found.graphs), target=found.target.name, nodes=())
    if question == "--layout":
        layouts = explain_layout(found.graphs, found.decisions, found.target, node)
        return report.model_copy(update={"layouts": layouts.values}), str(layouts)
    if found.plan is None or not question:
        rows = explain(found.graphs, {key: found.decisions.get(key, {}) for key in found.graphs}, node)
        return report.model_copy(update={"nodes": tuple(_explained(item) for item in rows.nodes)}), str(rows)
    if question == "--address":
        addresses = explain_address(found.plan, found.planned, node)
        return report.model_copy(update={"addresses": addresses.values}), str(addresses)
    if question == "--peak":
        peaks = explain_peak(found.plan, found.planned)
        return report.model_copy(update={"peak": peaks[0] if peaks else None}), "\n\n".join(map(str, peaks))
    assert route is not None, "the question is one about a mode"
    mode = explain_mode(
        found.plan,
        found.decisions,
        device=route.device.name,
        mode=route.mode,
        reason=route.reason,
        capture=route.capture,
    )
    return report.model_copy(update={"mode": mode}), str(mode)


def _check(
    asked: list[str],
    node: str,
    device: str | None,
    capture: list[str] | None,
    memory_limit: str | None,
    target: str,
) -> None:
    """Raises `ConfigError` for questions and options that do not go together."""
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} are questions of their own", hint="ask one at a time")
    about = asked[0] if asked else "without --mode"
    if about != "--mode" and (device is not None or capture):
        raise ConfigError(
            "--device and --capture belong to a question about a mode", hint="add --mode captured, or leave them out"
        )
    if about == "--mode" and target != "host":
        raise ConfigError("--mode asks about a device, not about a --target", hint="name it with --device")
    if about in ("--mode", "--peak") and node != "*":
        raise ConfigError(f"{about} is about the whole entry", node=node, hint="leave the node out")
    if about not in ("--address", "--peak") and memory_limit is not None:
        raise ConfigError("--memory-limit says something of addresses and the peak alone", hint="leave it out")


def _explained(item: ExplainedNode) -> ExplainReport.Node:
    decision = item.decision
    return ExplainReport.Node(
        name=item.name,
        op=item.op,
        location=None if item.location is None else str(item.location),
        results=item.results,
        row=decision.row,
        level=decision.level.name.lower(),
        exactness=decision.exactness.name.lower(),
        evidence=decision.evidence,
        note=decision.note,
        made_of=tuple(map(str, decision.origins)),
        policies=tuple(
            ExplainReport.PolicyUsed(policy=use.policy, taken=use.taken, text=use.text) for use in decision.policies
        ),
        rejected=tuple(
            ExplainReport.Rejected(
                row=found.row,
                level=found.level.name.lower(),
                reason=found.reason.value,
                text=found.text,
                evidence=found.evidence,
            )
            for found in decision.rejected
        ),
    )
