"""Sampling parameters: vLLM's names, defaults and ranges; every error says what was found and how to fix it."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

import ostinato as ost
from ostinato.runtime.sampling import DefaultInt

VLLM_DEFAULTS: dict[str, Any] = {
    "max_tokens": 16,
    "min_tokens": 0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": None,
    "logprobs": None,
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "detokenize": True,
    "skip_special_tokens": True,
}


def test_defaults_are_those_of_vllm() -> None:
    params = ost.SamplingParams()
    assert {name: getattr(params, name) for name in VLLM_DEFAULTS} == VLLM_DEFAULTS
    assert (params.stop_strings, params.stop_tokens, params.bias) == ((), (), ())


@pytest.mark.parametrize(
    ("options", "text", "hint"),
    [
        ({"temperature": -1.0}, "temperature is -1.0", "temperature=0 is greedy"),
        ({"temperature": float("nan")}, "temperature is nan", "greedy"),
        ({"temperature": 1e39}, "temperature", "greedy"),
        ({"top_p": 0.0}, r"top_p is 0.0, expected a number in \(0, 1\]", "temperature=0"),
        ({"top_p": 1.5}, "top_p is 1.5", "top_p=1"),
        ({"top_k": -2}, "top_k is -2", "top_k=0"),
        ({"min_p": 2.0}, "min_p is 2.0", "min_p=0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0", "repetition_penalty=1 is off"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf", "is off"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty is 1e-45", "is off"),
        ({"repetition_penalty": 1e38}, r"repetition_penalty is 1e\+38", "is off"),
        ({"presence_penalty": 2.5}, r"presence_penalty is 2.5, expected a number in \[-2, 2\]", "presence_penalty=0"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3.0", "frequency_penalty=0"),
        ({"logit_bias": {3: 101.0}}, "logit_bias of token 3 is 101.0", "-100 all but forbids"),
        ({"logit_bias": {-3: 1.0}}, "logit_bias of token -3", "-100"),
        ({"max_tokens": -1}, "max_tokens is -1", "max_tokens=None"),
        ({"min_tokens": -1}, "min_tokens is -1", "lower min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, r"min_tokens is 5, expected a number from 0 to max_tokens \(4\)", "raise"),
        ({"seed": -1}, "seed is -1", "seed=None"),
        ({"seed": 2**63}, "seed is", "seed=None"),
        ({"logprobs": -2}, "logprobs is -2", "logprobs=None"),
        ({"stop": ""}, "stop has an empty string", "leave it out"),
        ({"stop": ["a", ""]}, "stop has an empty string", "leave it out"),
        ({"stop": "a", "detokenize": False}, "stop strings need the text", "stop_token_ids"),
        ({"stop_token_ids": (1, 1)}, r"stop_token_ids \(1, 1\) repeat", "once"),
    ],
)
def test_values_out_of_range_are_refused_with_a_hint(options: dict[str, Any], text: str, hint: str) -> None:
    with pytest.raises(ost.ConfigError, match=text) as caught:
        ost.SamplingParams(**options)
    assert hint in (caught.value.hint or "")
    assert caught.value.node == "SamplingParams"


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ost.ConfigError, match=r"temperature is -1\.0.*top_k is -5.*min_p is 3\.0"):
        ost.SamplingParams(temperature=-1, top_k=-5, min_p=3)


def test_one_stop_string_or_several_are_kept_as_a_tuple() -> None:
    assert ost.SamplingParams(stop="a").stop_strings == ("a",)
    assert ost.SamplingParams(stop=["b", "a", "b"]).stop_strings == ("b", "a")
    assert ost.SamplingParams(stop=[]).stop_strings == ()


def test_a_default_stays_one_through_replace_and_pickle() -> None:
    for params in (ost.SamplingParams(seed=3), ost.SamplingParams(max_tokens=16)):
        for copy in (dataclasses.replace(params, seed=4), pickle.loads(pickle.dumps(params))):
            assert isinstance(copy.max_tokens, DefaultInt) == isinstance(params.max_tokens, DefaultInt)
            assert copy.max_tokens == 16
    assert not isinstance(ost.SamplingParams(max_tokens=16).max_tokens, DefaultInt)
