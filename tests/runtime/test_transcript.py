"""Stop strings and held-back text: the same result however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime.transcript import StopStrings, Transcript


def push_all(pieces: Sequence[str], stops: Sequence[str], include: bool = False) -> tuple[list[str], str | None]:
    finder = StopStrings(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(finder.push(piece))
        if finder.found is not None:
            return shown, finder.found
    return [*shown, finder.release()], None


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["a<", "/", "s>b"], ["</s>"], ["a", "", ""], "</s>"),
        (["a<", "/b"], ["</s>"], ["a", "</b", ""], None),
        (["ab", "ab", "c"], ["abc"], ["", "ab", ""], "abc"),  # the first ab is no beginning of it after all
        (["xSTOPy"], ["STOP"], ["x"], "STOP"),
        (["one\n", "\ntwo"], ["\n\n"], ["one", ""], "\n\n"),
        (["abcd"], ["bcd", "c"], ["ab"], "c"),  # complete first
        (["xabc"], ["c", "abc"], ["x"], "abc"),  # complete at the same character: the longest
        (["aaa"], ["aa"], [""], "aa"),
        (["ends with ST"], ["STOP"], ["ends with ", "ST"], None),
        (["plain"], [], ["plain", ""], None),
        (["é", "\N{GRINNING FACE}", "x"], ["\N{GRINNING FACE}x"], ["é", "", ""], "\N{GRINNING FACE}x"),
    ],
)
def test_a_stop_string_across_pieces(pieces: list[str], stops: list[str], shown: list[str], found: str | None) -> None:
    assert push_all(pieces, stops) == (shown, found)


def one_by_one(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The definition: the shortest beginning of the text that ends with a stop string, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_any_cut_gives_what_the_definition_gives(pieces: list[str], stops: list[str], include: bool) -> None:
    shown, found = push_all(pieces, stops, include)
    assert ("".join(shown), found) == one_by_one("".join(pieces), stops, include)


@given(pieces=st.lists(st.text("ab", max_size=4), max_size=12), stops=st.lists(st.text("ab", min_size=1), max_size=4))
def test_no_more_than_needed_is_held_back(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += finder.push(piece)
        if finder.found is not None:
            return
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_that_ends_too_early_is_text() -> None:
    finder = StopStrings(["END", "N"])
    assert finder.push("aEN", armed=False) == "a"
    assert finder.push("x") == "ENx"  # N ended before
    assert finder.push("E", armed=False) + finder.push("N", armed=False) == ""
    assert finder.push("D") == ""
    assert finder.found == "END"  # its last character counts


class Letters:
    """Token n is letter n; a capital letter only comes out with the next one."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token: int) -> str:
        text, self._held = self._held + chr(token), ""
        if text[-1].isupper():
            text, self._held = text[:-1], text[-1]
        return text

    def flush(self) -> str:
        return self._held


def test_what_the_decoder_holds_back_comes_at_the_end() -> None:
    transcript = Transcript(Letters(), ["xyz"])
    assert [transcript.push(ord(c)) for c in "abXxy"] == ["a", "b", "", "X", ""]
    assert transcript.finish() == "xy"
    assert (transcript.text, transcript.stopped) == ("abXxy", None)


def test_a_stop_string_may_be_complete_in_what_the_decoder_held_back() -> None:
    transcript = Transcript(Letters(), ["aB"])
    assert [transcript.push(ord(c)) for c in "xaB"] == ["x", "", ""]
    assert transcript.finish() == ""
    assert (transcript.text, transcript.stopped) == ("x", "aB")
