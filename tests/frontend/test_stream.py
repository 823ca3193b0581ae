"""Text that continues a prompt: what a decoder drops at the beginning of a text it keeps in the middle of one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.frontend.tokenizer import StreamDecoder, Tokenizer, tokenizer_from_gguf
from ostinato.ir.errors import BoundsError
from tests.frontend.make_tokenizers import gguf_metadata, sentencepiece_metadata, train, train_sentencepiece

SENTENCEPIECE = tokenizer_from_gguf(sentencepiece_metadata(train_sentencepiece(), add_bos_token=False), "test")
BYTE_LEVEL = tokenizer_from_gguf(gguf_metadata(train(), "smollm"), "test")


def streamed(tokenizer: Tokenizer, ids: list[int], after: list[int]) -> str:
    decoder = StreamDecoder(tokenizer, after=after)
    return "".join([*(decoder.push(token) for token in ids), decoder.flush()])


def test_the_space_before_the_first_word_stays_where_the_text_continues_another() -> None:
    ids = SENTENCEPIECE.encode("the quick fox")
    prompt, rest = ids[:-2], ids[-2:]
    assert SENTENCEPIECE.decode(prompt) + streamed(SENTENCEPIECE, rest, prompt) == "the quick fox"
    begins = SENTENCEPIECE.encode("the quick")
    assert streamed(SENTENCEPIECE, begins, []) == "the quick"
    assert streamed(SENTENCEPIECE, begins, ids) == " the quick"
    assert streamed(SENTENCEPIECE, begins, [1]) == "the quick", "a begin token is not part of the text"


@given(text=st.text("aehrt qu日é🙂\n", min_size=2, max_size=24), cut=st.integers(0, 100))
@example(text="a日🙂 aa", cut=9)  # the last ids before the cut begin inside a character, and end with a whole one
@pytest.mark.parametrize("tokenizer", [SENTENCEPIECE, BYTE_LEVEL], ids=["sentencepiece", "byte_level"])
def test_prompt_and_continuation_join_to_the_whole(tokenizer: Tokenizer, text: str, cut: int) -> None:
    ids = tokenizer.encode(text)
    place = cut % (len(ids) + 1)
    before = tokenizer.decode(ids[:place])
    if not before or before.endswith("\N{REPLACEMENT CHARACTER}"):
        return  # the cut is inside a character, which neither side has whole
    assert before + streamed(tokenizer, ids[place:], ids[:place]) == tokenizer.decode(ids)


def test_the_ids_before_are_checked() -> None:
    with pytest.raises(BoundsError):
        StreamDecoder(SENTENCEPIECE, after=[-1])
