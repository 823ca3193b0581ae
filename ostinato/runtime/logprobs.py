"""Log probabilities of generated tokens, from the logits as the model gave them: before bias, penalties and temperature, as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.ir.types import Array

__all__ = ["Logprob", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability, and its place among all tokens, 1 for the likeliest. `decoded_token` is the token's own text."""

    logprob: float
    rank: int
    decoded_token: str | None = None


def token_logprobs(logits: Array, chosen: int, count: int) -> dict[int, Logprob]:
    """`chosen` and the `count` most likely tokens (-1: all) of a row of finite logits float32 [V], the chosen one first and the others by rank.

    Computed in float64. Tokens of equal logits rank in the order of their ids.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    values = wide - np.log(np.exp(wide).sum())
    size = values.size if count < 0 else min(count, values.size)
    rank = 1 + int((values > values[chosen]).sum()) + int((values[:chosen] == values[chosen]).sum())
    found = {chosen: Logprob(float(values[chosen]), rank)}
    if size:
        least = np.partition(values, values.size - size)[values.size - size]
        candidates = np.flatnonzero(values >= least)
        likeliest = candidates[np.argsort(-values[candidates], kind="stable")][:size]
        for place, token in enumerate(likeliest.tolist(), start=1):
            found.setdefault(token, Logprob(float(values[token]), place))
    return found
