"""What an optimizer is told: frozen, checked values, and the numbers of them that may change between steps.

The operators of a step read those numbers from an input of nine float32, `settings`, so that a learning rate changes without a new plan or capture; the rest
(kind, dtype of the moments, form of the schedule, whether gradients are clipped) shapes the graph. The learning rate of step t, from 1, is

    learning_rate * t / warmup_steps                      while t <= warmup_steps
    learning_rate * (1 - (1 - final_ratio) * p)           "linear"
    learning_rate * (final_ratio + (1 - final_ratio) * (1 + cos(pi * p)) / 2)     "cosine"

with p = (t - warmup_steps) / (total_steps - warmup_steps), at most 1; "constant" stays at `learning_rate`. Updates are those of `torch.optim.AdamW`
(Loshchilov, Hutter: "Decoupled weight decay regularization", 2019) and `torch.optim.SGD`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ostinato.ir.checks import boolean, integer, real, shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.ops.optimizer import SCHEDULES
from ostinato.ir.types import Array

__all__ = ["MOST_STEPS", "SGD", "AdamW", "Optimizer", "Schedule"]

Schedule = Literal["constant", "linear", "cosine"]
MOST_STEPS = 1 << 24
"""Steps are counted in float32 on the device: beyond this they would not be told apart."""
_SINGLE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheduled:
    """What every optimizer has. `clip_norm` is the most that the norm of all gradients together may be, 0 for no limit. Steps count from 1."""

    weight_decay: float = 0.0
    clip_norm: float = 0.0
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    final_ratio: float = 0.0

    def _check_schedule(self) -> None:
        """Raises `ConfigError` for what no schedule has. Numbers become plain ones, whatever kind they were given as: checkpoints keep them."""
        self._keep_number("lr")
        self._keep_number("weight_decay")
        self._keep_number("clip_norm")
        if self.clip_norm and np.float32(self.clip_norm) == 0:
            raise ConfigError(f"clip_norm is {self.clip_norm}, which is 0 in float32", hint="0 is for no limit")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"schedule is {shown(self.schedule)}", hint=f"use one of {', '.join(SCHEDULES)}")
        self._keep_number("final_ratio", most=1.0)
        for name in ("warmup_steps", "total_steps"):
            object.__setattr__(self, name, integer(getattr(self, name), name, low=0, high=MOST_STEPS))
        if self.schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise ConfigError(
                f"total_steps is {self.total_steps} after {self.warmup_steps} warmup steps: a {self.schedule} schedule has no steps left",
                hint="give total_steps, more than warmup_steps",
            )

    def _keep_number(self, name: str, *, most: float = _SINGLE) -> None:
        object.__setattr__(self, name, _number(name, getattr(self, name), most=most))

    def _vector(self, lr: float, first: float, second: float, eps: float) -> Array:
        values = (lr, first, second, eps, self.weight_decay, self.clip_norm)
        return np.array([*values, self.warmup_steps, self.total_steps, self.final_ratio], dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(_Scheduled):
    """AdamW with decoupled decay. `moments` is the dtype in which the moments are kept: "f32" or "bf16". Raises `ConfigError` for unusable values.

    `dataclasses.replace(optimizer, lr=...)` gives the one to go on with; see `settings`.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    moments: Literal["f32", "bf16"] = "f32"

    def __post_init__(self) -> None:
        self._check_schedule()
        given: Any = self.betas  # callers are not type-checked
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ConfigError(f"betas is {shown(given)}, expected two numbers", hint="such as (0.9, 0.95)")
        object.__setattr__(self, "betas", tuple(_below_one(f"betas[{i}]", beta) for i, beta in enumerate(given)))
        self._keep_number("eps")
        if np.float32(self.eps) == 0:
            raise ConfigError(f"eps is {self.eps}, expected a positive float32", hint="1e-8 is usual")
        if self.moments not in ("f32", "bf16"):
            raise ConfigError(f"moments is {shown(self.moments)}", hint='use "f32" or "bf16"')

    @property
    def kind(self) -> str:
        return "adamw"

    @property
    def structure(self) -> tuple[str, ...]:
        """What shapes the graph: two optimizers with the same one may replace each other between steps."""
        return (self.kind, self.moments, self.schedule, "clipped" if self.clip_norm else "")

    def settings(self) -> Array:
        """float32 [9]: learning rate, beta1, beta2, eps, weight decay, clip norm (0: off), warm-up steps, total steps, final ratio."""
        return self._vector(self.lr, self.betas[0], self.betas[1], self.eps)

    def described(self) -> dict[str, Any]:
        """All of it as plain JSON values, as checkpoints keep it."""
        return {"kind": self.kind, **dataclasses.asdict(self), "betas": list(self.betas)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(_Scheduled):
    """Stochastic gradient descent; `weight_decay` is added to the gradient. Raises `ConfigError` for unusable values.

    Without `momentum` there is no state; `nesterov` needs momentum.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        self._check_schedule()
        object.__setattr__(self, "momentum", _below_one("momentum", self.momentum))
        if boolean(self.nesterov, "nesterov") and not self.momentum:
            raise ConfigError("nesterov without momentum is plain descent", hint="give momentum, or leave nesterov out")

    @property
    def kind(self) -> str:
        return "sgd"

    @property
    def structure(self) -> tuple[str, ...]:
        """What shapes the graph: two optimizers with the same one may replace each other between steps."""
        parts = ("momentum" if self.momentum else "", "nesterov" if self.nesterov else "")
        return (self.kind, *parts, self.schedule, "clipped" if self.clip_norm else "")

    def settings(self) -> Array:
        """float32 [9]: learning rate, momentum, 0, 0, weight decay, clip norm (0: off), warm-up steps, total steps, final ratio."""
        return self._vector(self.lr, self.momentum, 0.0, 0.0)

    def described(self) -> dict[str, Any]:
        """All of it as plain JSON values, as checkpoints keep it."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


Optimizer = AdamW | SGD


def _number(what: str, value: object, *, most: float = _SINGLE) -> float:
    """A finite number of 0 or more, at most `most`; raises `ConfigError` naming `what` otherwise."""
    number = real(value, what)
    if not (math.isfinite(number) and 0 <= number <= most):
        expected = f"a number in [0, {most:g}]" if most < _SINGLE else "a finite number of 0 or more"
        raise ConfigError(f"{what} is {number}, expected {expected}")
    return number


def _below_one(what: str, value: object) -> float:
    number = _number(what, value)
    if np.float32(number) >= 1:
        raise ConfigError(f"{what} is {number}, expected a number in [0, 1)", hint="what it keeps never fades at 1")
    return number
