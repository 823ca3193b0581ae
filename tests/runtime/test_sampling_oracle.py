"""What is chosen, against a numpy oracle of vLLM's sampler over the logits of whole forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.random import uniform
from ostinato.ir.types import Array

PROMPT = [7, 8, 9, 8, 7, 30]
VOCABULARY = 96


@pytest.fixture(scope="module")
def llm(tiny_model: ost.Model) -> ost.LLM:
    return ost.LLM(tiny_model, max_num_seqs=16, context=64, threads=1)


@pytest.fixture(scope="module")
def forward(tiny_model: ost.Model) -> ost.TextExecutable:
    return ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64, threads=1)


def logits_after(forward: ost.TextExecutable, tokens: Sequence[int]) -> Array:
    found: Array = forward(input_ids=[list(tokens)])["logits"][0]
    return found


def adjusted(logits: Array, prompt: Sequence[int], text: Sequence[int], params: ost.SamplingParams) -> Array:
    """Logits after bias and penalties: repetition over prompt and text, then frequency and presence over the text."""
    y = logits.astype(np.float32).copy()
    for token, value in params.bias:
        y[token] += np.float32(value)
    seen = np.isin(np.arange(y.size), [*prompt, *text])
    repetition = np.float32(params.repetition_penalty)
    y[seen] = np.where(y[seen] > 0, y[seen] / repetition, y[seen] * repetition)
    counts = np.bincount(np.array(text, np.int64), minlength=y.size).astype(np.float32)
    y -= np.float32(params.frequency_penalty) * counts
    y -= np.float32(params.presence_penalty) * (counts > 0)
    return y


def distribution(logits: Array, params: ost.SamplingParams) -> Array:
    """Probabilities float64 [V] after temperature, top-k, top-p and min-p, as vLLM's reference sampler computes them."""
    scaled = logits.astype(np.float64) / params.temperature
    ascending = np.argsort(scaled, kind="stable")
    ordered = scaled[ascending]
    if params.top_k > 0:
        ordered[ordered < ordered[max(0, ordered.size - params.top_k)]] = -np.inf
    weights = np.exp(ordered - ordered.max())
    mass = np.cumsum(weights / weights.sum())
    dropped = mass <= 1 - params.top_p
    dropped[-1] = False
    ordered[dropped] = -np.inf
    result = np.zeros(scaled.size)
    result[ascending] = np.exp(ordered - ordered.max())
    result[result < params.min_p * result.max()] = 0
    normal: Array = result / result.sum()
    return normal


GREEDY_CASES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 0.9},
    {"frequency_penalty": -0.6},
    {"repetition_penalty": 1.2, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"logit_bias": {11: 30.0, 12: -30.0, 13: 29.0}, "repetition_penalty": 1.1, "frequency_penalty": 1.9},
]


@pytest.mark.parametrize("options", GREEDY_CASES, ids=str)
def test_penalties_are_those_of_vllm(llm: ost.LLM, forward: ost.TextExecutable, options: dict[str, Any]) -> None:
    params = ost.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, **options)
    plain = ost.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    output, beside = llm.generate([PROMPT, PROMPT], [params, plain])
    text: list[int] = []
    for token in output.token_ids:
        y = adjusted(logits_after(forward, [*PROMPT, *text]), PROMPT, text, params)
        assert token == int(y.argmax())
        text.append(token)
    assert output.token_ids != beside.token_ids, "the case shows nothing"


SAMPLED_CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 9},
    {"top_p": 0.8},
    {"temperature": 2.0, "top_p": 0.3},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 12, "repetition_penalty": 1.4, "logit_bias": {50: 8.0}},
]


@pytest.mark.parametrize("options", SAMPLED_CASES, ids=str)
def test_sampled_tokens_follow_the_distribution_of_vllm(
    llm: ost.LLM, forward: ost.TextExecutable, options: dict[str, Any]
) -> None:
    """The token of each seed is where its random number falls in the distribution, so that counts need no statistics."""
    seeds = range(150)
    each = [ost.SamplingParams(max_tokens=1, seed=seed, ignore_eos=True, **options) for seed in seeds]
    chances = distribution(adjusted(logits_after(forward, PROMPT), PROMPT, [], each[0]), each[0])
    points = uniform(np.array(seeds, np.int64), np.zeros(len(seeds), np.int32))
    bounds = np.cumsum(chances)
    compared = 0
    for output, point in zip(llm.generate([PROMPT] * len(seeds), each), points, strict=True):
        (token,) = output.token_ids
        assert chances[token] > 0, "a token that was dropped"
        if np.abs(bounds - point).min() > 1e-6:
            compared += 1
            assert token == int(np.searchsorted(bounds, point, side="right"))
    assert compared > 100


def test_the_distribution_is_reached_in_the_middle_of_a_text(llm: ost.LLM, forward: ost.TextExecutable) -> None:
    params = ost.SamplingParams(
        max_tokens=20, temperature=1.4, top_k=20, frequency_penalty=0.8, presence_penalty=0.3, seed=77, ignore_eos=True
    )
    (output,) = llm.generate([PROMPT], params)
    for place, token in enumerate(output.token_ids):
        text = output.token_ids[:place]
        chances = distribution(adjusted(logits_after(forward, [*PROMPT, *text]), PROMPT, text, params), params)
        (point,) = uniform(np.array([77], np.int64), np.array([place], np.int32))
        bounds = np.cumsum(chances)
        if np.abs(bounds - point).min() > 1e-6:
            assert token == int(np.searchsorted(bounds, point, side="right"))


def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(llm: ost.LLM, rng: np.random.Generator) -> None:
    params = ost.SamplingParams(max_tokens=12, seed=5, repetition_penalty=1.2, presence_penalty=0.5, ignore_eos=True)
    (alone,) = llm.generate([PROMPT], params)
    for count in (1, 5, 15, 40):
        mates = [rng.integers(0, VOCABULARY, rng.integers(1, 30)).tolist() for _ in range(count)]
        others = [
            ost.SamplingParams(max_tokens=int(rng.integers(1, 20)), frequency_penalty=float(rng.uniform(-2, 2)))
            for _ in mates
        ]
        place = int(rng.integers(0, count + 1))
        prompts = [*mates[:place], PROMPT, *mates[place:]]
        outputs = llm.generate(prompts, [*others[:place], params, *others[place:]])
        assert outputs[place].token_ids == alone.token_ids


def test_eager_and_planned_choose_the_same_bits(tiny_model: ost.Model) -> None:
    each = [
        ost.SamplingParams(
            max_tokens=10,
            seed=seed,
            min_tokens=4,
            ignore_eos=seed % 2 == 0,
            logprobs=-1,
            stop_token_ids=(3, 4),
            **options,
        )
        for seed, options in enumerate([*SAMPLED_CASES, *GREEDY_CASES])
    ]
    prompts = [[seed + 1, *PROMPT] for seed in range(len(each))]
    planned, eager, reference = (
        ost.LLM(tiny_model, max_num_seqs=4, context=64, threads=2, mode=mode).generate(prompts, each)
        for mode in ("planned", "eager", "reference")
    )
    assert planned == eager
    assert [output.token_ids for output in reference] == [output.token_ids for output in planned]
