"""Replays of a decode step: the bits of steps that the host packs, in every mode, and the same generations however many are on their way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime import generation
from ostinato.runtime.entry_runners import AHEAD
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.replays import QueuedReplays, Replays
from tests.frontend.small_families import small_model
from tests.runtime.test_advance import MODES, PARAMS, decode_of, executable, packed, requests_of

CONTEXT = 64
GREEDY = ost.SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)


def llm_of(model: ost.Model, **options: Any) -> ost.LLM:
    return ost.LLM(model, **{"max_num_seqs": 3, "context": CONTEXT, "threads": 1, **options})


@pytest.fixture(scope="module")
def llm(tiny_model: ost.Model) -> ost.LLM:
    return llm_of(tiny_model)


@pytest.fixture
def counts(llm: ost.LLM, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a decode step of `llm` was packed, and how often replayed."""
    found = {"packed": 0, "replayed": 0}
    held, submit = llm.executable.run_held, QueuedReplays.submit

    def run_held(entry: str, *rest: Any) -> Any:
        found["packed"] += entry.startswith("decode")
        return held(entry, *rest)

    def counted(replays: QueuedReplays) -> None:
        found["replayed"] += 1
        submit(replays)

    monkeypatch.setattr(llm.executable, "run_held", run_held)
    monkeypatch.setattr(QueuedReplays, "submit", counted)
    return found


def with_depth(found: TextExecutable, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """As on a device that works by itself: up to `depth` replays before the first is taken."""

    def take_replays(entry: str, outputs: Sequence[str]) -> Replays:
        return found.runner(entry).replays(outputs, depth)

    monkeypatch.setattr(found.runners, "take_replays", take_replays)


# the executable


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_every_mode_replays_what_the_host_would_pack(family: str, tmp_path: Path, seed: int) -> None:
    """Sampling, penalties and biases; a rotary embedding that depends on the length grows long on the way."""
    model = small_model(family, tmp_path, seed, num_hidden_layers=1)
    found: dict[str, list[list[int]]] = {}
    for mode in MODES:
        rng = np.random.default_rng(seed)
        ready = executable(model, mode)
        name, rows = decode_of(ready), [3, 0, 2]
        requests = requests_of(ready, rng, PARAMS[1:])
        expected: list[list[int]] = []
        first = packed(ready, requests, rows)
        for _ in range(9):
            tokens = ready.run(name, packed(ready, requests, rows), ("token",))["token"]
            expected.append(tokens[:3].tolist())
            for request, token in zip(requests, tokens, strict=False):
                request.tokens.append(int(token))
        ready.reset_state()
        begin = ready.run(name, first, ("token",))["token"]
        replayed = np.concatenate([ready.replay(name, 3), ready.replay(name, 0), ready.replay(name, 5)])
        assert replayed.dtype == np.int32
        assert [begin[:3].tolist(), *replayed[:, :3].tolist()] == expected
        found[mode] = expected
    assert all(tokens == found["planned"] for tokens in found.values())


def test_logits_are_replayed_too(tiny_model: ost.Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model)
    requests = requests_of(ready, rng, PARAMS[:2])
    inputs = packed(ready, requests, [0, 1])
    first = ready.run(decode_of(ready), inputs)
    logits = ready.replay(decode_of(ready), 2, "logits")
    assert logits.shape == (2, *first["logits"].shape)
    assert not np.array_equal(logits[0], first["logits"])


def test_replays_that_make_no_sense_are_refused(tiny_model: ost.Model, tiny: ost.TextExecutable, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model)
    decode = decode_of(ready)
    (prefill,) = (name for name in ready.entries if name != decode)
    inputs = packed(ready, requests_of(ready, rng, PARAMS[:1]), [0])
    with pytest.raises(ost.LifecycleError, match=r"(?s)not what ran last.*run\(\) it once"):
        ready.replay(decode, 1)
    ready.run(decode, inputs)
    wrong: tuple[tuple[tuple[Any, ...], type[ost.OstinatoError]], ...] = (
        (("nothing", 1), ost.ConfigError),
        ((decode, -1), ost.ConfigError),
        ((decode, 1.5), ost.ConfigError),
        ((decode, 1, "nothing"), ost.InputError),
        ((decode, 1 << 45), ost.CapacityError),
        ((decode, 1 << 70), ost.CapacityError),
        ((prefill, 1), ost.ConfigError),
    )
    for arguments, error in wrong:
        with pytest.raises(error):
            ready.replay(*arguments)
    with pytest.raises(ost.ConfigError, match="does not make the inputs of its next step"):
        tiny.replay(next(iter(tiny.entries)), 1)
    ready.replay(decode, 1)
    meanwhile: tuple[Callable[[], object], ...] = (
        lambda: ready.run(prefill, {n: np.zeros_like(a) for n, a in ready.runner(prefill).inputs.items()}),
        ready.warm_up,
        lambda: ready.bind(entry=prefill).run(),
    )
    for call in meanwhile:
        call()
        with pytest.raises(ost.LifecycleError, match="not what ran last"):
            ready.replay(decode, 1)
        ready.run(decode, inputs)
    with ready.generating(), pytest.raises(ost.LifecycleError, match="running another call"):
        ready.replay(decode, 1)
    assert len(ready.replay(decode, 1)) == 1


def test_replays_past_the_end_of_the_context_repeat_the_last_token(tiny_model: ost.Model, seed: int) -> None:
    """And write nowhere else: another row goes on as it does without them."""
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model)
    requests = requests_of(ready, rng, PARAMS[:2])
    inputs = packed(ready, requests, [1, 2])
    inputs["position"][0] = inputs["length"][0] = inputs["history_length"][0] = 20
    inputs["length"][0] = 21
    ready.run(decode_of(ready), inputs)
    tokens = ready.replay(decode_of(ready), 12)[:, 0].tolist()
    assert len(set(tokens[2:])) == 1
    positions = ready.runner(decode_of(ready)).inputs["position"]
    assert positions[:2].tolist() == [23, inputs["position"][1] + 13]


