"""The inputs of a decode step after it ran are those that the host would pack for the next one, in every mode and for every family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.batch import LENGTH_INPUT, Piece, pack
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.request import Request, make_request
from ostinato.runtime.sampling_inputs import sampling_inputs
from tests.frontend.small_families import SMALL_DECODERS, small_model

ROWS, CONTEXT = 4, 24
MODES = ("reference", "eager", "planned", "guarded")
PARAMS: Sequence[dict[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 1.3, "top_p": 0.9, "seed": 3},
    {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1, "seed": 4},
    {"temperature": 1.0, "top_k": 7, "min_p": 0.05, "logit_bias": {5: 2.0, 9: -1.5}, "seed": 5},
)


def executable(model: ost.Model, mode: str = "planned") -> TextExecutable:
    return ost.LLM(model, max_num_seqs=ROWS, context=CONTEXT, threads=1, mode=mode).executable


def decode_of(found: TextExecutable) -> str:
    (name,) = (name for name in found.entries if name.startswith("decode"))
    return name


def requests_of(found: TextExecutable, rng: np.random.Generator, params: Sequence[dict[str, Any]]) -> list[Request]:
    """Prompts of different lengths, some tokens made already."""
    made = []
    for index, options in enumerate(params):
        prompt = rng.integers(0, found.vocab_size, rng.integers(1, 9))
        request = make_request(
            index,
            prompt,
            ost.SamplingParams(max_tokens=12, ignore_eos=True, **options),
            vocab_size=found.vocab_size,
            context=CONTEXT,
            bias_width=found.input_type("bias").static_shape[1],
            end_tokens=frozenset(),
        )
        request.tokens += rng.integers(0, found.vocab_size, rng.integers(1, 5)).tolist()
        made.append(request)
    return made


def packed(found: TextExecutable, requests: Sequence[Request], rows: Sequence[int]) -> dict[str, Array]:
    """What the host packs for the next step of requests in these cache rows."""
    plan = found.entries[decode_of(found)]
    pieces = [
        Piece(row, np.array([request.tokens[-1]], np.int32), len(request.prompt) + len(request.tokens) - 1, True)
        for row, request in zip(rows, requests, strict=True)
    ]
    inputs, wanted = pack(plan, pieces, found.block_table())
    assert wanted == pieces
    return {**inputs, **sampling_inputs(plan, requests)}


def held(found: TextExecutable) -> dict[str, Array]:
    """The inputs as the last run left them."""
    return {name: array.copy() for name, array in found.runner(decode_of(found)).inputs.items()}


def assert_same(left: dict[str, Array], right: dict[str, Array]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize("family", SMALL_DECODERS)
def test_inputs_are_those_of_the_next_step(family: str, tmp_path: Path, seed: int) -> None:
    """Ragged rows in any cache rows, penalties, seeds and biases, rotary tables that depend on a length."""
    rng = np.random.default_rng(seed)
    found = executable(small_model(family, tmp_path, seed, num_hidden_layers=1))
    assert found.has_input(LENGTH_INPUT) == (family == "phi3")
    for count in (1, 3, ROWS):
        params = [PARAMS[index] for index in rng.permutation(ROWS)[:count]]
        requests, rows = requests_of(found, rng, params), rng.permutation(ROWS)[:count].tolist()
        for _ in range(6):
            inputs = packed(found, requests, rows)
            tokens = found.run(decode_of(found), inputs, ("token",))["token"]
            for request, token in zip(requests, tokens, strict=False):
                request.tokens.append(int(token))
            assert_same(packed(found, requests, rows), held(found))


@pytest.mark.parametrize("rotary", ["default", "dynamic", "longrope"])
def test_every_mode_leaves_the_same_inputs(rotary: str, tmp_path: Path, seed: int) -> None:
    scaling: dict[str, Any] = {}
    if rotary == "dynamic":
        scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}
    model = small_model("phi3" if rotary == "longrope" else "llama", tmp_path, seed, num_hidden_layers=1, **scaling)
    found: dict[str, dict[str, Array]] = {}
    for mode in MODES:
        rng = np.random.default_rng(seed)
        ready = executable(model, mode)
        assert ready.has_input(LENGTH_INPUT) == (rotary != "default")
        requests = requests_of(ready, rng, PARAMS[1:])
        inputs = packed(ready, requests, [2, 0, 3])
        ready.run(decode_of(ready), inputs, ("token",))
        found[mode] = held(ready)
        assert not np.array_equal(found[mode]["input_ids"], inputs["input_ids"])
    for mode in MODES[1:]:
        assert_same(found["reference"], found[mode])


@pytest.mark.parametrize("mode", MODES)
def test_a_row_without_a_token_or_at_the_end_of_the_context_stays(tiny_model: ost.Model, mode: str, seed: int) -> None:
    """All of its inputs, whatever the others do; run again it gives the same token."""
    rng = np.random.default_rng(seed)
    ready = executable(tiny_model, mode)
    requests = requests_of(ready, rng, [PARAMS[2]] * 3)
    full = requests[1]
    full.tokens += rng.integers(0, ready.vocab_size, CONTEXT - len(full.prompt) - len(full.tokens)).tolist()
    inputs = packed(ready, requests, [1, 2, 3])
    assert inputs["position"][1] == CONTEXT - 1
    assert inputs["history_length"][1] == CONTEXT
    inputs["bias"][0, 0], inputs["bias_pairs"][0] = np.nan, 1  # logits without a largest one
    first = ready.run(decode_of(ready), inputs, ("token",))["token"]
    after = held(ready)
    assert first[0] == -1
    for name in ("input_ids", "position", "length", "sample_index", "history", "history_length"):
        assert np.array_equal(after[name][[0, 1, 3]], inputs[name][[0, 1, 3]]), name
        assert not np.array_equal(after[name][2], inputs[name][2]), name
    again = ready.run(decode_of(ready), after, ("token",))["token"]
    assert again[:2].tolist() == first[:2].tolist()


def test_a_forward_call_may_take_the_decode_entry(tiny_model: ost.Model) -> None:
    """It holds as many tokens as rows, of any rows: their logits are right, and what it makes of its inputs nobody reads."""
    ready = executable(tiny_model)
    rows = [[5, 6, 7], [9]]
    assert ready.bucket(4, 2).name == decode_of(ready)
    expected = ost.compile(tiny_model, buckets={"B": [2], "T": [4]}, context=CONTEXT, threads=1)(rows)["logits"]
    for _ in range(2):
        np.testing.assert_allclose(ready(rows)["logits"], expected, rtol=1e-5, atol=1e-6)
