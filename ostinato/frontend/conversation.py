"""Conversations as training examples: the checkpoint's chat template writes them, and the tokens of the answers are what is learned.

Which part of the text is an answer is found with the template alone: it is rendered up to each answer, as for generation, and with the answer; what the
second has beyond the first is learned, the mark that ends the turn included. The pieces are encoded each by itself, as generation does, which encodes the
prompt and then adds tokens. A template that writes an earlier part otherwise once more messages follow (some leave out what was thought) cannot say which
tokens those are: it is refused for such a conversation, and takes it where only the last answer is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ostinato.frontend.chat import ChatTemplateError, listed, render
from ostinato.frontend.model import Model
from ostinato.ir.errors import ConfigError
from ostinato.ir.example import Example

__all__ = ["chat_examples"]

_ANSWERS = ("assistant", "model")
"""Roles whose messages are learned."""


def chat_examples(
    model: Model,
    conversations: Iterable[Sequence[Mapping[str, Any]]],
    *,
    learn: Literal["all", "last"] = "all",
) -> list[Example]:
    """One example a conversation, a list of messages with "role" and "content"; learned are `all` answers of the assistant, or the `last` one.

    Raises `ConfigError` for a checkpoint without a template and for a conversation, named by its number, without an answer, or that the template refuses or
    writes so that the answers cannot be told from the rest.
    """
    if learn not in ("all", "last"):
        raise ConfigError(f"learn is {learn!r}", hint='use "all" or "last"')
    checkpoint = model.checkpoint
    if checkpoint.chat_template is None:
        raise ConfigError(
            "the checkpoint has no chat template",
            node=str(checkpoint.path),
            hint="make examples of token ids and masks",
        )
    examples = []
    for number, conversation in enumerate(listed("conversations", conversations)):
        try:
            examples.append(_example(model, checkpoint.chat_template, listed("messages", conversation), learn))
        except ConfigError as error:
            raise type(error)(error.message, node=f"conversation {number}", hint=error.hint) from error
    return examples


def _example(model: Model, template: str, messages: list[Any], learn: str) -> Example:
    def text(count: int, prompt: bool) -> str:
        special = model.checkpoint.special_tokens
        return render(template, messages[:count], add_generation_prompt=prompt, special_tokens=special)

    whole = text(len(messages), False)  # checks the messages too
    answers = [place for place, message in enumerate(messages) if message["role"] in _ANSWERS]
    if not answers:
        raise ConfigError(f"no message is of the role {_ANSWERS[0]}", hint="only answers are learned")
    written, pieces = 0, []
    for place in answers if learn == "all" else answers[-1:]:
        before, after = text(place, True), text(place + 1, False)
        if not (after.startswith(before) and whole.startswith(after) and written <= len(before) < len(after)):
            raise ChatTemplateError(
                f"the template writes message {place} otherwise once more messages follow: its tokens cannot be told from the rest",
                hint='learn="last", or conversations of one answer',
            )
        pieces += [(whole[written : len(before)], False), (whole[len(before) : len(after)], True)]
        written = len(after)
    pieces.append((whole[written:], False))
    ids: list[int] = []
    learned: list[bool] = []
    for piece, is_answer in pieces:
        found = (
            model.checkpoint.tokenizer().encode(piece, add_special_tokens=False, parse_special=True) if piece else []
        )
        ids += found
        learned += [is_answer] * len(found)
    return Example(np.array(ids, dtype=np.int32), np.array(learned, dtype=bool))
