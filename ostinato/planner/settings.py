"""What a caller may choose about a plan; the printed form is part of the plan's identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.planner.solvers import SOLVERS, Limits

__all__ = ["DEFAULT_SETTINGS", "GUARD_BYTES", "ORDERS", "PlanSettings"]

ORDERS = ("search", "program")
GUARD_BYTES = 256
"""Bytes of guard around each storage where one is asked for: more than any vector, prefetched line or row that a kernel steps beyond by one."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How a graph is planned.

    `order`: "search" for an operator order that needs fewer bytes, "program" for the graph's own. `in_place`: results may take a dying operand's bytes.
    `reuse`: bytes serve one storage after another; without it every storage and workspace has its own, which is for finding faults. `guard`: bytes between
    storages, and before the first and behind the last, that no step owns, which is for finding faults too. `early`: kernels of a GPU may start while the one
    before them still runs, where that is proven to change nothing. `memory_limit`: bytes of arena, guards included, that the plan must fit in (None: as few as
    possible, without computing anything twice). `solver` and `limits`: who places the buffers and what that may cost; a limit on nodes keeps the plan the same
    everywhere.

    Raises `ConfigError` for an unknown order or solver, a negative limit, negative guards and what is of another type.
    """

    order: str = "search"
    in_place: bool = True
    reuse: bool = True
    guard: int = 0
    early: bool = True
    memory_limit: int | None = None
    solver: str = "native"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name, kind in (("in_place", bool), ("reuse", bool), ("early", bool), ("solver", str), ("limits", Limits)):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} is {value!r}", hint=f"give a {kind.__name__}")
        if self.order not in ORDERS:
            raise ConfigError(f"order is {self.order!r}", hint=f"use one of {', '.join(ORDERS)}")
        if self.solver not in SOLVERS:
            raise ConfigError(f"solver is {self.solver!r}", hint=f"use one of {', '.join(SOLVERS)}")
        integer(self.guard, "guard", low=0)
        if self.memory_limit is not None:
            integer(self.memory_limit, "memory_limit", low=0)

    def printed(self) -> Mapping[str, str]:
        """The settings that are not the default, by name."""
        return {
            spec.name: str(getattr(self, spec.name))
            for spec in fields(self)
            if getattr(self, spec.name) != getattr(DEFAULT_SETTINGS, spec.name)
        }


DEFAULT_SETTINGS = PlanSettings()
