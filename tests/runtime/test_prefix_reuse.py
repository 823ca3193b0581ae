"""Prefix reuse: the same bits as a fresh run, with fewer tokens computed, and none where the cache cannot be trusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.runtime.replays import QueuedReplays
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

PARAMS = ost.SamplingParams(max_tokens=7, temperature=0.9, seed=3, ignore_eos=True, logprobs=-1)


def make(model: ost.Model, *, caching: bool = True, rows: int = 2, mode: str = "planned") -> ost.LLM:
    return ost.LLM(model, max_num_seqs=rows, context=128, threads=1, mode=mode, enable_prefix_caching=caching)


@pytest.fixture(scope="module")
def fresh(tiny_model: ost.Model) -> ost.LLM:
    return make(tiny_model, caching=False)


def same(output: ost.RequestOutput, expected: ost.RequestOutput) -> bool:
    """Equal in everything, every log probability of every place included, but for what was cached."""
    return dataclasses.replace(output, num_cached_tokens=expected.num_cached_tokens) == expected


def alike(output: ost.RequestOutput, expected: ost.RequestOutput) -> bool:
    """The same tokens at log probabilities that differ by rounding: sums of numpy may depend on how many rows there are."""
    assert output.logprobs is not None
    assert expected.logprobs is not None
    places = zip(output.logprobs, expected.logprobs, strict=True)
    near = all(abs(mine[token].logprob - theirs[token].logprob) < 1e-4 for mine, theirs in places for token in theirs)
    return near and output.token_ids == expected.token_ids


def run(llm: ost.LLM, prompt: Sequence[int]) -> ost.RequestOutput:
    (output,) = llm.generate([list(prompt)], PARAMS)
    return output


@pytest.mark.parametrize("mode", ["planned", "eager", "reference"])
def test_turns_of_a_conversation_compute_only_what_is_new(tiny_model: ost.Model, mode: str) -> None:
    llm, without = make(tiny_model, mode=mode), make(tiny_model, mode=mode, caching=False)
    prompt = [5, 6, 7, 8]
    known = 0
    for turn in range(4):
        output, expected = run(llm, prompt), run(without, prompt)
        assert (alike if mode == "reference" else same)(output, expected)
        assert output.num_cached_tokens == known
        assert expected.num_cached_tokens == 0
        known = len(prompt) + len(output.token_ids) - 1  # the last token made was never computed
        prompt = [*prompt, *output.token_ids, 10 + turn, 20, 30]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("unit", HostDevice(threads=1).available)
def test_keys_from_decode_steps_are_those_of_a_prefill(tiny_model: ost.Model, unit: str, precision: str) -> None:
    """On every instruction unit, for any number of threads: a row's bits do not depend on what it was computed with."""
    cached, fresh = (
        ost.LLM(
            tiny_model,
            max_num_seqs=3,
            context=128,
            isa=unit,
            precision=precision,
            threads=threads,
            enable_prefix_caching=caching,
        )
        for caching, threads in ((True, 2), (False, 1))
    )
    prompt = [9, 8, 7, 6, 5]
    for _ in range(3):
        output = run(cached, prompt)
        assert same(output, run(fresh, prompt))
        prompt = [*prompt, *output.token_ids, 3]
    assert output.num_cached_tokens > 10


def test_the_same_prompt_computes_its_last_token(tiny_model: ost.Model, fresh: ost.LLM) -> None:
    llm = make(tiny_model)
    prompt = list(range(40, 80))
    for cached in (0, 39, 39):
        output = run(llm, prompt)
        assert output.num_cached_tokens == cached
        assert same(output, run(fresh, prompt))


def test_random_beginnings_in_any_order(tiny_model: ost.Model, fresh: ost.LLM, rng: np.random.Generator) -> None:
    """Prompts that branch off each other at random places, several at once, with more of them than rows."""
    llm = make(tiny_model, rows=3)
    known = [rng.integers(0, 96, 30).tolist()]
    hits = 0
    for _ in range(12):
        prompts = []
        for _ in range(int(rng.integers(1, 5))):
            start = known[int(rng.integers(len(known)))]
            cut = int(rng.integers(1, len(start) + 1))
            prompts.append([*start[:cut], *rng.integers(0, 96, rng.integers(0, 20)).tolist()][:90])
        outputs = llm.generate(prompts, PARAMS)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert same(output, run(fresh, prompt))
            assert output.num_cached_tokens < len(prompt)
            hits += output.num_cached_tokens > 0
            known.append([*prompt, *output.token_ids])
    assert hits > 5


