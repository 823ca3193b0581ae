"""Log probabilities: values, ranks, ties, and that they come from the raw logits of the right row."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.logprobs import token_logprobs


def log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    result: Array = shifted - np.log(np.exp(shifted).sum())
    return result


def test_the_chosen_token_comes_first_and_the_others_by_rank(rng: np.random.Generator) -> None:
    logits = (rng.standard_normal(50) * 5).astype(np.float32)
    expected = log_softmax(logits)
    order = np.argsort(-expected, kind="stable")
    for rank in (1, 2, 7, 50):
        chosen = int(order[rank - 1])
        found = token_logprobs(logits, chosen, 3)
        assert next(iter(found)) == chosen
        assert found[chosen].rank == rank
        assert list(found)[1:] == [token for token in order[:3].tolist() if token != chosen]
        for token, entry in found.items():
            assert entry.logprob == pytest.approx(expected[token], abs=1e-12)


def test_zero_is_the_chosen_token_alone_and_minus_one_all(rng: np.random.Generator) -> None:
    logits = rng.standard_normal(20).astype(np.float32)
    assert list(token_logprobs(logits, 4, 0)) == [4]
    for count in (-1, 20, 1000):
        everything = token_logprobs(logits, 4, count)
        assert sorted(everything) == list(range(20))
        assert sum(np.exp(entry.logprob) for entry in everything.values()) == pytest.approx(1.0)
        assert sorted(entry.rank for entry in everything.values()) == list(range(1, 21))


def test_equal_logits_rank_by_id() -> None:
    found = token_logprobs(np.array([0.0, 2.0, 2.0, 2.0, 0.0], np.float32), 3, 2)
    assert {token: entry.rank for token, entry in found.items()} == {3: 3, 1: 1, 2: 2}


def test_a_token_of_no_probability_has_minus_infinity() -> None:
    found = token_logprobs(np.array([0.0, -np.inf], np.float32), 0, -1)
    assert found[0].logprob == 0.0
    assert found[1].logprob == -np.inf


def test_generated_tokens_have_the_log_probabilities_of_whole_forwards(tiny_model: ost.Model) -> None:
    """Each row of a ragged batch has its own, from the logits before penalties, bias and temperature."""
    llm = ost.LLM(tiny_model, max_num_seqs=3, context=64, threads=1)
    forward = ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64, threads=1)
    prompts = [[5], list(range(20, 40)), [7, 8, 9]]
    params = ost.SamplingParams(
        max_tokens=6,
        temperature=1.3,
        seed=1,
        ignore_eos=True,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        logit_bias={4: 20.0},
        logprobs=2,
    )
    silent = ost.SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    first, beside, third = llm.generate(prompts, [params, silent, params])
    assert beside.logprobs is None
    assert beside.cumulative_logprob is None
    for prompt, output in ((prompts[0], first), (prompts[2], third)):
        assert output.logprobs is not None
        assert len(output.logprobs) == 6
        for place, (token, entry) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
            logits = forward(input_ids=[[*prompt, *output.token_ids[:place]]])["logits"][0]
            assert entry == token_logprobs(logits, token, 2)
            assert len(entry) in (2, 3)
        total = sum(e[t].logprob for t, e in zip(output.token_ids, output.logprobs, strict=True))
        assert output.cumulative_logprob == pytest.approx(total)
