"""Logits that are not finite: an error of the request that has them or a finite choice, never token 0, whatever the request asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.choose import choose_token
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.types import Array, Dim, DType, TensorType
from ostinato.runtime.executable import Executable
from ostinato.runtime.sampling_inputs import sampling_inputs
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.runtime.test_plain_graphs import load

ROWS, VOCABULARY = 4, 33
POISONED = 7
"""The token of the model below whose embedding is NaN."""


def chain(mode: str) -> Executable:
    """The end of a step alone: logits to tokens."""
    builder, rows = GraphBuilder("choose"), Dim("R", 1, ROWS)
    logits = builder.input("logits", TensorType((rows, VOCABULARY), DType.F32, ("R", "V")))
    builder.extent("R", builder.input("row_count", TensorType((1,), DType.I32)))
    return load({"choose": builder.finish([choose_token(builder, logits, rows, 16)]).bind({"R": ROWS})}, mode)


def settings(executable: Executable) -> dict[str, dict[str, Array]]:
    """Neutral inputs, and those of requests that use everything."""
    neutral = sampling_inputs(executable.entries["choose"], ())
    used = {name: array.copy() for name, array in neutral.items()}
    used["temperature"][:] = 0.8
    used["top_k"][:], used["top_p"][:], used["min_p"][:] = 20, 0.9, 0.01
    used["repetition_penalty"][:], used["presence_penalty"][:], used["frequency_penalty"][:] = 1.5, 0.5, 0.3
    used["history"][:], used["prompt_length"][:], used["history_length"][:] = np.arange(16), 4, 16
    used["biased_tokens"][:, :2], used["bias"][:, :2], used["bias_pairs"][:] = (1, VOCABULARY - 1), (2.0, -np.inf), 2
    return {"greedy": neutral, "everything": used}


def choose(executable: Executable, logits: Array, inputs: Mapping[str, Array]) -> Array:
    counted = {"logits": logits, "row_count": np.array([ROWS], np.int32)}
    return executable.run("choose", {**counted, **inputs}, ("token",))["token"]


@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
@pytest.mark.parametrize("place", [0, VOCABULARY // 2, VOCABULARY - 1], ids=["first", "middle", "last"])
def test_a_value_that_is_not_finite_never_chooses_a_token_silently(
    mode: str, place: int, rng: np.random.Generator
) -> None:
    executable = chain(mode)
    for name, inputs in settings(executable).items():
        logits = rng.standard_normal((ROWS, VOCABULARY)).astype(np.float32)
        logits[0, place], logits[1, place], logits[2, place] = np.nan, np.inf, -np.inf
        tokens = choose(executable, logits, inputs)
        assert tokens[0] == -1, f"NaN, {name}"
        # what a request forbids is forbidden at any logit: inf - inf is NaN, and no choice either
        assert tokens[1] == -1, f"inf, {name}"
        assert tokens[2] >= 0, f"-inf, {name}"
        assert tokens[2] != place, f"-inf, {name}"
        assert tokens[3] >= 0


@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_a_row_without_any_choice_is_no_token_either(mode: str) -> None:
    executable = chain(mode)
    for fill in (np.nan, np.inf, -np.inf):
        for inputs in settings(executable).values():
            tokens = choose(executable, np.full((ROWS, VOCABULARY), fill, np.float32), inputs)
            assert tokens.tolist() == [-1] * ROWS


@pytest.fixture
def llm(tmp_path: Path) -> ost.LLM:
    """A model of which one token has an embedding of NaN."""
    config = small_config("llama")
    tensors = random_model(config, 5)
    tensors["model.embed_tokens.weight"][POISONED] = np.nan
    return ost.LLM(write_hf_checkpoint(tmp_path, config, tensors), max_num_seqs=2, context=64, threads=1)


GREEDY = ost.SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logit_bias={POISONED: -100})


def test_the_request_is_named(llm: ost.LLM) -> None:
    for params in (GREEDY, ost.SamplingParams(max_tokens=3, top_p=0.5, repetition_penalty=1.2)):
        with pytest.raises(ost.BackendError, match=r"prompt 1: the logits after 0 tokens are not finite") as caught:
            llm.generate([[1, 2], [3, POISONED], [4]], params)
        assert "ostinato compare" in (caught.value.hint or "")


def test_what_a_failed_request_left_in_the_cache_never_matters(llm: ost.LLM) -> None:
    prompt = list(range(10, 30))
    (expected,) = llm.generate([prompt], GREEDY)
    for _ in range(3):
        with pytest.raises(ost.BackendError):
            llm.generate([[POISONED] * 40, [POISONED] * 40], GREEDY)
        assert llm.generate([prompt], GREEDY)[0].token_ids == expected.token_ids


def test_requests_beside_it_go_on(llm: ost.LLM) -> None:
    (expected,) = llm.generate([[1, 2]], GREEDY)

    async def both() -> tuple[ost.RequestOutput, BaseException | ost.RequestOutput]:
        good, bad = await asyncio.gather(
            llm.agenerate([1, 2], GREEDY), llm.agenerate([3, POISONED], GREEDY), return_exceptions=True
        )
        assert isinstance(good, ost.RequestOutput)
        return good, bad

    good, bad = asyncio.run(both())
    assert good.token_ids == expected.token_ids
    assert isinstance(bad, ost.BackendError)
    assert llm.executable.free_rows.held == 0
