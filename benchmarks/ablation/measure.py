"""One workload of the ablation: all variants loaded side by side, held against the planned one, timed in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter, process_time
from typing import Any

from benchmarks.ablation.variants import PLANNED, Variant, variants_of
from benchmarks.steps import LoadedStep, WeightPool, plan_workload
from benchmarks.timing import in_turn, median
from benchmarks.workloads import Shape, Workload
from ostinato.frontend.model import Model
from ostinato.ir.errors import OstinatoError
from ostinato.ir.step import StepKind
from ostinato.runtime.device import Device
from ostinato.runtime.program import Program

__all__ = ["Row", "measure"]


@dataclass(frozen=True, slots=True)
class Row:
    """A variant's figures; None where it did not run, and `note` says why. Numbers of things are those of one run.

    `ms`: a step among many in a row, `waiting_ms`: waited for before the next; medians, and `over_planned` is the median over the rounds of `ms` over the
    planned variant's in the same round. `launches`: kernels and vendor's products, `submissions`: what the host hands to the driver, `nodes` and
    `dependencies`: of all graphs. `copies`: of bytes to outputs and of strided views. `arena_bytes`: the plan's, or where each result has storage of its own
    the most that was there at once. `equal`: outputs and state are bit for bit the planned variant's.
    """

    workload: str
    variant: str
    device: str
    note: str = ""
    ms: float | None = None
    waiting_ms: float | None = None
    over_planned: float | None = None
    steps: int = 0
    launches: int = 0
    submissions: int = 0
    graphs: int = 0
    nodes: int = 0
    dependencies: int = 0
    copies: int = 0
    allocations: int = 0
    arena_bytes: int = 0
    lower_bound: int = 0
    equal: bool | None = None
    capture_ms: float = 0.0
    load_seconds: float = 0.0

    @property
    def fields(self) -> dict[str, Any]:
        return asdict(self)


class _NotRun(Exception):
    """Why a variant is left out."""


@dataclass
class _Loader:
    """Variants that differ only in how they run share a program."""

    workload: Workload
    model: Model | None
    device: Device
    pool: WeightPool
    precision: str
    programs: dict[tuple[Any, ...], Program] = field(default_factory=dict)

    def load(self, variant: Variant) -> LoadedStep:
        """Raises `_NotRun` for a variant that the device cannot run, or that is another one by another name."""
        if variant.mode == "captured" and not self.device.captures:
            raise _NotRun("needs a GPU")
        program = self._program(variant)
        if variant.highest is not None and _same_rows(program, self._program(replace(variant, highest=None))):
            raise _NotRun("the same rows")
        shape = None if self.model is None else Shape.read(self.model.checkpoint.path)
        shared = self.pool.of(program)
        return LoadedStep(
            self.workload, program, self.device, shared, variant.mode, shape=shape, capture=variant.capture
        )

    def _program(self, variant: Variant) -> Program:
        key = (variant.reuse, variant.disable, variant.highest, variant.early)
        if key not in self.programs:
            options = variant.options(self.precision)
            target = self.device.target
            self.programs[key] = plan_workload(self.workload, self.model, target, options, variant.settings)
        return self.programs[key]


def measure(
    workload: Workload,
    model: Model | None,
    device: Device,
    pool: WeightPool,
    precision: str,
    rounds: int,
    say: Callable[[str], None],
) -> list[Row]:
    """The rows of a workload. A variant that fails costs itself alone."""
    loader = _Loader(workload, model, device, pool, precision)
    variants = variants_of(workload, device.captures)
    rows = [Row(str(workload), variant.name, device.name) for variant in variants]
    loaded: dict[int, LoadedStep] = {}
    for index in sorted(range(len(rows)), key=lambda index: variants[index].name != PLANNED):
        # the planned one first: the kernels of a table are compiled side by side, those of eager one by one
        begin = perf_counter()
        try:
            step = loader.load(variants[index])
            rows[index] = _described(rows[index], step)
        except OstinatoError as error:
            rows[index] = replace(rows[index], note=str(error).partition("\n")[0])
        except _NotRun as reason:
            rows[index] = replace(rows[index], note=str(reason))
        else:
            loaded[index] = step
            rows[index] = replace(rows[index], load_seconds=perf_counter() - begin)
        say(f"{workload} {variants[index].name}: {rows[index].note or f'loaded in {perf_counter() - begin:.1f} s'}")
    planned = next((index for index in loaded if variants[index].name == PLANNED), None)
    if planned is None:
        return rows
    digests = {index: step.digest() for index, step in loaded.items()}
    most = 1000 if workload.kind == "c" else 100  # a decode walks on through the cache
    clock = perf_counter if device.captures or device.threads > 1 else process_time
    turns = in_turn([step.timed for step in loaded.values()], rounds, most=most, clock=clock)
    found = dict(zip(loaded, turns, strict=True))
    for index, (times, waiting) in found.items():
        ratios = [mine / theirs for mine, theirs in zip(times, found[planned][0], strict=True)]
        rows[index] = replace(
            rows[index],
            ms=median(times),
            waiting_ms=median(waiting),
            over_planned=median(ratios),
            equal=digests[index] == digests[planned],
        )
    return rows


def _same_rows(program: Program, other: Program) -> bool:
    """Whether both run the same kernels."""
    (mine,), (theirs,) = program.plan.entries.values(), other.plan.entries.values()
    return [step.kernel for step in mine.steps] == [step.kernel for step in theirs.steps]


def _described(row: Row, step: LoadedStep) -> Row:
    """The row with everything that is no time; runs the step once."""
    step.counted.restart()
    step.outputs()
    stats, steps = step.plan.stats, step.plan.steps
    reports = [segment.report for segment in step.graphs]
    eager = step.mode == "eager"
    return replace(
        row,
        steps=len(steps),
        launches=sum(item.kind in (StepKind.LAUNCH, StepKind.GEMM) for item in steps),
        submissions=step.submissions,
        graphs=len(reports),
        nodes=sum(report.graph_nodes for report in reports),
        dependencies=sum(report.dependencies for report in reports),
        copies=stats.copies + stats.strided_copies,
        allocations=step.counted.allocations,
        arena_bytes=step.counted.peak if eager else stats.arena_bytes,
        lower_bound=stats.lower_bound,
        capture_ms=sum(segment.seconds for segment in step.graphs) * 1e3,
    )
