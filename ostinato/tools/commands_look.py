"""`ostinato trace`: the traced graph of a model as text."""

from __future__ import annotations

import sys

from ostinato.ir.text import print_graph
from ostinato.tools.console import progress
from ostinato.tools.options import (
    ContextOption,
    EntryOption,
    LogitsOption,
    ModelArgument,
    ModelOption,
    PrecisionOption,
    chosen_model,
)
from ostinato.tools.programs import trace_model

__all__ = ["trace_command"]


def trace_command(
    model: ModelArgument = None,
    model_option: ModelOption = None,
    entry: EntryOption = None,
    logits: LogitsOption = "last",
    context: ContextOption = None,
    precision: PrecisionOption = "auto",
) -> None:
    """Print the traced graph of a model in the text form.

    Example: ostinato trace smollm2 --entry forward
    """
    name = chosen_model(model, model_option)
    with progress(quiet=False) as steps:
        steps.begin(f"tracing {name}")
        traced = trace_model(name, entry, logits, context, precision)
    sys.stdout.write(print_graph(traced.graph))
