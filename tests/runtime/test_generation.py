"""Generation: rows, queues, stops, seeds and bad requests."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost

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
    assert output.finish_reason == "stop"


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


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -2},
        {"min_p": 2.0},
        {"max_tokens": -1},
        {"seed": -1},
    ],
)
def test_sampling_parameters_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ost.ConfigError, match=next(iter(options))):
        ost.SamplingParams(**options)  # type: ignore[arg-type]


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
    weights.view(np.float32, slot.type.static_shape, slot.range.offset)[:] = np.nan
    with pytest.raises(ost.BackendError, match="not finite"):
        llm.generate([[1, 2]], GREEDY)
