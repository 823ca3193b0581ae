"""What a training step is given beside its batch: inputs that stay until they are replaced, and the number of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ostinato.ir.checks import integer
from ostinato.ir.errors import BoundsError, InputError
from ostinato.ir.training import COUNTER, TRAIN
from ostinato.ir.types import Array
from ostinato.runtime.inputs import EntryInputs
from ostinato.runtime.program import Program

__all__ = ["MOST_STEPS", "StepInputs"]

MOST_STEPS = 2**31 - 2
"""Steps are counted in int32, on the device too."""


class StepInputs(EntryInputs):
    """The inputs of the entry `train`; `kept` are those that stay, and the input `counter` is the number of the next step unless it is one of them."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._types = {binding.name: binding.type for binding in program.plan.entries[TRAIN].inputs}
        self._number = 0
        self.kept: dict[str, Any] = {}

    @property
    def number(self) -> int:
        """The number of the last step."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        self._number = integer(number, "number", low=0, high=MOST_STEPS)

    @property
    def next_number(self) -> int:
        """The number of the next step. Raises `BoundsError` where there is none."""
        return integer(self._number + 1, "the number of the step", low=1, high=MOST_STEPS, error=BoundsError)

    def keep(self, name: str, value: Any) -> None:
        """Gives later steps this input. Raises `InputError` for a name that is no input."""
        if name not in self._types:
            raise InputError(f"no input {name!r}", node=TRAIN, hint=f"the step takes {list(self._types)}")
        self.kept[name] = np.array(value)

    def standing(self, name: str) -> Mapping[str, Array]:
        if name != TRAIN:
            return super().standing(name)
        counter = self._types.get(COUNTER)
        number = (
            {} if counter is None else {COUNTER: np.full(counter.static_shape, self._number + 1, counter.dtype.numpy)}
        )
        return {**number, **self.kept}
