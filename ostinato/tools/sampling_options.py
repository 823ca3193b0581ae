"""The options of `run` that say how tokens are chosen, and the parameters that they make.

An option that is not given is the model's own recommendation (`generation_config.json`) where there is one; else the run is greedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ostinato.frontend.model import Model
from ostinato.llm import recommended
from ostinato.runtime.sampling import DefaultInt, SamplingParams

__all__ = [
    "COMPLETION_TOKENS",
    "CONVERSATION_TOKENS",
    "FrequencyPenaltyOption",
    "IgnoreEosOption",
    "LogprobsOption",
    "MaxTokensOption",
    "MinPOption",
    "MinTokensOption",
    "PresencePenaltyOption",
    "RepetitionPenaltyOption",
    "StopOption",
    "StopTokenOption",
    "TemperatureOption",
    "TopKOption",
    "TopPOption",
    "sampling_params",
]

COMPLETION_TOKENS = 128
CONVERSATION_TOKENS = 1024
"""Tokens of one completion, and of one answer in a conversation, unless the user or the model says otherwise."""

MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=0,
        show_default=False,
        help=f"Tokens to make at most; default: the model's, else {COMPLETION_TOKENS} ({CONVERSATION_TOKENS} for each answer of a conversation), "
        "as far as the context allows.",
    ),
]
MinTokensOption = Annotated[
    int, typer.Option("--min-tokens", min=0, help="Tokens to make before any end token or stop string counts.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature", min=0.0, show_default=False, help="0 is greedy; default: the model's recommendation, else 0."
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p", show_default=False, help="Keep the likeliest tokens up to this mass; default: the model's."
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k", show_default=False, help="Keep this many of the likeliest tokens; 0: all; default: the model's."
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        show_default=False,
        help="Keep tokens of at least this share of the likeliest one's probability; default: the model's.",
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty",
        show_default=False,
        help="Divide the logits of tokens that stand in prompt or text by this; 1: off; default: the model's.",
    ),
]
PresencePenaltyOption = Annotated[
    float, typer.Option("--presence-penalty", help="Subtract this from the logits of tokens that stand in the text.")
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option("--frequency-penalty", help="Subtract this for every time that a token stands in the text."),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", show_default=False, help="End before this text; may be given several times."),
]
StopTokenOption = Annotated[
    list[int] | None,
    typer.Option("--stop-token", show_default=False, help="End at this token id; may be given several times."),
]
IgnoreEosOption = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's end token.")]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        min=-1,
        show_default=False,
        help="With --json: log probabilities of this many likeliest tokens at each place, and of the chosen one.",
    ),
]


def sampling_params(model: Model, given: Mapping[str, Any], default_tokens: int) -> SamplingParams:
    """Parameters of a run: what was given (None: not), else what the model's authors recommend, else greedy and `default_tokens`.

    Raises `ConfigError` for values that make no sense.
    """
    defaults = {"temperature": 0.0, "max_tokens": DefaultInt(default_tokens)}
    asked = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**{**defaults, **recommended(model), **asked})
