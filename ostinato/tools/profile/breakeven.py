"""Whether what is done once pays: eager, planned and captured runs of an entry in turn, and the runs from which on each is ahead of the one it is built on.

Runs of all modes alternate in a changing order, so that what drifts on the machine meets all of them alike. The gain is the median of the differences of runs
that stood side by side, and its interval the one that order statistics give for a median, for which no distribution is assumed. Where the interval holds no
gain, the device is what takes the time: no number of runs pays then.

A run is what a caller waits for: inputs copied in, all steps, the end of them; no output is copied back.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeVar

from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.planner.lower import plan_entry
from ostinato.runtime.captured import CapturedSteps, named_ranges
from ostinato.runtime.executable import Executable
from ostinato.runtime.loaded import LoadedSteps
from ostinato.runtime.runners import EagerRunner
from ostinato.runtime.traced import refuse_traced
from ostinato.tools.console import milliseconds
from ostinato.tools.profile.report import BreakevenReport

__all__ = ["NO_GAIN", "breakeven", "median_interval"]

RUNS = 40
NO_GAIN = "device-bound: no gain"
_FEWEST = 8
"""Runs from which an interval can be told."""


_T = TypeVar("_T")


@dataclass(slots=True)
class _Mode:
    """A mode: the seconds of what had to be done before its first run, a run that says how long it took, and the runs so far."""

    name: str
    parts: dict[str, float]
    run: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def once(self) -> float:
        return sum(self.parts.values())


def breakeven(
    executable: Executable,
    entry: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    runs: int = RUNS,
    begin: Callable[[str], None] | None = None,
) -> BreakevenReport:
    """From how many runs on planning pays, and capturing where the device captures: of one entry, or of each where none is named.

    `inputs` are those of the named entry; without them runs are on `Executable.example_inputs`. `begin` hears which entry is measured. Nothing can tell
    afterwards that the executable was measured. Raises `ConfigError` for what is no executable, an unknown entry, inputs without one and fewer than 8 runs,
    `LifecycleError` while it runs or is traced, and what a run raises.
    """
    given: object = executable  # callers are not type-checked
    if not isinstance(given, Executable):
        raise ConfigError(
            f"expected an executable, found {type(given).__name__}", hint="of an LLM it is llm.executable"
        )
    times = integer(runs, "runs", low=_FEWEST)
    if entry is None and inputs is not None:
        raise ConfigError("inputs are given, and no entry", hint="name the entry whose inputs they are")
    refuse_traced(executable.diversion, "a break-even")
    names = list(executable.entries) if entry is None else [executable.entry(entry)]
    measured = []
    for name in names:
        if begin is not None:
            begin(f"measuring {name}")
        measured.append(_measured(executable, name, executable.runners.inputs.settled(name, inputs), times))
    return BreakevenReport(
        model=str(executable.program.graphs[names[0]].name),
        device=executable.device.name,
        runs=times,
        entries=tuple(measured),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Low end, median and high end of the interval in which the median lies in 95 of 100 samples, by order statistics with the normal approximation of the
    binomial distribution (H. A. David, "Order Statistics", 2.5)."""
    ordered = sorted(values)
    count = len(ordered)
    rank = max(math.floor((count - 1.96 * math.sqrt(count)) / 2), 0)
    return ordered[rank], statistics.median(ordered), ordered[count - 1 - rank]


def _measured(executable: Executable, name: str, inputs: Mapping[str, Array], runs: int) -> BreakevenReport.Entry:
    with executable.put_back():
        modes = _modes(executable, name, inputs)
        for mode in modes:
            mode.run()  # what a first run does once is not timed
        for turn in range(runs):
            start = turn % len(modes)
            for mode in (*modes[start:], *modes[:start]):
                mode.seconds.append(mode.run())
    return BreakevenReport.Entry(
        entry=name,
        modes=tuple(
            BreakevenReport.Mode(
                mode=mode.name,
                once_seconds=mode.once,
                parts=mode.parts,
                seconds=statistics.median(mode.seconds),
                least_seconds=min(mode.seconds),
            )
            for mode in modes
        ),
        steps=tuple(_compared(modes, later, earlier) for later in range(1, len(modes)) for earlier in range(later)),
    )


