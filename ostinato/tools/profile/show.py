"""The tables of `ostinato profile` and `ostinato breakeven`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from ostinato.tools.console import many, milliseconds, table
from ostinato.tools.profile.report import BreakevenReport, ProfileReport

__all__ = ["show_breakeven", "show_profile"]

_COLUMNS = ("", "steps", "time", "of the sum", "GB/s", "GFLOP/s", "of the ceiling", "bound by")
_ABOVE = "above 100 % of the ceiling: bytes came from a cache, rows that are not valid were skipped, or the machine was busier when ceilings were measured"


def show_profile(report: ProfileReport, console: Console, *, by: str, top: int) -> None:
    """The report for people: of each entry the totals by "operator" or by "layer", or its slowest "step"s, at most `top` of them."""
    for entry in report.entries:
        rows = _rows(entry, by)
        shown = [_cells(name, steps, row, entry.sum_seconds) for name, steps, row in rows[:top]]
        more = f", the first {top} of {len(rows)}" if len(rows) > top else ""
        console.print(table(f"{report.model} {entry.entry}, by {by}{more}", _COLUMNS, shown))
        times = (entry.sum_seconds, entry.whole_seconds, entry.whole_best_seconds)
        one_by_one, undisturbed, best = map(milliseconds, times)
        why = f" ({report.reason})" if report.reason else ""
        console.print(
            f"{many(len(entry.steps), 'step')}: {one_by_one} one by one, {undisturbed} undisturbed, {best} at best; {many(report.runs, 'run')} of mode "
            f"{report.mode}{why}, {report.precision}, {many(report.threads, 'thread')}",
            markup=False,
        )
        console.print(
            f"timed by {entry.method}; {entry.overhead_seconds * 1e6:.2f} us of each interval are the clock's own and taken off",
            markup=False,
        )
        notes = (*entry.notes, *((_ABOVE,) if any(roof.share > 1 for _, _, roof in rows[:top]) else ()))
        for note in notes:
            console.print(note, markup=False)
    rates = ", ".join(
        f"{one.flops_per_second / 1e9:.0f} GFLOP/s of {one.input} by {one.weight}" for one in report.ceilings
    )
    console.print(
        f"ceilings measured here: {report.bandwidth_bytes_per_second / 1e9:.1f} GB/s, {rates}, "
        f"{report.shortest_step_seconds * 1e6:.2f} us for the shortest step",
        markup=False,
    )
    for file in report.files:
        console.print(f"wrote {file}", markup=False)


def show_breakeven(report: BreakevenReport, console: Console) -> None:
    """The report for people."""
    for entry in report.entries:
        rows = [
            (
                mode.mode,
                milliseconds(mode.seconds),
                milliseconds(mode.once_seconds),
                ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in mode.parts.items()),
            )
            for mode in entry.modes
        ]
        title = f"{report.model} {entry.entry} on {report.device}, {many(report.runs, 'run')} of each mode in turn"
        console.print(table(title, ("mode", "a run", "once", "of which"), rows))
        for step in entry.steps:
            console.print(step.verdict, markup=False)


_Row = ProfileReport.Step | ProfileReport.Total


def _rows(entry: ProfileReport.Entry, by: str) -> Sequence[tuple[str, int, _Row]]:
    if by == "step":
        slowest: Iterable[ProfileReport.Step] = sorted(entry.steps, key=lambda step: (-step.seconds, step.position))
        return [(f"{step.node} ({step.op})", 1, step) for step in slowest]
    return [(total.name, total.steps, total) for total in (entry.operators if by == "operator" else entry.layers)]


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else milliseconds(seconds)


def _cells(name: str, steps: int, row: _Row, whole: float) -> tuple[str, ...]:
    nbytes = row.bytes_read + row.bytes_written if isinstance(row, ProfileReport.Step) else row.nbytes
    seconds = row.seconds or float("inf")
    return (
        name,
        str(steps),
        _time(row.seconds),
        f"{row.seconds / whole:.1%}" if whole else "",
        f"{nbytes / seconds / 1e9:.1f}",
        f"{row.flops / seconds / 1e9:.1f}",
        f"{row.share:.0%}",
        row.bound,
    )
