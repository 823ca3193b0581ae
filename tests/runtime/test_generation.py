"""Generation: rows, queues, stops, seeds and bad requests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime.generation import Generator
from ostinato.runtime.request import make_request
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

GREEDY = ost.SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
PROMPTS = [[5], [7, 8, 9], list(range(20, 60)), [1, 2], [90, 3, 3, 3, 3]]


@pytest.fixture(scope="module")
def llm(tiny_model: ost.Model) -> ost.LLM:
    return ost.LLM(tiny_model, max_num_seqs=2, context=64, threads=1)


def test_ragged_prompts_equal_single_ones_and_wait_for_rows(llm: ost.LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt_token_ids for output in together] == [tuple(prompt) for prompt in PROMPTS]
    for prompt, output in zip(PROMPTS, together, strict=True):
        (alone,) = llm.generate([prompt], GREEDY)
        assert alone.token_ids == output.token_ids
        assert len(output.token_ids) == 12
        assert output.finish_reason == "length"


def test_generation_equals_repeated_whole_forwards(llm: ost.LLM, tiny_model: ost.Model) -> None:
    forward = ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64)
    tokens = list(PROMPTS[1])
    for expected in llm.generate([PROMPTS[1]], GREEDY)[0].token_ids:
        assert int(forward(input_ids=[tokens])["logits"][0].argmax()) == expected
        tokens.append(expected)


def test_a_seed_repeats_and_batch_mates_do_not_matter(llm: ost.LLM) -> None:
    sampled = ost.SamplingParams(max_tokens=10, temperature=1.5, top_p=0.9, seed=11, ignore_eos=True)
    (alone,) = llm.generate([PROMPTS[0]], sampled)
    beside = llm.generate([PROMPTS[0], PROMPTS[1]], [sampled, GREEDY])[0]
    other = llm.generate(
        [PROMPTS[0]], ost.SamplingParams(max_tokens=10, temperature=1.5, top_p=0.9, seed=12, ignore_eos=True)
    )[0]
    assert alone.token_ids == beside.token_ids
    assert alone.token_ids != other.token_ids


def test_stop_tokens_end_a_request_and_are_part_of_it(llm: ost.LLM) -> None:
    full = llm.generate([PROMPTS[0]], GREEDY)[0].token_ids
    stop = full[4]
    (output,) = llm.generate(
        [PROMPTS[0]], ost.SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    )
    assert output.token_ids == full[: full.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def with_end_tokens(model: ost.Model, *tokens: int) -> ost.LLM:
    """The model with other end tokens."""
    llm = ost.LLM(model, max_num_seqs=2, context=64, threads=1)
    llm._generator = Generator(llm.executable, tokens)
    return llm


def test_any_of_several_end_tokens_ends_a_request(llm: ost.LLM, tiny_model: ost.Model) -> None:
    full = llm.generate([PROMPTS[0]], GREEDY)[0].token_ids
    greedy = dataclasses.replace(GREEDY, ignore_eos=False)
    for ends in (full[1:3], (full[5], 95), (94, full[3], 95)):
        first = next(place for place, token in enumerate(full) if token in ends)
        (output,) = with_end_tokens(tiny_model, *ends).generate([PROMPTS[0]], greedy)
        assert output.token_ids == full[: first + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", None)
        (output,) = with_end_tokens(tiny_model, *ends).generate([PROMPTS[0]], GREEDY)
        assert output.token_ids == full


def test_end_and_stop_tokens_are_not_chosen_before_min_tokens(llm: ost.LLM, tiny_model: ost.Model) -> None:
    full = llm.generate([PROMPTS[0]], GREEDY)[0].token_ids
    end, stop = full[0], full[1]
    for sampled in (GREEDY, dataclasses.replace(GREEDY, temperature=1.0, seed=1)):
        params = dataclasses.replace(sampled, ignore_eos=False, min_tokens=6, max_tokens=40, stop_token_ids=(stop,))
        (output,) = with_end_tokens(tiny_model, end).generate([PROMPTS[0]], params)
        assert not {end, stop} & set(output.token_ids[:6])
        assert len(output.token_ids) >= 6
    # the same token may come, and end nothing, where it is not an end token
    (output,) = llm.generate([PROMPTS[0]], dataclasses.replace(GREEDY, min_tokens=6))
    assert output.token_ids == full


def test_min_tokens_raises_a_default_and_must_fit_the_context(llm: ost.LLM) -> None:
    (output,) = llm.generate([[1]], ost.SamplingParams(min_tokens=20, ignore_eos=True))
    assert len(output.token_ids) == 20
    with pytest.raises(ost.CapacityError, match="1 prompt tokens and 65 new ones need 65 positions"):
        llm.generate([[1]], ost.SamplingParams(min_tokens=65))


def test_more_held_back_tokens_than_a_row_takes_are_refused(llm: ost.LLM) -> None:
    bias = dict.fromkeys(range(90), -1.0)
    llm.generate([[1]], ost.SamplingParams(max_tokens=2, logit_bias=bias, min_tokens=1, stop_token_ids=range(90)))
    width = llm.executable.input_type("bias").static_shape[1]
    assert width >= 180
    request = {
        "vocab_size": 10_000,
        "context": 64,
        "end_tokens": frozenset({1}),
        "bias_width": 100,
    }
    params = ost.SamplingParams(logit_bias=bias, min_tokens=1, stop_token_ids=range(100, 110))
    with pytest.raises(ost.CapacityError, match="90 biased tokens and 11 that min_tokens holds back are 101"):
        make_request(0, [1], params, **request)  # type: ignore[arg-type]


def test_a_logit_bias_forbids_and_forces_tokens(llm: ost.LLM) -> None:
    full = llm.generate([PROMPTS[0]], GREEDY)[0].token_ids
    (output,) = llm.generate([PROMPTS[0]], dataclasses.replace(GREEDY, logit_bias=dict.fromkeys(full, -100)))
    assert not set(full) & set(output.token_ids)
    (output,) = llm.generate([PROMPTS[0]], dataclasses.replace(GREEDY, logit_bias={42: 100}))
    assert output.token_ids == (42,) * 12


@pytest.mark.parametrize(
    ("max_tokens", "size", "made"), [(None, 10, 55), (None, 64, 1), (..., 10, 16), (..., 60, 5), (55, 10, 55)]
)
def test_a_default_is_capped_to_the_context(llm: ost.LLM, max_tokens: Any, size: int, made: int) -> None:
    given = {} if max_tokens is ... else {"max_tokens": max_tokens}
    (output,) = llm.generate([[3] * size], ost.SamplingParams(temperature=0, ignore_eos=True, **given))
    assert (len(output.token_ids), output.finish_reason) == (made, "length")


@pytest.mark.parametrize(
    ("max_tokens", "size", "text"),
    [
        (16, 60, "60 prompt tokens and 16 new ones need 75 positions, the context is 64"),
        (None, 65, "65 prompt tokens need 65 positions, the context is 64"),
        (..., 65, "65 prompt tokens need 65 positions, the context is 64"),
    ],
)
def test_a_number_that_was_asked_for_must_fit(llm: ost.LLM, max_tokens: Any, size: int, text: str) -> None:
    given = {} if max_tokens is ... else {"max_tokens": max_tokens}
    with pytest.raises(ost.CapacityError, match=text) as caught:
        llm.generate([[3] * size], ost.SamplingParams(**given))
    assert "use context=" in (caught.value.hint or "")


def test_without_a_tokenizer_stop_strings_are_refused(llm: ost.LLM) -> None:
    with pytest.raises(ost.ConfigError, match="need a tokenizer"):
        llm.generate([[1]], ost.SamplingParams(stop="a"))


def test_no_params_are_what_the_authors_recommend(tmp_path: Path) -> None:
    config = small_config("llama")
    write_hf_checkpoint(tmp_path, config, random_model(config, 5))
    said = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "max_new_tokens": 400}
    (tmp_path / "generation_config.json").write_text(json.dumps({**said, "repetition_penalty": 1.1}), encoding="utf-8")
    llm = ost.LLM(tmp_path, max_num_seqs=1, context=64, threads=1)
    params = llm.default_sampling_params()
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 20, 0.9, 1.1)
    assert (params.max_tokens, params.min_p) == (400, 0.0)
    (output,) = llm.generate([[1, 2]])
    assert len(output.token_ids) == 63 or output.finish_reason == "stop"
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}', encoding="utf-8")
    assert ost.LLM(tmp_path, max_num_seqs=1, context=8).default_sampling_params().temperature == 0.0


def test_max_tokens_zero_completes_at_once(llm: ost.LLM) -> None:
    (output,) = llm.generate([PROMPTS[0]], ost.SamplingParams(max_tokens=0))
    assert output.token_ids == ()
    assert output.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "error", "text"),
    [
        ([], GREEDY, ost.ConfigError, "at least one token"),
        ([96], GREEDY, ost.BoundsError, "token id 96 at index 0"),
        ([1], ost.SamplingParams(max_tokens=100), ost.CapacityError, "the context is 64"),
        ([1], ost.SamplingParams(stop_token_ids=(1000,)), ost.BoundsError, r"stop tokens \[1000\]"),
        ([1.5], GREEDY, ost.DTypeError, "expected integer token ids"),
    ],
)
def test_bad_requests_are_refused_before_any_runs(
    llm: ost.LLM, prompt: list[int], params: ost.SamplingParams, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        llm.generate([PROMPTS[0], prompt], [GREEDY, params])
    assert len(llm.generate([PROMPTS[0]], GREEDY)[0].token_ids) == 12


def test_abandoned_stream_leaves_the_engine_usable(llm: ost.LLM) -> None:
    before = llm.generate([PROMPTS[2]], GREEDY)[0].token_ids
    events = llm.tokens([PROMPTS[1]], GREEDY)
    next(events)
    del events
    assert llm.generate([PROMPTS[2]], GREEDY)[0].token_ids == before


def test_non_finite_logits_are_an_error_not_token_zero(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=64, threads=1)
    slot = next(s for s in llm.executable.program.plan.weights if s.name == "model.norm.weight")
    weights = llm.executable.regions.shared.weights
    weights.write(np.full(slot.type.static_shape, np.nan, np.float32), slot.range.offset)
    with pytest.raises(ost.BackendError, match="not finite"):
        llm.generate([[1, 2]], GREEDY)
