"""What a training step gives back: its loss, learning rate and norm of gradients, when they are there.

A device that works by itself leaves them in a slot of a ring in host memory; whoever asks waits for that slot and for nothing else. A step whose loss or norm
of gradients is no finite number has changed nothing (`optimizer_factors` sets `apply` to 0); the policy says whether the host raises or counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ostinato.ir.errors import ConfigError, NonFiniteLoss
from ostinato.ir.ops.optimizer import FACTOR_NAMES
from ostinato.ir.training import FACTORS, LOSS
from ostinato.ir.types import Array

__all__ = ["NAN_POLICIES", "StepResult"]

NAN_POLICIES = ("raise", "skip")
_LEARNING_RATE, _APPLY, _NORM = map(FACTOR_NAMES.index, ("learning_rate", "apply", "norm"))


class StepResult:
    """One step, number `number` from 1. Everything but `number` and `ready` waits for the step; then it is kept.

    `wait`, and every property that waits, raises what went wrong on the device, and with the policy "raise" `NonFiniteLoss` for a step that was not applied.
    """

    __slots__ = ("_await", "_error", "_outputs", "_policy", "number")

    def __init__(self, number: int, policy: str, await_: Callable[[StepResult], None]) -> None:
        """`await_` settles a step."""
        self.number = number
        self._policy = policy
        self._await = await_
        self._outputs: Mapping[str, Array] | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        if self._outputs is None:
            return f"<step {self.number}: {'failed' if self._error else 'on its way'}>"
        return (
            f"<step {self.number}: loss {float(self._outputs[LOSS]):.6g}{'' if self._applies() else ', not applied'}>"
        )

    @property
    def ready(self) -> bool:
        """Whether the host has the values, so that nothing waits any more."""
        return self._outputs is not None or self._error is not None

    def wait(self) -> None:
        """Returns when the step is done and its values are here."""
        self._settled()

    @property
    def loss(self) -> float:
        """The loss of the batch, in float32."""
        return float(self._settled()[LOSS])

    @property
    def applied(self) -> bool:
        """Whether parameters, moments and the count of steps were updated; True for a step without an optimizer whose loss is finite."""
        self._settled()
        return self._applies()

    @property
    def learning_rate(self) -> float:
        """The learning rate that the schedule gave this step. Raises `ConfigError` for a step without an optimizer."""
        return self._factor(_LEARNING_RATE)

    @property
    def gradient_norm(self) -> float:
        """The norm of all gradients together, before they are clipped; 0 where they are not clipped, and nobody computes it. Raises `ConfigError` likewise."""
        return self._factor(_NORM)

    @property
    def outputs(self) -> Mapping[str, Array]:
        """What was read back, by the names of the outputs."""
        return self._settled()

    def settle(self, outputs: Mapping[str, Array] | None, error: BaseException | None = None) -> None:
        """For whoever runs steps: what came of it."""
        self._outputs, self._error = outputs, error
        if error is None and self._policy == "raise" and not self._applies():
            assert outputs is not None
            loss = float(outputs[LOSS])
            found = float(outputs[FACTORS][_NORM]) if FACTORS in outputs else 0.0
            norm = f", the norm of the gradients {found:.6g}" if found else ""  # 0 where nobody computes it
            self._error = NonFiniteLoss(
                f"step {self.number}: the loss is {loss:.6g}{norm}; nothing of the step was applied",
                step=self.number,
                loss=loss,
                hint='look at the batch, lower the learning rate, or train with on_nan="skip"',
            )

    @property
    def failed(self) -> BaseException | None:
        """What `wait` would raise, as far as that is known."""
        return self._error

    @property
    def skipped(self) -> bool:
        """Whether it is known that nothing of the step was applied."""
        return self._outputs is not None and not self._applies()

    def _applies(self) -> bool:
        assert self._outputs is not None
        if FACTORS in self._outputs:
            return bool(self._outputs[FACTORS][_APPLY])
        return bool(np.isfinite(self._outputs[LOSS]))

    def _factor(self, place: int) -> float:
        found = self._settled()
        if FACTORS not in found:
            raise ConfigError("the step has no optimizer", hint="give train_step an optimizer")
        return float(found[FACTORS][place])

    def _settled(self) -> Mapping[str, Array]:
        if not self.ready:
            self._await(self)
        if self._error is not None:
            raise self._error
        assert self._outputs is not None
        return self._outputs