def test_a_run_that_fails_ends_what_can_be_replayed(
    tiny_model: ost.Model, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model)
    ready.run(decode_of(ready), packed(ready, requests_of(ready, rng, PARAMS[:1]), [0]))

    def interrupted(replays: QueuedReplays) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(QueuedReplays, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ready.replay(decode_of(ready), 4)
    with pytest.raises(ost.LifecycleError, match="not what ran last"):
        ready.replay(decode_of(ready), 1)


# generation


def test_a_generation_packs_its_first_decode_step_alone(llm: ost.LLM, counts: dict[str, int]) -> None:
    """The first token is the prefill's."""
    llm.generate([[5, 6, 7]], GREEDY)
    assert counts == {"packed": 1, "replayed": 18}
    llm.generate([[5, 6], [7], [8, 9]], GREEDY)
    assert counts == {"packed": 2, "replayed": 36}


def test_rows_that_come_and_go_are_packed_anew(llm: ost.LLM, counts: dict[str, int]) -> None:
    lengths = (4, 9, 12)
    params = [dataclasses.replace(GREEDY, max_tokens=length) for length in lengths]
    llm.generate([[5, 6], [7], [8, 9]], params)
    assert counts == {"packed": 3, "replayed": 11 - 3}


def test_the_step_that_may_end_a_text_is_packed(llm: ost.LLM, counts: dict[str, int], tiny_model: ost.Model) -> None:
    """What may not be chosen before `min_tokens` is a parameter of the host."""
    free = llm.generate([[5, 6, 7]], GREEDY)[0].token_ids
    stop = free[9]
    params = dataclasses.replace(GREEDY, stop_token_ids=(stop,), min_tokens=6)
    counts.update(packed=0, replayed=0)
    found = llm.generate([[5, 6, 7]], params)[0].token_ids
    assert counts["packed"] == 2
    assert counts["replayed"] == len(found) - 3
    without = llm_of(tiny_model, mode="eager").generate([[5, 6, 7]], params)[0].token_ids
    assert found == without


def test_iterators_that_take_turns_pack_every_step(llm: ost.LLM, counts: dict[str, int]) -> None:
    """And give what they give alone."""
    expected = [llm.generate([prompt], GREEDY)[0].token_ids for prompt in ([5, 6], [7, 8, 9])]
    counts.update(packed=0, replayed=0)
    streams = [llm.tokens([prompt], GREEDY) for prompt in ([5, 6], [7, 8, 9])]
    found = [[event.token for event in events] for events in zip(*streams, strict=True)]
    assert [list(tokens) for tokens in zip(*found, strict=True)] == [list(tokens) for tokens in expected]
    assert counts["replayed"] <= 1  # the last step of the second, when the first has ended


def mixed(rng: np.random.Generator, stops: Sequence[int]) -> list[tuple[list[int], ost.SamplingParams]]:
    """Requests that differ in all that a row can have."""
    found = []
    for _ in range(7):
        options: dict[str, Any] = {"max_tokens": int(rng.integers(1, 24)), "ignore_eos": bool(rng.random() < 0.7)}
        if rng.random() < 0.6:
            options |= {"temperature": float(rng.uniform(0.5, 1.5)), "seed": int(rng.integers(1000))}
        else:
            options["temperature"] = 0.0
        if rng.random() < 0.4:
            options |= {"repetition_penalty": 1.2, "presence_penalty": 0.3}
        if rng.random() < 0.4:
            options["stop_token_ids"] = tuple(int(token) for token in rng.choice(stops, 3))
        if rng.random() < 0.4:
            options["min_tokens"] = int(rng.integers(0, options["max_tokens"] + 1))
        if rng.random() < 0.3:
            options["logprobs"] = 2
        if rng.random() < 0.3:
            options["logit_bias"] = {int(rng.integers(90)): 3.0}
        prompt = rng.integers(0, 90, rng.integers(1, 30)).tolist()
        found.append((prompt, ost.SamplingParams(**options)))
    return found


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_generations_do_not_depend_on_how_many_replays_are_ahead(
    tiny_model: ost.Model, depth: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, log probabilities, reasons, and what is found in the cache later: requests that wait for rows, twice over, so that prefixes are reused."""
    rng = np.random.default_rng(seed)
    work = mixed(rng, range(90))
    ahead, plain = llm_of(tiny_model), llm_of(tiny_model)
    with_depth(ahead.executable, monkeypatch, depth)
    for turn in range(2):
        prompts = [prompt if turn == 0 else [*prompt, 3, 4] for prompt, _ in work]
        params = [options for _, options in work]
        with monkeypatch.context() as patch:
            patch.setattr(generation, "_left", lambda requests: 0)  # every step is packed
            expected = plain.generate(prompts, params)
        found = ahead.generate(prompts, params)
        assert found == expected, f"turn {turn}"


@pytest.mark.parametrize("depth", [2, 8])
def test_a_stream_that_is_dropped_in_the_middle_leaves_what_it_accepted(
    tiny_model: ost.Model, depth: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    llm = llm_of(tiny_model)
    with_depth(llm.executable, monkeypatch, depth)
    params = dataclasses.replace(GREEDY, temperature=1.0, seed=4)
    for taken in rng.integers(1, 19, 4).tolist():
        prompt = rng.integers(0, 90, 10).tolist()
        (expected,) = llm_of(tiny_model).generate([prompt], params)
        stream = llm.tokens([prompt], params)
        tokens = [event.token for event in _some(stream, taken)]
        stream.close()
        assert tokens == list(expected.token_ids[:taken])
        assert llm.executable.free_rows.held == 0
        (again,) = llm.generate([[*prompt, *expected.token_ids]], params)
        assert again.num_cached_tokens == len(prompt) + taken - 1
        assert again.token_ids == llm_of(tiny_model).generate([[*prompt, *expected.token_ids]], params)[0].token_ids


def _some(stream: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        yield next(stream)


@pytest.mark.parametrize("depth", [1, 8])
def test_rows_whose_caches_were_touched_are_refused_with_replays_ahead(
    tiny_model: ost.Model, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_of(tiny_model)
    with_depth(llm.executable, monkeypatch, depth)
    for touch in (
        llm.executable.reset_state,
        lambda: llm.executable.replace_weights({}),
        lambda: llm.executable.run("decode[R=3]", _zeros(llm.executable, "decode[R=3]")),
    ):
        stream = llm.tokens([[5, 6, 7]], GREEDY)
        for _ in range(9):
            next(stream)
        touch()
        with pytest.raises(ost.LifecycleError, match="used the caches in the middle of this generation"):
            next(stream)
        assert llm.executable.free_rows.held == 0


def _zeros(found: TextExecutable, entry: str) -> dict[str, Any]:
    return {name: np.zeros_like(array) for name, array in found.runner(entry).inputs.items()}


def test_replays_ahead_grow_from_one(llm: ost.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tokens of a stream wait for none but their own step; replays that no row has a token left for are not submitted."""
    most = 8
    with_depth(llm.executable, monkeypatch, most)
    seen: list[int] = []
    take = QueuedReplays.take

    def counted(replays: QueuedReplays) -> object:
        seen.append(replays.pending)
        return take(replays)

    monkeypatch.setattr(QueuedReplays, "take", counted)
    llm.generate([[5, 6, 7]], dataclasses.replace(GREEDY, max_tokens=32))
    assert seen[:7] == [1, 2, 2, 4, 4, 4, 4]
    assert max(seen) == most
    assert seen[-most:] == list(range(most, 0, -1))
    assert len(seen) == 30


def test_a_ring_is_used_again_by_the_next_generation(tiny_model: ost.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_of(tiny_model)
    made: list[int] = []
    init = QueuedReplays.__init__

    def counted(self: QueuedReplays, *rest: Any) -> None:
        made.append(rest[-1])
        init(self, *rest)

    monkeypatch.setattr(QueuedReplays, "__init__", counted)
    for _ in range(3):
        llm.generate([[5, 6, 7]], GREEDY)
    assert made == [1]
    assert AHEAD > 1


# bound buffers


def test_a_bound_entry_goes_on_in_the_callers_memory(tiny_model: ost.Model, seed: int) -> None:
    """Inputs that it carries are updated there; those that are not bound are in its views."""
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model)
    entry = decode_of(ready)
    inputs = packed(ready, requests_of(ready, rng, PARAMS[:2]), [0, 1])
    ready.run(entry, inputs)
    expected = ready.replay(entry, 5)
    names = ("input_ids", "position", "block_table", "history")
    mine = {name: inputs[name].copy() for name in names}
    ready.reset_state()
    bound = ready.bind(entry=entry, inputs=mine)
    for name, array in bound.inputs.items():
        array[...] = inputs[name]
    bound.run()
    for tokens in expected:
        bound.run()
        assert np.array_equal(bound.outputs["token"], tokens)
    assert mine["position"][:2].tolist() == (inputs["position"][:2] + 6).tolist()
    assert bound.inputs["length"][:2].tolist() == (inputs["length"][:2] + 6).tolist()
    frozen = inputs["position"].copy()
    frozen.flags.writeable = False
    with pytest.raises(ost.LayoutError, match=r"position.*a run writes here"):
        ready.bind(entry=entry, inputs={"position": frozen})
    table = inputs["block_table"].copy()
    table.flags.writeable = False
    ready.bind(entry=entry, inputs={"block_table": table})
