"""Each step of a plan by itself: what the checker holds it to before it looks at what memory holds (`check.py` has the list).

A step calls what its row says, where such a row may run, on operands of the right names, sizes and alignment inside of their regions, and its own operands lie
over one another only where operator or row declare it. Nothing here knows of other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import MOVES, ByteRange, Region, Step, StepOperand, device_class, is_device_name
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.ir.views import ViewTable, row_refusal
from ostinato.planner.expected import Use
from ostinato.planner.plan import EntryPlan

__all__ = ["StepCheck", "inside"]


def inside(place: ByteRange, sizes: Mapping[Region, int]) -> bool:
    """Whether bytes lie within their region."""
    return place.region in sizes and min(place.offset, place.size) >= 0 and place.end <= sizes[place.region]


@dataclass(frozen=True, slots=True)
class StepCheck:
    """What is said of one step after another; `sizes` are the bytes of each region, `say` takes the problems. Where a step stands is `at`, for messages."""

    graph: Graph
    views: ViewTable
    entry: EntryPlan
    target: Target
    sizes: Mapping[Region, int]
    say: Callable[[str], None]

    def call(self, at: str, step: Step, opdef: OpDef, row: Impl, site: CallSite) -> None:
        if (reason := row_refusal(row, site, opdef)) is not None:
            self.say(f"{at}: row {row.identity} does not take this node: {reason}")
        if step.kind is not row.kind:
            self.say(f"{at}: is a {step.kind.value} step, row {row.identity} says {row.kind.value}")
        if step.kernel != row.kernel(site):
            self.say(f"{at}: runs kernel {step.kernel}, row {row.identity} says {row.kernel(site)}")
        params = row.params(site)
        if [(type(p), repr(p)) for p in step.params] != [(type(p), repr(p)) for p in params]:
            self.say(f"{at}: has parameters {step.params}, row {row.identity} says {params}")
        launch = row.launch_of(site)
        late = None if launch is None else replace(launch, early=False)
        if step.launch not in (launch, late):
            self.say(f"{at}: is launched as {step.launch}, row {row.identity} says {launch}")
        self.place(at, step, self.target.device)

    def place(self, at: str, step: Step, device: str) -> None:
        """`device`: where the step must run; a launch may also run on another device of the same class, for which its row is good too."""
        fits = step.device == device
        if step.kind not in MOVES:
            fits = is_device_name(step.device) and device_class(step.device) == device_class(device)
        if not fits or step.node_count != 1 or step.lane < 0:
            found = f"{step.device}, lane {step.lane}, {step.node_count} captured nodes"
            self.say(f"{at}: runs on {found}; expected {device}, a lane from 0, one node")
        for operand in step.operands:
            if operand is not None and step.kind not in MOVES and operand.range.region.device != step.device:
                self.say(f"{at}: %{operand.value} at {operand.range} lies on another device than {step.device}")

    def operand(self, at: str, operand: StepOperand, use: Use) -> bool:
        """Name, flags, size, region and alignment; False where the bytes cannot be followed."""
        place, what = operand.range, f"{at} %{use.value} at {operand.range}"
        if operand.value != use.value:
            self.say(f"{at} is %{operand.value}, the row says %{use.value}")
        if (operand.reads, operand.writes) != (use.reads is not None, use.writes):
            expected = f"reads={use.reads is not None} writes={use.writes}"
            self.say(f"{what} has reads={operand.reads} writes={operand.writes}, expected {expected}")
        if place.size != use.size:
            self.say(f"{what} has {place.size} bytes, expected {use.size}")
        if not inside(place, self.sizes):
            size = self.sizes.get(place.region, "no")
            self.say(f"{what} lies outside its region of {size} bytes")
            return False
        unit = self.target.alignment  # of the storage, or (a copy of a part of one) of the bytes themselves
        if place.size and (place.offset - use.anchor) % unit and place.offset % unit:
            self.say(f"{what} is not aligned to {unit} bytes")
        if place.region.kind == "io" and place.size and self.entry.binding_of(place) is None:
            self.say(f"{what} lies in no single input or output")
        return True

    def sharing(self, at: str, pairs: list[tuple[StepOperand, Use]], row: Impl) -> None:
        """Within one step, written bytes are nobody else's but for the pairs that operator or row declare."""
        updated = {use.becomes: operand.range for operand, use in pairs if use.updates}
        for index, (operand, use) in enumerate(pairs):
            if use.updates and operand.range != updated[use.becomes]:
                self.say(f"{at}: %{use.becomes} must be one range, found {operand.range} and {updated[use.becomes]}")
            for other_index, (other, other_use) in enumerate(pairs):
                seen = other_index == index or (other_use.writes and other_index < index)
                empty = not operand.range.size or not other.range.size
                if seen or empty or not use.writes or not operand.range.overlaps(other.range):
                    continue
                same = operand.range == other.range
                if same and use.becomes is not None and use.becomes == other_use.becomes:
                    continue  # operand and result of a must-alias pair, both named by the row
                in_place = (use.name, other_use.name) in row.in_place and not other_use.writes
                if same and in_place and self._same_order(use.value, other_use.value):
                    continue
                verb = "writes" if other_use.writes else "reads"
                pair = f"writes %{use.value} at {operand.range} over %{other_use.value} at {other.range}"
                self.say(f"{at}: {pair}, which it also {verb}; row {row.identity} does not allow that here")

    def _same_order(self, result: str, operand: str) -> bool:
        """Whether element i of both lies at the same byte when they share a storage."""
        tensor, source, view = self.graph.types[result], self.graph.types[operand], self.views[operand]
        if tensor.is_natural and view.contiguous:
            return tensor.elements == source.elements
        return tensor.shape == source.shape and not tensor.is_packed and view.strides == tensor.strides

    def ahead(self, at: str, pairs: list[tuple[StepOperand, Use]], row: Impl) -> None:
        """What the kernel reads before it waits is claimed to be early, which the replay proves, and not written by the step itself."""
        for operand, use in pairs:
            if use.name in row.ahead and operand.range.size and not (operand.early and not use.writes):
                self.say(f"{at}: starts early and reads %{use.value} ahead, which a step of this run writes")
