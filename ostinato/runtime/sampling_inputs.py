"""The sampling parameters of the rows of one step as inputs of its entry.

One row a request, in the order of the logits; rows past them are neutral. What a request does not use costs it nothing but the copy: its rows say "no
pairs", "no penalty", and kernels do not read further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.request import Request

__all__ = ["sampling_inputs"]

_NEUTRAL = {"top_p": 1.0, "repetition_penalty": 1.0}
"""What a row without a request has, where that is not 0."""
_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "sample_index",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "history",
    "prompt_length",
    "history_length",
    "biased_tokens",
    "bias",
    "bias_pairs",
)
_MAX_INT32 = 2**31 - 1


def sampling_inputs(plan: EntryPlan, requests: Sequence[Request]) -> dict[str, Array]:
    """The inputs that choose the next tokens of `requests`, one row each."""
    types = {binding.name: binding.type for binding in plan.inputs if binding.name in _NAMES}
    inputs: dict[str, Array] = {}
    for name, tensor_type in types.items():
        neutral = _NEUTRAL.get(name, 0)
        shape, kind = tensor_type.static_shape, tensor_type.dtype.numpy
        inputs[name] = np.full(shape, neutral, kind) if neutral else np.zeros(shape, kind)
    for row, request in enumerate(requests):
        params = request.params
        inputs["temperature"][row] = params.temperature
        inputs["top_k"][row] = min(max(0, params.top_k), _MAX_INT32)  # beyond the vocabulary all tokens are kept
        inputs["top_p"][row] = params.top_p
        inputs["min_p"][row] = params.min_p
        inputs["seed"][row] = request.seed
        inputs["sample_index"][row] = len(request.tokens)
        if params.penalizes:
            _write_penalties(inputs, row, request)
        if params.bias or request.forbidden:
            _write_bias(inputs, row, request)
    return inputs


def _write_penalties(inputs: dict[str, Array], row: int, request: Request) -> None:
    params, size, made = request.params, len(request.prompt), len(request.tokens)
    inputs["repetition_penalty"][row] = params.repetition_penalty
    inputs["presence_penalty"][row] = params.presence_penalty
    inputs["frequency_penalty"][row] = params.frequency_penalty
    inputs["history"][row, :size] = request.prompt
    inputs["history"][row, size : size + made] = request.tokens
    inputs["prompt_length"][row] = size
    inputs["history_length"][row] = size + made


def _write_bias(inputs: dict[str, Array], row: int, request: Request) -> None:
    pairs = [*request.params.bias, *((token, -math.inf) for token in request.forbidden)]
    inputs["biased_tokens"][row, : len(pairs)] = [token for token, _ in pairs]
    inputs["bias"][row, : len(pairs)] = [value for _, value in pairs]
    inputs["bias_pairs"][row] = len(pairs)
