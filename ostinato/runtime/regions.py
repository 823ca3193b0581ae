"""Regions: the memory behind a program, and how region + offset becomes an address.

Weights and constants are filled once and shared by clones; state, arena and io belong to one executable. A binding replaces the planned bytes of one input or
output by the caller's, and the arena may be the caller's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ostinato.ir.errors import PlanError
from ostinato.ir.step import ByteRange, Step
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import Buffer, Device, ResolvedStep

__all__ = ["Regions", "SharedRegions", "allocate_regions"]


@dataclass(frozen=True, slots=True)
class SharedRegions:
    """Weights and constants: read-only after loading, shared by every clone."""

    weights: Buffer
    constants: Buffer


@dataclass(frozen=True, slots=True)
class Regions:
    """Buffers of one executable, and the caller's replacements: (address, bytes) by value name, and the base of the arena."""

    shared: SharedRegions
    state: Buffer
    arena: Buffer
    io: Buffer
    bound: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bound_arena: int | None = None

    def base(self, region: str) -> int:
        """Address of the first byte of a region."""
        match region:
            case "weights":
                return self.shared.weights.address
            case "constants":
                return self.shared.constants.address
            case "state":
                return self.state.address
            case "io":
                return self.io.address
            case "arena":
                return self.arena.address if self.bound_arena is None else self.bound_arena
        raise PlanError(f"unknown region {region!r}")

    def address(self, value: str, place: ByteRange) -> tuple[int, int]:
        """Address and bytes of a value: the caller's memory where it is bound, the region's otherwise."""
        bound = self.bound.get(value) if place.region == "io" else None
        return bound if bound is not None else (self.base(place.region) + place.offset, place.size)

    def resolve(self, step: Step) -> ResolvedStep:
        """The step with addresses."""
        operands = tuple(
            (0, 0) if operand is None else self.address(operand.value, operand.range) for operand in step.operands
        )
        return ResolvedStep(
            step.node, step.kind, step.kernel, operands, step.params, step.lane, step.waits, step.signals
        )

    def bind(self, bound: Mapping[str, tuple[int, int]], arena: int | None) -> Regions:
        """The same regions with the caller's memory in place of some of them."""
        return replace(self, bound=dict(bound), bound_arena=arena)


def allocate_regions(device: Device, plan: ProgramPlan, shared: SharedRegions) -> Regions:
    """Fresh, zeroed state, arena and io for one executable."""
    state, arena, io = (device.allocate(plan.regions.get(name, 0)) for name in ("state", "arena", "io"))
    return Regions(shared, state, arena, io)
