"""Examples of which a part is learned: masks, padding and packing; conversations through a chat template; masks that leave nothing to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.conversation import chat_examples
from ostinato.frontend.fresh import new_model
from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, InputError
from ostinato.ir.example import IGNORED, Example
from ostinato.runtime.training.sft import ExampleDataset

CHATML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if not loop.last and message.role == 'assistant' %}(left out){% else %}{{ message.content }}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye bye."},
]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def example(length: int, learned: int) -> Example:
    """Tokens 1, 2, 3, ... of which the last `learned` are learned."""
    return Example(np.arange(1, length + 1), np.arange(length) >= length - learned)


def dataset(examples: list[Example], **changes: Any) -> ExampleDataset:
    return ExampleDataset(examples, **{"batch": 1, "sequence": 6, "vocab_size": 50, "shuffle": False, **changes})


def test_targets_of_the_prompt_and_of_the_padding_are_ignored() -> None:
    (ids, target) = next(dataset([example(5, 2)], pad=9))
    assert ids.tolist() == [[1, 2, 3, 4, 9, 9]]
    assert target.tolist() == [[IGNORED, IGNORED, 4, 5, IGNORED, IGNORED]]
    assert ids.dtype == target.dtype == np.int32


def test_packed_examples_share_rows_and_their_seam_is_not_learned() -> None:
    data = dataset([example(5, 4), example(6, 2), example(3, 3)], pack=True)
    assert (data.rows, data.examples, data.learned) == (2, 3, 8)
    first, second = next(data), next(data)
    assert first.input_ids.tolist() == [[1, 2, 3, 4, 1, 2]]
    assert first.target.tolist() == [[2, 3, 4, 5, 2, 3]]
    assert second.input_ids.tolist() == [[1, 2, 3, 4, 5, 0]]
    assert second.target.tolist() == [[IGNORED, IGNORED, IGNORED, 5, 6, IGNORED]]


def test_order_and_cursor_are_those_of_every_dataset() -> None:
    examples = [example(n % 5 + 2, 1) for n in range(11)]
    data = dataset(examples, batch=2, shuffle=True, seed=4)
    whole = [next(data).input_ids.tolist() for _ in range(12)]
    again = dataset(examples, batch=2, shuffle=True, seed=4)
    again.load_state({"epoch": 1, "batch": 2, "identity": data.identity})
    assert next(again).input_ids.tolist() == whole[7]
    assert dataset(examples[:-1], batch=2).identity != dataset(examples, batch=2).identity
    masks = [*examples[:-1], Example(examples[-1].ids, np.ones(examples[-1].ids.size, dtype=bool))]
    assert examples[-1].ids.size == 2
    assert dataset(masks, batch=2).identity == dataset(examples, batch=2).identity  # the first token is never a target


@pytest.mark.parametrize(
    ("ids", "learned", "error", "told"),
    [
        (np.arange(4), np.zeros(4, dtype=bool), InputError, "none that is learned"),
        (np.arange(4), np.array([True, False, False, False]), InputError, "none that is learned"),
        (np.arange(1), np.ones(1, dtype=bool), InputError, "none that is learned"),
        (np.arange(4), np.ones(3, dtype=bool), DTypeError, r"bool\[3\], expected bool\[4\]"),
        (np.arange(4), np.ones(4, dtype=np.int32), DTypeError, "int32"),
        (np.arange(4.0), np.ones(4, dtype=bool), DTypeError, "ids are float64"),
        (np.zeros((2, 2), dtype=int), np.ones((2, 2), dtype=bool), DTypeError, "one dimension"),
    ],
)
def test_masks_that_teach_nothing_are_refused(ids: Any, learned: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Example(ids, learned)


def test_examples_that_do_not_fit_are_refused_or_cut_when_asked_for() -> None:
    with pytest.raises(InputError, match="example 1: 8 tokens are more than a row of 6"):
        dataset([example(3, 1), example(8, 8)])
    assert next(dataset([example(8, 8)], truncate=True)).target.tolist() == [[2, 3, 4, 5, 6, 7]]
    with pytest.raises(InputError, match="its first 7 tokens have none"):
        dataset([example(8, 1)], truncate=True)
    with pytest.raises(InputError, match="1 examples fill 1 rows of 6 tokens, a batch needs 2"):
        dataset([example(3, 1)], batch=2)
    with pytest.raises(InputError, match="0 examples"):
        dataset([])
    with pytest.raises(BoundsError, match="example 0: token 3 is 4, outside the vocabulary of 4"):
        dataset([example(5, 1)], vocab_size=4)
    with pytest.raises(ConfigError, match="pad is 50"):
        dataset([example(5, 1)], pad=50)


def talking(folder: Path, template: str | None) -> ost.Model:
    new_model(folder, CONFIG)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return ost.load(folder)


def told(model: ost.Model, made: Example, learned: bool) -> str:
    """The text of the tokens that are learned, or of the others."""
    return model.checkpoint.tokenizer().decode(made.ids[made.learned == learned].tolist(), skip_special_tokens=False)


def test_answers_and_the_mark_after_them_are_learned(tmp_path: Path) -> None:
    model = talking(tmp_path / "m", CHATML)
    (made,) = chat_examples(model, [TALK])
    assert told(model, made, True) == "Hello!<|endoftext|>\nBye bye.<|endoftext|>\n"
    assert told(model, made, False) == (
        "<|system|>Be brief.<|endoftext|>\n<|user|>Hi<|endoftext|>\n<|assistant|><|user|>Bye<|endoftext|>\n<|assistant|>"
    )
    (last,) = chat_examples(model, [TALK], learn="last")
    assert told(model, last, True) == "Bye bye.<|endoftext|>\n"
    assert np.array_equal(last.ids, made.ids)
    # what generation is given is what the example has before its first answer
    llm = ost.LLM(model, max_num_seqs=1, context=64, device="cpu")
    prompt = llm.chat_prompt(TALK[:2])
    assert made.ids[: len(prompt)].tolist() == prompt
    assert made.learned.tolist().index(True) == len(prompt)


def test_a_template_that_rewrites_the_past_teaches_the_last_answer_only(tmp_path: Path) -> None:
    model = talking(tmp_path / "m", FORGETFUL)
    with pytest.raises(ConfigError, match=r"conversation 1.*message 2 otherwise"):
        chat_examples(model, [TALK[:3], TALK])
    (made,) = chat_examples(model, [TALK], learn="last")
    assert told(model, made, True) == "Bye bye.;"


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (TALK[:2], "no message is of the role assistant"),
        ([], "no message"),
        ([{"role": "user"}], "message 0"),
        ("hello", "messages are a str"),
        ([{"role": "assistant", "content": ""}, 7], "message 1 is 7"),
    ],
)
def test_conversations_that_teach_nothing_are_refused(talk: Any, said: str, tmp_path: Path) -> None:
    model = talking(tmp_path / "m", CHATML)
    with pytest.raises(ConfigError, match=said) as caught:
        chat_examples(model, [TALK, talk])
    assert caught.value.node == "conversation 1"


def test_a_model_without_a_template_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        chat_examples(talking(tmp_path / "m", None), [TALK])
    with pytest.raises(ConfigError, match="learn is 'some'"):
        chat_examples(talking(tmp_path / "n", CHATML), [TALK], learn="some")  # type: ignore[arg-type]
