"""What the ablation compares: ways to run one step, and what each leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workloads import Workload
from ostinato.ir.target import Level
from ostinato.passes.base import Pass
from ostinato.passes.choice import RowChoice
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.planner.settings import PlanSettings

__all__ = ["PLANNED", "REGIONS", "Variant", "variants_of"]

REGIONS = ("ffn", "attn.q_rotated", "attn.attention")
"""Parts of a layer that can be captured alone: the feed-forward network, what makes rotated queries and stored keys and values (their projection too, where
that is one kernel), the core of attention."""

PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Variant:
    """`mode` as in `LoadedStep`; `capture`: patterns of what is captured, None for all; `disable`: passes left out; `highest`: no rows above that level;
    `early`: kernels may start while the one before them runs."""

    name: str
    mode: str
    capture: tuple[str, ...] | None = None
    reuse: bool = True
    disable: tuple[str, ...] = ()
    highest: Level | None = None
    early: bool = True

    def options(self, precision: str) -> PipelineOptions:
        limits = () if self.highest is None else (("*", self.highest),)
        return PipelineOptions(precision, frozenset(self.disable), RowChoice(limits=limits))

    @property
    def settings(self) -> PlanSettings:
        return PlanSettings(reuse=self.reuse, early=self.early)


def fusions() -> tuple[str, ...]:
    """The passes that join operators."""
    return tuple(item.name for item in pipeline() if _fuses(item))


def _fuses(item: Pass) -> bool:
    return item.name.startswith("fuse_")


def variants_of(workload: Workload, captures: bool) -> list[Variant]:
    """The rows of the table. Where nothing can be captured, fusions and rows are left out of planned steps instead."""
    best = "captured" if captures else "planned"
    rows = [
        Variant("eager", "eager"),
        Variant("eager over the arena", "stepwise"),
        Variant(PLANNED, "planned"),
        Variant("captured: regions", "captured", REGIONS),
        Variant("captured: library's memory", "captured", reuse=False),
        Variant("captured: planned arena", "captured"),
    ]
    if workload.kind == "c":
        return [row for row in rows if row.capture is None]
    rows += [Variant(f"{best}, no {name}", best, disable=(name,)) for name in fusions()]
    rows.append(Variant(f"{best}, no fusion", best, disable=fusions()))
    if captures:  # the host has rows of one level, and no early starts
        rows.append(Variant(f"{best}, no early starts", best, early=False))
        rows.append(Variant(f"{best}, no vendor rows", best, highest=Level.TUNED))
        rows.append(Variant(f"{best}, readable rows", best, highest=Level.READABLE))
    return rows