def test_the_row_that_was_given_back_longest_ago_is_evicted(tiny_model: ost.Model) -> None:
    llm = make(tiny_model)
    first, second, third = list(range(10, 30)), list(range(30, 50)), list(range(50, 70))
    for prompt in (first, second, third):
        assert run(llm, prompt).num_cached_tokens == 0
    assert run(llm, second).num_cached_tokens == 19
    assert run(llm, third).num_cached_tokens == 19
    assert run(llm, first).num_cached_tokens == 0


def test_an_abandoned_request_leaves_what_it_had(tiny_model: ost.Model, fresh: ost.LLM) -> None:
    llm = make(tiny_model)
    prompt = list(range(10, 30))
    events = llm.tokens([prompt], PARAMS)
    made = [next(events).token for _ in range(3)]
    events.close()
    longer = [*prompt, *(token for token in made if token is not None), 1, 2, 3]
    output = run(llm, longer)
    assert output.num_cached_tokens == len(prompt) + 2
    assert same(output, run(fresh, longer))


def test_a_request_that_fails_in_the_middle_leaves_only_what_was_computed(
    tiny_model: ost.Model, fresh: ost.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(tiny_model)
    prompt = list(range(10, 40))
    take = QueuedReplays.take

    def interrupted(replays: QueuedReplays) -> object:
        take(replays)  # the third step has run, and nobody hears of it
        raise KeyboardInterrupt

    monkeypatch.setattr(QueuedReplays, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(llm, prompt)
    monkeypatch.undo()
    output = run(llm, prompt)
    assert output.num_cached_tokens == len(prompt) - 1
    assert same(output, run(fresh, prompt))


def test_other_calls_of_the_executable_end_what_is_known(tiny_model: ost.Model, fresh: ost.LLM) -> None:
    llm = make(tiny_model)
    prompt = list(range(10, 30))
    run(llm, prompt)
    llm.executable.reset_state()
    output = run(llm, prompt)
    assert output.num_cached_tokens == 0
    assert same(output, run(fresh, prompt))


def test_a_generation_whose_caches_were_touched_is_refused(tiny_model: ost.Model) -> None:
    llm = make(tiny_model)
    events = llm.tokens([list(range(10, 30))], PARAMS)
    next(events)
    llm.executable.reset_state()
    with pytest.raises(ost.LifecycleError, match="used the caches in the middle"):
        next(events)
    assert llm.executable.free_rows.held == 0
    assert run(llm, [1, 2, 3]).finish_reason == "length"


def test_replaced_weights_end_what_is_known(tmp_path: Path) -> None:
    config = small_config("llama")
    tensors = random_model(config, 5)
    llm = make(ost.load(write_hf_checkpoint(tmp_path / "old", config, tensors)))
    prompt = list(range(10, 30))
    run(llm, prompt)
    name = "model.layers.0.self_attn.k_proj.weight"
    replaced = {name: tensors[name] * np.float32(1.5)}
    llm.executable.clone().replace_weights(replaced)
    output = run(llm, prompt)
    assert output.num_cached_tokens == 0
    other = make(ost.load(write_hf_checkpoint(tmp_path / "new", config, {**tensors, **replaced})))
    assert same(output, run(other, prompt))


def test_a_clone_has_caches_of_its_own(tiny_model: ost.Model) -> None:
    llm = make(tiny_model)
    prompt = list(range(10, 30))
    run(llm, prompt)
    assert llm.executable.clone().free_rows.held == 0
    assert run(llm, prompt).num_cached_tokens == 19


def test_keys_that_depend_on_the_length_are_not_reused(tmp_path: Path) -> None:
    config = small_config(
        max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 4.0}, num_hidden_layers=2
    )
    model = ost.load(write_hf_checkpoint(tmp_path, config, random_model(config, 5)))
    llm = ost.LLM(model, max_num_seqs=2, context=64, threads=1)
    prompt = list(range(10, 50))
    for _ in range(2):
        assert run(llm, prompt).num_cached_tokens == 0


@pytest.mark.parametrize("mode", ["planned", "eager", "reference"])
def test_warming_up_forgets_nothing_and_stops_no_iterator(tiny_model: ost.Model, mode: str) -> None:
    llm = make(tiny_model, mode=mode)
    expected = run(llm, [5, 6, 7, 8])
    iterator = llm.tokens([[5, 6, 7, 8]], PARAMS)
    found = [next(iterator).token]
    llm.executable.warm_up()
    assert [*found, *(event.token for event in iterator)] == list(expected.token_ids)
    llm.executable.warm_up()
    again = run(llm, [5, 6, 7, 8])
    assert same(again, expected)
    assert again.num_cached_tokens == 3
