"""`ostinato explain`: why nodes have their rows, values their layouts and addresses, the arena its bytes at the peak, and a device its mode.

One bucket of a model is lowered, and planned where the question is about bytes. No weight is loaded; the target need not be here, but for a question about a
mode, which is one about a device.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.compiler import Lowered, open_device
from ostinato.ir.checks import byte_count
from ostinato.ir.errors import ConfigError
from ostinato.ir.explain import ExplainedNode
from ostinato.runtime.explains import ModeAnswer, explain_mode
from ostinato.runtime.options import settle_route
from ostinato.tools.commands_passes import DimsOption, DisableOption, traced_bucket
from ostinato.tools.completion import among
from ostinato.tools.console import emit_json, output, progress
from ostinato.tools.options import (
    MODE_NAMES,
    CaptureOption,
    ContextOption,
    EntryOption,
    JsonOption,
    LogitsOption,
    MemoryLimitOption,
    ModelArgument,
    ModelOption,
    PolicyOption,
    PrecisionOption,
    TargetOption,
    chosen_model,
)
from ostinato.tools.schemas import ExplainReport

__all__ = ["explain_command"]

_ABOUT = "What is asked (default: why these rows)"
_QUESTIONS = ("--layout", "--address", "--peak", "--mode")


def explain_command(
    model: ModelArgument = None,
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
    """
    name = chosen_model(model, model_option)
    asked = [
        option for option, given in zip(_QUESTIONS, (layout, address, peak, mode is not None), strict=True) if given
    ]
    _check(asked, node, device, capture, memory_limit, target)
    limit = None if memory_limit is None else byte_count(memory_limit, "--memory-limit")
    route = None if mode is None else settle_route(open_device(device or "auto"), mode, capture=capture)
    with progress(as_json) as steps:
        steps.begin(f"lowering {name}")
        traced, sizes, chosen = traced_bucket(name, entry, dims, logits, context, precision, target)
        chosen = chosen if route is None else route.device.target
        lowered = traced.lower(chosen, dims=sizes, disable=disable or (), policy=policy)
        report = ExplainReport(model=name, entry=lowered.name, target=chosen.name, nodes=())
        if asked in ([], ["--layout"]):
            report, text = _lowered(report, lowered, node, layout=layout)
        else:
            steps.begin(f"planning {name}")
            planned = lowered.plan(limit)
            if address:
                found = planned.explain_address(node)
                report, text = report.model_copy(update={"addresses": found.values}), str(found)
            elif peak:
                answer = planned.explain_peak()
                report, text = report.model_copy(update={"peak": answer}), str(answer)
            else:
                assert route is not None
                how: ModeAnswer = explain_mode(
                    planned.program,
                    {lowered.name: lowered.decisions},
                    device=route.device.name,
                    mode=route.mode,
                    reason=route.reason,
                    capture=route.capture,
                )
                report, text = report.model_copy(update={"mode": how}), str(how)
    if as_json:
        emit_json(report)
    else:
        output().print(text, markup=False, highlight=False, soft_wrap=True)


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


def _lowered(report: ExplainReport, lowered: Lowered, node: str, *, layout: bool) -> tuple[ExplainReport, str]:
    """The answers that need no plan."""
    if layout:
        values = lowered.explain_layout(node)
        return report.model_copy(update={"layouts": values.values}), str(values)
    found = lowered.explain(node)
    return report.model_copy(update={"nodes": tuple(_explained(item) for item in found.nodes)}), str(found)


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
