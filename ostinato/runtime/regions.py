"""Regions: the memory behind a program, and how region + offset becomes an address.

Weights and constants are filled once and shared by clones; state, arena and io belong to one executable. A binding replaces the planned bytes of one input or
output by the caller's, and the arena may be the caller's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ostinato.ir.errors import AddressChanged, CapacityError, DeviceUnavailable, PlanError
from ostinato.ir.step import REGION_KINDS, ByteRange, Region, Step
from ostinato.ir.types import Array
from ostinato.planner.plan import Binding, ProgramPlan
from ostinato.runtime.capture_memory import PlacedMemory
from ostinato.runtime.device import Buffer, Device, DeviceStream, ResolvedStep, Window
from ostinato.runtime.markers import Markers
from ostinato.runtime.use import SharedUse

__all__ = ["Regions", "SharedRegions", "allocate_regions", "require_device", "require_memory"]

_OWN = ("state", "arena", "io")
"""Regions that every executable has for itself."""


@dataclass(frozen=True, slots=True)
class SharedRegions:
    """Weights and constants, shared by every clone: read-only but for `replace_weights`, which notes in `replaced` the slots it wrote."""

    weights: Buffer
    constants: Buffer
    use: SharedUse = field(default_factory=SharedUse)
    replaced: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Regions:
    """Buffers of one executable on one device, and the caller's replacements: addresses for planned ranges of `io`, and the base of the arena.

    Its work goes in the order of `stream`, marked by `markers`; `window` is the host's on `io`.
    """

    device: str
    shared: SharedRegions
    state: Buffer
    arena: Buffer
    io: Buffer
    stream: DeviceStream | None
    window: Window
    bound: tuple[tuple[ByteRange, int], ...] = ()
    bound_arena: int | None = None
    markers: Markers | None = None

    def base(self, region: Region) -> int:
        """Address of the first byte of a region; raises `PlanError` for one that this device does not hold."""
        match region.kind if region.device == self.device else "":
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
        raise PlanError(f"no memory on {self.device} stands for region {region}")

    def address(self, place: ByteRange) -> tuple[int, int]:
        """Address and size of a range: in the caller's memory where it lies in a bound input or output, in the region's otherwise."""
        for bound, address in self.bound:
            if bound.contains(place):
                return address + place.offset - bound.offset, place.size
        return self.base(place.region) + place.offset, place.size

    @property
    def buffers(self) -> tuple[tuple[Region, Buffer], ...]:
        """The memory of the executable's own, by region."""
        own = {"weights": self.shared.weights, "constants": self.shared.constants, "state": self.state}
        own |= {"arena": self.arena, "io": self.io}
        return tuple((Region(self.device, kind), buffer) for kind, buffer in own.items())

    def check(self) -> None:
        """Raises `AddressChanged` where memory of the executable's own was freed under it."""
        shared = self.shared
        if self.arena.freed or self.io.freed or self.state.freed or shared.weights.freed or shared.constants.freed:
            region, buffer = next((region, buffer) for region, buffer in self.buffers if buffer.freed)
            raise AddressChanged(
                f"the executable's memory [{buffer.address:#x}, {buffer.address + buffer.nbytes:#x}) was freed",
                node=str(region),
                hint="drop the executable instead of freeing its memory, and compile or clone another",
                kind="freed",
                old=buffer.address,
            )

    @property
    def placed(self) -> PlacedMemory:
        """Where all of it lies, for who compares a captured graph with the plan."""
        own = {"weights": self.shared.weights, "constants": self.shared.constants, "state": self.state, "io": self.io}
        found = [(Region(self.device, kind), buffer.address, buffer.nbytes) for kind, buffer in own.items()]
        arena = Region(self.device, "arena")
        return PlacedMemory((*found, (arena, self.base(arena), self.arena.nbytes)), self.bound)

    def view(self, binding: Binding) -> Array:
        """A writable array over the host's bytes of an input or output."""
        return self.window.view(binding.type.dtype.numpy, binding.type.static_shape, binding.range.offset)

    def resolve(self, step: Step) -> ResolvedStep:
        """The step with addresses."""
        operands = tuple((0, 0) if operand is None else self.address(operand.range) for operand in step.operands)
        return ResolvedStep(
            step.node, step.kind, step.kernel, operands, step.params, step.lane, step.waits, step.signals, step.launch
        )

    def bind(self, bound: Sequence[tuple[ByteRange, int]], arena: int | None) -> Regions:
        """The same regions with the caller's memory in place of some of them."""
        return replace(self, bound=tuple(bound), bound_arena=arena)


def allocate_regions(
    device: Device, plan: ProgramPlan, shared: SharedRegions, markers: Markers | None = None
) -> Regions:
    """Fresh, zeroed state, arena and io for one executable, and an order of work of its own. Raises what `require_memory` raises."""
    require_device(plan, device)
    require_memory(plan, device, _OWN)
    state, arena, io = (device.allocate(plan.size_of(Region(device.name, kind))) for kind in _OWN)
    stream = device.open_stream()
    return Regions(device.name, shared, state, arena, io, stream, io.window(stream), markers=markers)


def require_memory(plan: ProgramPlan, device: Device, kinds: Sequence[str] = REGION_KINDS) -> None:
    """Raises `CapacityError` where the device says that it cannot give the regions of these kinds: what is missing, and who lives at the arena's peak."""
    free, sizes = device.free_bytes, {kind: plan.size_of(Region(device.name, kind)) for kind in kinds}
    needed = sum(sizes.values())
    if free is None or needed <= free:
        return
    listed = ", ".join(f"{kind} {nbytes}" for kind, nbytes in sizes.items())
    largest = max(plan.entries.values(), key=lambda entry: entry.stats.arena_bytes)
    raise CapacityError(
        f"{needed - free} bytes are missing: the program needs {needed} ({listed}), {device.name} has {free} free; {largest.peak}",
        hint="free memory, or compile with fewer or shorter sequences, a shorter context or a memory_limit",
    )


def require_device(plan: ProgramPlan, device: Device) -> None:
    """Raises `DeviceUnavailable` for a plan that names any device but this one: a program runs on one device in this version."""
    others = [name for name in plan.devices if name != device.name]
    if others:
        raise DeviceUnavailable(
            f"the plan is for {', '.join(others)}, the device opened is {device.name}",
            hint="lower and plan for a target whose device is the one that is opened",
        )
