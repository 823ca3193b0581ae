"""The steps of an entry on a device: resolved to addresses, loaded as a step table, with what goes between host and device in a run."""

from __future__ import annotations

from ostinato.planner.plan import EntryPlan
from ostinato.runtime.device import Device, Table
from ostinato.runtime.exchange import Exchange
from ostinato.runtime.markers import MarkedTable
from ostinato.runtime.regions import Regions

__all__ = ["LoadedSteps"]


class LoadedSteps:
    """A plan over regions, some of whose inputs and outputs may lie in the caller's memory. Raises what `Device.make_table` raises."""

    def __init__(self, plan: EntryPlan, device: Device, regions: Regions) -> None:
        self.plan = plan
        self.resolved = tuple(regions.resolve(step) for step in plan.steps)
        table = device.make_table(self.resolved, regions.stream)
        marked = regions.markers
        self.table: Table = table if marked is None else MarkedTable(table, [step.node for step in plan.steps], marked)
        self.exchange = Exchange(plan, regions, {place for place, _ in regions.bound})
