"""How many bytes an executable takes, region by region."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ir.step import Region
from ostinato.planner.plan import ProgramPlan

__all__ = ["MemoryReport", "memory_of"]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of each region as allocated; `lower_bound` is what the largest entry's arena cannot go below. The state region is `state` (caches, or moments and
    the number of the step) and `parameters`.

    `status` is what the loaded step tables of a GPU take beside the plan, for their kernels to report through. What the driver takes for itself is not among
    these.
    """

    weights: int
    arena: int
    lower_bound: int
    state: int
    io: int
    constants: int
    status: int = 0
    parameters: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.arena + self.parameters + self.state + self.io + self.constants + self.status


def memory_of(plan: ProgramPlan, device: str, status: int = 0) -> MemoryReport:
    """What a program takes of a device, `status` included."""

    def size(kind: str) -> int:
        return plan.size_of(Region(device, kind))

    bound = max((entry.stats.lower_bound for entry in plan.entries.values()), default=0)
    parameters = sum(slot.range.size for slot in plan.parameters)
    state = size("state") - parameters
    return MemoryReport(size("weights"), size("arena"), bound, state, size("io"), size("constants"), status, parameters)
