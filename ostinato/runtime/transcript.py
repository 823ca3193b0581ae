"""The text of a request while it is made: pieces that may be shown, and the stop strings that end it.

Tokens become text one by one. A stop string may begin in one token and end in another, and a token may bring more text than the stop string, so text that
may still become the beginning of one is held back until it is known. The result does not depend on where tokens are cut: the stop string that is complete
first counts, and of several that are complete at the same character the longest.

    stop "</s>", pieces "a<", "/", "s>b"  ->  "a", "", "" and the stop string
    stop "</s>", pieces "a<", "/b"        ->  "a", "</b"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["StopStrings", "TokenDecoder", "Transcript"]


class TokenDecoder(Protocol):
    """Turns the tokens of one sequence into text."""

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        ...

    def flush(self) -> str:
        """What was held back as incomplete."""
        ...


class StopStrings:
    """Finds stop strings in a text that comes in pieces. `found` is the one that ended the text."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str, *, armed: bool = True) -> str:
        """The text that may be shown now. A stop string whose last character comes while not `armed` is text like any other."""
        text = self._held + piece
        if armed and (match := self._first(text, len(self._held))) is not None:
            start, self.found = match
            self._held = ""
            return text[: start + len(self.found) if self._include else start]
        held = self._undecided(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def release(self) -> str:
        """The text held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, seen: int) -> tuple[int, str] | None:
        """Start and name of the stop string that is complete first, after more than `seen` characters; the longest of those."""
        ends: list[tuple[int, int, str]] = []
        for stop in self._stops:
            start = text.find(stop, max(0, seen + 1 - len(stop)))
            if start >= 0:
                ends.append((start + len(stop), start, stop))
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _undecided(self, text: str) -> int:
        """Characters at the end of the text that a stop string begins with, but is not complete with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stops):
                return size
        return 0


class Transcript:
    """Text of one request. `text` is all that was shown; `stopped` is the stop string that ended it, if one did."""

    def __init__(self, decoder: TokenDecoder, stops: Sequence[str] = (), *, include_stop: bool = False) -> None:
        self._decoder = decoder
        self._stops = StopStrings(stops, include=include_stop)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def stopped(self) -> str | None:
        return self._stops.found

    def push(self, token: int, *, armed: bool = True) -> str:
        """The text that may be shown once this token is known; stop strings count while `armed`."""
        return self._show(self._stops.push(self._decoder.push(token), armed=armed))

    def finish(self, *, armed: bool = True) -> str:
        """The rest of the text, once no further token comes; nothing after a stop string."""
        if self.stopped is not None:
            return ""
        rest = self._stops.push(self._decoder.flush(), armed=armed)
        return self._show(rest + self._stops.release())

    def _show(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
