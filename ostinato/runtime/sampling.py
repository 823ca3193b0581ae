"""How a request wants its tokens chosen, and when it ends: vLLM's names, defaults and ranges.

Values of other types are refused rather than converted. Everything is checked here, when the parameters are made; what depends on a model (its
vocabulary, its context) is checked when a request is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ostinato.ir.checks import integer, integers, real
from ostinato.ir.errors import ConfigError

__all__ = ["DefaultInt", "SamplingParams"]

_MAX_FLOAT32 = 3.4028234663852886e38
_MAX_REPETITION = 1e9
"""Beyond it, and below 1 / 1e9, penalised logits would not be finite in float32."""
_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0
"""The ranges of vLLM and of OpenAI's API."""


class DefaultInt(int):
    """An integer that nobody asked for: equal to any other of its value, and known to be a default."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one request (vLLM's names and meanings).

    Choice: `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens, `top_p` 1 and `min_p` 0 are off; they apply in this order to the tempered
    distribution. Before them, in this order: `logit_bias` (token id -> number added to its logit), `repetition_penalty` (over prompt and text), and
    `frequency_penalty` and `presence_penalty` (over the text). The same `seed` gives the same tokens for the same prompt, whatever runs beside it; None
    draws one.

    End: after `max_tokens` (None: as many as the context has room for; the default is capped to that, a number given must fit), at an end token of the
    model (unless `ignore_eos`), at one of `stop_token_ids`, or where the text contains one of the strings `stop`. Before `min_tokens` tokens no end or stop
    token is chosen and no stop string looked for. The text ends before the stop string or token unless `include_stop_str_in_output`; `token_ids` hold all.

    Output: `logprobs` n gives the n most likely tokens and the chosen one at each place (0: the chosen one, -1: all), from the logits before any of the
    above. `detokenize=False` leaves the text out. `skip_special_tokens` leaves special tokens out of it.

    Raises `ConfigError` for values that make no sense, naming each.
    """

    max_tokens: int | None = DefaultInt(16)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    stop: str | Iterable[str] | None = None
    stop_token_ids: Iterable[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._make_plain()
        problems = [(text, hint) for wrong, text, hint in self._rules() if wrong]
        if problems:
            raise ConfigError(
                "; ".join(text for text, _ in problems),
                node="SamplingParams",
                hint="; ".join(dict.fromkeys(hint for _, hint in problems)),
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as the tuple that it is kept as."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """`stop_token_ids` as the tuple that it is kept as."""
        assert isinstance(self.stop_token_ids, tuple)
        return self.stop_token_ids

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as the pairs that it is kept as, by token id."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def penalizes(self) -> bool:
        """True when a penalty is not neutral."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _make_plain(self) -> None:
        """Python's own numbers and tuples in every field; raises `ConfigError` for values of other types."""
        plain: dict[str, object] = {name: real(getattr(self, name), name) for name in _REALS}
        plain |= {name: integer(getattr(self, name), name) for name in ("top_k", "min_tokens")}
        if not isinstance(self.max_tokens, DefaultInt):
            plain["max_tokens"] = _optional(self.max_tokens, "max_tokens")
        plain |= {name: _optional(getattr(self, name), name) for name in ("seed", "logprobs")}
        plain["stop"] = _texts(self.stop)
        plain["stop_token_ids"] = integers(() if self.stop_token_ids is None else self.stop_token_ids, "stop_token_ids")
        plain["logit_bias"] = _pairs(self.logit_bias)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected True or False", node="SamplingParams")
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def _rules(self) -> Iterable[tuple[bool, str, str]]:
        """(broken, what was found and expected, how to fix it) of each rule."""
        made = self.max_tokens
        yield (
            made is not None and made < 0,
            f"max_tokens is {made}, expected 0 or more",
            "max_tokens=None makes as many as fit the context",
        )
        yield (
            not (math.isfinite(self.temperature) and 0 <= self.temperature <= _MAX_FLOAT32),
            f"temperature is {self.temperature}, expected a finite float32 number of 0 or more",
            "temperature=0 is greedy",
        )
        yield self.top_k < -1, f"top_k is {self.top_k}, expected -1, 0 (both off) or more", "top_k=0 keeps all tokens"
        yield (
            not 0 < self.top_p <= 1,
            f"top_p is {self.top_p}, expected a number in (0, 1]",
            "top_p=1 keeps all tokens, temperature=0 the likeliest alone",
        )
        yield not 0 <= self.min_p <= 1, f"min_p is {self.min_p}, expected a number in [0, 1]", "min_p=0 is off"
        yield (
            not 1 / _MAX_REPETITION <= self.repetition_penalty <= _MAX_REPETITION,
            f"repetition_penalty is {self.repetition_penalty}, expected a number above 0, in [1e-9, 1e9]",
            "repetition_penalty=1 is off, above 1 discourages repetition",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            wrong = not -_MAX_PENALTY <= value <= _MAX_PENALTY
            yield wrong, f"{name} is {value}, expected a number in [-2, 2]", f"{name}=0 is off"
        for token, value in self.bias:
            wrong = token < 0 or not -_MAX_BIAS <= value <= _MAX_BIAS
            found = f"logit_bias of token {token} is {value}, expected a token id and a number in [-100, 100]"
            yield wrong, found, "-100 all but forbids a token"
        wrong = self.seed is not None and not 0 <= self.seed < 2**63
        yield wrong, f"seed is {self.seed}, expected a number in [0, 2^63)", "seed=None draws one"
        yield "" in self.stop_strings, "stop has an empty string, expected text", "leave it out"
        repeated = len(set(self.stop_tokens)) != len(self.stop_tokens)
        yield repeated, f"stop_token_ids {self.stop_tokens} repeat", "name each once"
        yield (
            bool(self.stop_strings) and not self.detokenize,
            "stop strings need the text, and detokenize is False",
            "use stop_token_ids, or leave detokenize=False out",
        )
        least = self.min_tokens
        yield (
            least < 0 or (made is not None and not isinstance(made, DefaultInt) and least > made),
            f"min_tokens is {least}, expected a number from 0 to max_tokens ({made})",
            "raise max_tokens or lower min_tokens",
        )
        yield (
            self.logprobs is not None and self.logprobs < -1,
            f"logprobs is {self.logprobs}, expected -1 (all tokens), 0 (the chosen one alone) or more",
            "logprobs=None gives none",
        )


_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens")


def _optional(value: object, what: str) -> int | None:
    return None if value is None else integer(value, what)


def _texts(stop: object) -> tuple[str, ...]:
    """One text, several or none as a tuple; raises `ConfigError` for anything else."""
    listed = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(listed, Iterable) or isinstance(listed, bytes | Mapping):
        raise ConfigError(
            f"stop is {stop!r}, expected a text or a list of texts",
            node="SamplingParams",
            hint="token ids are stop_token_ids",
        )
    texts = tuple(listed)
    if wrong := [item for item in texts if not isinstance(item, str)]:
        raise ConfigError(f"stop has {wrong[0]!r}, expected text", node="SamplingParams", hint="or use stop_token_ids")
    return tuple(dict.fromkeys(texts))


def _pairs(bias: object) -> tuple[tuple[int, float], ...]:
    """Token ids and numbers, by id; raises `ConfigError` for anything but a mapping (or such pairs)."""
    if bias is None:
        return ()
    try:
        items = list(dict(bias).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ConfigError(
            f"logit_bias is {bias!r}, expected numbers by token id", node="SamplingParams", hint="write {token_id: 2.5}"
        ) from None
    return tuple(sorted((integer(token, "logit_bias token"), real(value, "logit_bias")) for token, value in items))
