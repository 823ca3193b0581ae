"""What `ostinato profile --json` and `ostinato breakeven --json` print. Times are seconds, sizes bytes."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.report import Report

__all__ = ["Bound", "BreakevenReport", "ProfileReport"]

Bound = Literal["memory", "compute", "launch"]
"""What is in the way of a step."""


class ProfileReport(Report):
    """The steps of each entry, what they take and how near they come to the ceilings that were measured in the same run."""

    class Ceiling(Report):
        """Floating-point operations a second of products of an input and a weight of these dtypes."""

        input: str
        weight: str
        flops_per_second: float

    class Step(Report):
        """A step. `limit_seconds` is the least it can take at the ceilings, `share` that over `seconds`, `bound` what is in its way."""

        position: int
        node: str
        layer: str
        op: str
        impl: str
        kernel: str
        step_kind: str
        line: str
        launch: str
        dtypes: tuple[str, ...]
        seconds: float
        best_seconds: float
        bytes_read: int
        bytes_written: int
        flops: int
        bound: Bound
        limit_seconds: float
        share: float

    class Total(Report):
        """Steps of an operator or of a layer together; `bound` is that of most of their seconds."""

        name: str
        steps: int
        seconds: float
        nbytes: int
        flops: int
        bound: Bound
        limit_seconds: float
        share: float

    class Entry(Report):
        """One entry: `whole_seconds` is a run that nothing disturbs, `sum_seconds` what its steps take one by one."""

        entry: str
        steps: tuple[ProfileReport.Step, ...]
        operators: tuple[ProfileReport.Total, ...]
        layers: tuple[ProfileReport.Total, ...]
        whole_seconds: float
        whole_best_seconds: float
        sum_seconds: float
        overhead_seconds: float
        resolution_seconds: float
        method: str
        notes: tuple[str, ...]

    kind: Literal["profile"] = "profile"
    model: str
    device: str
    mode: str
    reason: str
    precision: str
    threads: int
    runs: int
    bandwidth_bytes_per_second: float
    ceilings: tuple[Ceiling, ...]
    shortest_step_seconds: float
    entries: tuple[Entry, ...]
    files: tuple[str, ...]


class BreakevenReport(Report):
    """Whether the work done once pays: what each mode takes a run, and from how many runs on the faster one is ahead."""

    class Mode(Report):
        """A mode. `once_seconds` is what had to be done before its first run (`parts` says of what), `seconds` the median of its runs."""

        mode: str
        once_seconds: float
        parts: dict[str, float]
        seconds: float
        least_seconds: float

    class Step(Report):
        """One mode against another: `once_seconds` is what it takes more before its first run (below 0: less), `gain_seconds` what it takes less in each run,
        which lies within [low, high] in 95 of 100 such measurements. `replays` is the number of runs from which on it pays, None where the measurement tells
        no gain."""

        mode: str
        against: str
        once_seconds: float
        gain_seconds: float
        gain_low_seconds: float
        gain_high_seconds: float
        replays: int | None
        verdict: str

    class Entry(Report):
        """One entry."""

        entry: str
        modes: tuple[BreakevenReport.Mode, ...]
        steps: tuple[BreakevenReport.Step, ...]

        @property
        def verdict(self) -> str:
            """Of the fastest mode against the one before it."""
            return self.steps[-1].verdict

    kind: Literal["breakeven"] = "breakeven"
    model: str
    device: str
    runs: int
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n".join(f"{entry.entry}: {entry.verdict}" for entry in self.entries)
