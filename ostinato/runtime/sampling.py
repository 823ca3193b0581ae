"""How a request wants its tokens chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.ir.checks import integer, integers, real
from ostinato.ir.errors import ConfigError

__all__ = ["SamplingParams"]

_MAX_FLOAT32 = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one request (vLLM's names and meanings).

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens, `top_p` 1 and `min_p` 0 are off. The same `seed` gives the same tokens for the same
    logits; None draws one. Generation stops after `max_tokens`, at an end token of the model (unless `ignore_eos`) or at one of `stop_token_ids`.
    Raises `ConfigError` for values that make no sense.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._make_plain()
        problems = []
        if self.max_tokens < 0:
            problems.append(f"max_tokens is {self.max_tokens}, expected 0 or more")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= _MAX_FLOAT32):
            problems.append(f"temperature is {self.temperature}, expected a finite float32 number of 0 or more")
        if self.top_k < -1:
            problems.append(f"top_k is {self.top_k}, expected -1, 0 (both off) or more")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p is {self.top_p}, expected a number in (0, 1]")
        if not 0 <= self.min_p <= 1:
            problems.append(f"min_p is {self.min_p}, expected a number in [0, 1]")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            problems.append(f"seed is {self.seed}, expected a number in [0, 2^63)")
        if len(set(self.stop_token_ids)) != len(self.stop_token_ids):
            problems.append(f"stop_token_ids {self.stop_token_ids} repeat")
        if problems:
            raise ConfigError("; ".join(problems), node="SamplingParams")

    def _make_plain(self) -> None:
        """Python's own numbers and a tuple in every field; raises `ConfigError` for values of other types."""
        plain: dict[str, object] = {
            "max_tokens": integer(self.max_tokens, "max_tokens"),
            "temperature": real(self.temperature, "temperature"),
            "top_k": integer(self.top_k, "top_k"),
            "top_p": real(self.top_p, "top_p"),
            "min_p": real(self.min_p, "min_p"),
            "seed": None if self.seed is None else integer(self.seed, "seed"),
            "stop_token_ids": integers(self.stop_token_ids, "stop_token_ids"),
        }
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos is {self.ignore_eos!r}, expected True or False")
        for name, value in plain.items():
            object.__setattr__(self, name, value)