def _modes(executable: Executable, name: str, inputs: Mapping[str, Array]) -> list[_Mode]:
    """The modes of an entry, made and timed part by part, over the memory of the executable: each is built on the one before it."""
    program, device, regions = executable.program, executable.device, replace(executable.regions, markers=None)
    graph, plan = program.graphs[name], program.plan.entries[name]
    gc.collect()  # what others left behind is not timed
    eager, prepared = _timed(lambda: EagerRunner(program, name, device, regions))

    def run_eager() -> None:
        eager.run(())

    _, planned = _timed(lambda: plan_entry(graph, program.target, name=name, dims=plan.dims, options=plan.options))
    loaded, tabled = _timed(lambda: LoadedSteps(plan, device, regions))
    exchange, table = loaded.exchange, loaded.table

    def run_steps(enqueue: Callable[[], None]) -> None:
        exchange.give()
        enqueue()
        table.finish()

    modes = [
        _Mode("eager", {"prepare": prepared}, _given(eager.inputs, inputs, run_eager)),
        _Mode(
            "planned",
            {"plan": planned, "table": tabled},
            _given(exchange.inputs, inputs, lambda: run_steps(table.enqueue)),
        ),
    ]
    if device.captures:
        ranges = named_ranges(plan, executable.capture)
        steps, seconds = _timed(lambda: CapturedSteps(program.plan, loaded, regions, ranges))
        captured = sum(segment.seconds for segment in steps.segments)
        parts = {"capture": captured, "proof": seconds - captured}
        modes.append(_Mode("captured", parts, _given(exchange.inputs, inputs, lambda: run_steps(steps.enqueue))))
    return modes


def _given(places: Mapping[str, Array], inputs: Mapping[str, Array], run: Callable[[], None]) -> Callable[[], float]:
    """A run that finds its inputs in place, and says how long it took."""

    def timed() -> float:
        for key, array in inputs.items():
            places[key][...] = array
        return _timed(run)[1]

    return timed


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    begin = perf_counter()
    made = work()
    return made, perf_counter() - begin


def _before(modes: Sequence[_Mode], number: int) -> float:
    """Seconds before the first run of a mode: a captured graph is made of a planned table."""
    return modes[number].once + (modes[number - 1].once if modes[number].name == "captured" else 0.0)


def _compared(modes: Sequence[_Mode], later: int, earlier: int) -> BreakevenReport.Step:
    """A mode against one before it: what it takes more before its first run, and less in each."""
    fast, slow = modes[later], modes[earlier]
    low, gain, high = median_interval([b - a for a, b in zip(fast.seconds, slow.seconds, strict=True)])
    once = _before(modes, later) - _before(modes, earlier)
    replays = max(math.ceil(once / gain), 1) if low > 0 else None
    if replays is not None:
        before = f"{milliseconds(abs(once))} {'more' if once >= 0 else 'less'} once"
        verdict = f"{fast.name} pays from run {replays} on: {before}, {milliseconds(gain)} less a run than {slow.name}"
    elif high < 0:
        verdict = f"{NO_GAIN}: {fast.name} takes {milliseconds(-gain)} more a run than {slow.name}"
    else:
        verdict = f"{NO_GAIN}: {fast.name} and {slow.name} differ by less than what was measured tells apart"
    return BreakevenReport.Step(
        mode=fast.name,
        against=slow.name,
        once_seconds=once,
        gain_seconds=gain,
        gain_low_seconds=low,
        gain_high_seconds=high,
        replays=replays,
        verdict=verdict,
    )
