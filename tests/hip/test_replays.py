"""Decode on a GPU: replays of captured steps without the host, some of them on their way while it reads the tokens of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.types import Array
from ostinato.runtime import generation
from ostinato.runtime.entry_runners import AHEAD
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.replays import QueuedReplays
from tests.frontend.small_families import small_model
from tests.runtime.test_advance import PARAMS, assert_same, decode_of, packed, requests_of

MODES = ("eager", "planned", "guarded", "captured")
PROMPTS = ([5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 7, 8])
GREEDY = ost.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
SAMPLED = ost.SamplingParams(max_tokens=17, temperature=1.0, seed=5, repetition_penalty=1.2, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    """One whose rotary embedding depends on the length, so that every input moves."""
    return small_model("phi3", tmp_path_factory.mktemp("phi3"), 5, num_hidden_layers=1)


def llm_of(model: ost.Model, gpu: HipDevice, mode: str = "captured", **options: Any) -> ost.LLM:
    return ost.LLM(model, device=gpu, mode=mode, **{"max_num_seqs": 4, "context": 24, **options})


def on_device(found: TextExecutable, entry: str) -> dict[str, Array]:
    """The inputs of an entry as they lie in the memory of the device."""
    bindings = found.entries[entry].inputs
    return {
        item.name: found.regions.io.read(item.type.dtype.numpy, item.type.static_shape, item.range.offset)
        for item in bindings
    }


def test_replays_are_the_steps_that_the_host_would_pack(model: ost.Model, gpu: HipDevice, seed: int) -> None:
    """In every mode the same tokens; the inputs on the device are after each what the host would write there."""
    found: list[list[list[int]]] = []
    for mode in MODES:
        rng = np.random.default_rng(seed)
        ready = llm_of(model, gpu, mode).executable
        entry, rows = decode_of(ready), [2, 0, 3]
        requests = requests_of(ready, rng, PARAMS[1:])
        tokens = [ready.run(entry, packed(ready, requests, rows), ("token",))["token"][:3].tolist()]
        for count in (1, 0, 9):
            tokens += ready.replay(entry, count)[:, :3].tolist()
        for made in tokens:
            for request, token in zip(requests, made, strict=True):
                request.tokens.append(token)
        if mode != "eager":  # which keeps its inputs elsewhere
            assert_same(packed(ready, requests, rows), on_device(ready, entry))
        found.append(tokens)
    assert all(tokens == found[0] for tokens in found)
    assert len(found[0]) == 11


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replays were on their way at each one that was taken."""
    found: list[int] = []
    take = QueuedReplays.take

    def counted(replays: QueuedReplays) -> dict[str, Array]:
        found.append(replays.pending)
        return take(replays)

    monkeypatch.setattr(QueuedReplays, "take", counted)
    return found


