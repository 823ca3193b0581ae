"""One example of which a part is learned: its tokens, and for each whether it is learned. What a chat template makes, and what training reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import DTypeError, InputError
from ostinato.ir.types import Array

__all__ = ["IGNORED", "Example"]

IGNORED = -100
"""The target of a token that is not learned: it has no loss and no gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Token ids, and for each whether it is learned. Raises `DTypeError` and `InputError` for what cannot be learned from."""

    ids: Array
    learned: Array

    def __post_init__(self) -> None:
        try:
            ids, learned = np.asarray(self.ids), np.asarray(self.learned)
        except (TypeError, ValueError) as error:
            raise DTypeError(
                f"ids or mask are no array: {error}", hint="give one number and one True or False a token"
            ) from None
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DTypeError(f"ids are {ids.dtype}{list(ids.shape)}, expected integers of one dimension")
        if learned.dtype != np.bool_ or learned.shape != ids.shape:
            raise DTypeError(
                f"the mask is {learned.dtype}{list(learned.shape)}, expected bool{list(ids.shape)}",
                hint="one True or False for each token: True where the token is learned",
            )
        if not learned[1:].any():
            raise InputError(
                f"an example of {ids.size} tokens has none that is learned and has a token before it",
                hint="mark the tokens of the answer True",
            )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "learned", learned)

    def shifted(self) -> tuple[Array, Array]:
        """Inputs and targets, int32, one fewer than tokens."""
        target = np.where(self.learned[1:], self.ids[1:], IGNORED)
        return self.ids[:-1].astype(np.int32), target.astype(np.int32)
