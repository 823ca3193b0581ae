"""The table of texts of a page: each text is written once, and everything else says its number."""

from __future__ import annotations

__all__ = ["Strings"]


class Strings:
    """Numbers texts in the order in which they come. Number 0 is the empty text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def __call__(self, text: str | None) -> int:
        """The number of a text; that of the empty one for None."""
        return self._numbers.setdefault(text or "", len(self._numbers))

    def table(self) -> list[str]:
        """The texts by number."""
        return list(self._numbers)