def texts(outputs: Sequence[ost.RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def test_a_generation_is_the_same_with_replays_ahead(
    model: ost.Model, gpu: HipDevice, work: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end by a stop token, by length, with log probabilities; one that waits for a row."""
    llm = llm_of(model, gpu, max_num_seqs=2, context=64)
    (whole,) = llm.generate([PROMPTS[0]], GREEDY)
    assert max(work) == AHEAD
    assert work[:4] == [1, 2, 2, 4]
    params = [
        dataclasses.replace(GREEDY, stop_token_ids=(whole.token_ids[9],)),
        SAMPLED,
        dataclasses.replace(SAMPLED, logprobs=2, max_tokens=7),
    ]
    work.clear()
    found = llm.generate(PROMPTS, params)
    assert work
    with monkeypatch.context() as patch:
        patch.setattr(generation, "_left", lambda requests: 0)
        work.clear()
        other = llm_of(model, gpu, max_num_seqs=2, context=64).generate(PROMPTS, params)
    assert not work
    assert found == other


def test_a_stream_that_is_dropped_leaves_a_row_that_others_take(
    model: ost.Model, gpu: HipDevice, work: list[int], machine: EmulatedGpu
) -> None:
    """Its replays are still on their way, and write its row no more when the next prompt is in it."""
    llm = llm_of(model, gpu, max_num_seqs=1, context=64)
    expected = texts(llm_of(model, gpu, max_num_seqs=1, context=64).generate([PROMPTS[2]], GREEDY))
    for taken in (1, 4, 9):
        stream = llm.tokens([PROMPTS[0]], GREEDY)
        for _ in range(taken):
            next(stream)
        stream.close()
        assert texts(llm.generate([PROMPTS[2]], GREEDY)) == expected
    assert max(work) > 1


def test_what_changes_under_replays_waits_for_them(model: ost.Model, gpu: HipDevice, work: list[int]) -> None:
    """Weights and state; the generation is refused afterwards, and its executable is as good as new."""
    llm = llm_of(model, gpu, max_num_seqs=1, context=64)
    name = next(slot.parts[0].tensor for slot in llm.executable.program.plan.weights if slot.parts)
    source = llm.executable.program.source
    weights = source.map(name).view(source.dtype(name).numpy).reshape(source.shape(name)).copy()
    expected = texts(llm.generate([PROMPTS[0]], GREEDY))
    changes: tuple[Callable[[], None], ...] = (
        lambda: llm.executable.replace_weights({name: weights}),
        llm.executable.reset_state,
    )
    for touch in changes:
        stream = llm.tokens([PROMPTS[1]], GREEDY)
        work.clear()
        for _ in range(6):
            next(stream)
        assert work[-1] > 1
        touch()
        with pytest.raises(ost.LifecycleError, match="used the caches in the middle of this generation"):
            next(stream)
        assert texts(llm.generate([PROMPTS[0]], GREEDY)) == expected


def test_a_bound_entry_shows_what_it_carries(model: ost.Model, gpu: HipDevice, seed: int) -> None:
    """Inputs that are not bound go to the device anew in each run: as the last one left them."""
    rng = np.random.default_rng(seed)
    ready = llm_of(model, gpu).executable
    entry = decode_of(ready)
    inputs = packed(ready, requests_of(ready, rng, PARAMS[:2]), [0, 1])
    ready.run(entry, inputs)
    expected = ready.replay(entry, 4)
    ready.reset_state()
    bound = ready.bind(entry=entry)
    for name, array in bound.inputs.items():
        array[...] = inputs[name]
    bound.run()
    for tokens in expected:
        bound.run()
        assert np.array_equal(bound.outputs["token"], tokens)


def test_pinned_memory_of_replays_is_used_again(model: ost.Model, gpu: HipDevice, machine: EmulatedGpu) -> None:
    """By the next generation, whatever it asks for."""
    llm = llm_of(model, gpu, max_num_seqs=2)
    params = [dataclasses.replace(GREEDY, max_tokens=5), dataclasses.replace(SAMPLED, max_tokens=7, logprobs=1)]
    expected = texts(llm.generate(PROMPTS[:2], params))
    before = machine.count("hipHostMalloc")
    for _ in range(2):
        assert texts(llm.generate(PROMPTS[:2], params)) == expected
    assert machine.count("hipHostMalloc") == before


def test_a_stream_whose_replays_cannot_be_waited_for_gives_its_row_back(
    model: ost.Model, gpu: HipDevice, work: list[int]
) -> None:
    """Here because the thread captures, where nothing may wait."""
    llm = llm_of(model, gpu, max_num_seqs=1, context=64)
    expected = texts(llm.generate([PROMPTS[2]], GREEDY))
    stream = llm.tokens([PROMPTS[0]], GREEDY)
    for _ in range(6):
        next(stream)
    assert work[-1] > 1
    with pytest.raises(ost.LifecycleError, match="not part of a graph") as caught:
        ost.hip.HipGraphExecutable.capture(ost.hip.Stream(gpu.native, non_blocking=True), stream.close)
    assert texts(llm.generate([PROMPTS[2]], GREEDY)) == expected, caught  # which holds what was in use
