"""A comparison for people: tables on a console, and the same tables as Markdown.

Both are made of the same rows, so that what is pasted in an issue is what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from ostinato.tools.compare.report import CompareReport, OperatorError, SideReport
from ostinato.tools.console import count, milliseconds, size, table

__all__ = ["Section", "broken_lines", "comparison_markdown", "sections", "show_comparison"]

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Section:
    """A table by its title; the first column is text, the others are numbers unless `numbers` is False. `bad` are the rows to look at."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bad: frozenset[int] = frozenset()
    numbers: bool = True


def show_comparison(report: CompareReport, console: Console) -> None:
    """The report on a console."""
    for section in sections(report):
        made = table(section.title, section.columns, section.rows, numbers=section.numbers)
        for index in section.bad:
            made.rows[index].style = "red"
        console.print(made)
    for line in broken_lines(report):
        console.print(line, style="yellow" if report.ok else "red", markup=False)
    for line in report.not_covered:
        console.print(f"not covered: {line}", style="dim", markup=False)
    console.print("[bold green]every contract holds[/]" if report.ok else "[bold red]a contract is broken[/]")


def comparison_markdown(report: CompareReport) -> str:
    """The report as Markdown."""
    lines = [f"# {_cell(report.model)}: {'every contract holds' if report.ok else 'a contract is broken'}", ""]
    lines += [f"- {_cell(line)}" for line in broken_lines(report)]
    lines += [f"- not covered: {_cell(line)}" for line in report.not_covered]
    lines += [""] if lines[-1] else []
    for section in sections(report):
        lines += [f"## {_cell(section.title)}", "", f"| {' | '.join(map(_cell, section.columns))} |"]
        rule = "---:" if section.numbers else "---"
        lines.append(f"| --- | {' | '.join([rule] * (len(section.columns) - 1))} |")
        for index, row in enumerate(section.rows):
            cells = [f"**{_cell(cell)}**" if index in section.bad and cell else _cell(cell) for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def sections(report: CompareReport) -> Iterator[Section]:
    """Every table of a report."""
    if report.pairs:
        yield _pair_section(report)
    yield _side_section(report)
    counted = [side for side in report.sides if side.counts is not None]
    if counted:
        yield _count_section(counted)
    for found in report.operators:
        rows = tuple(map(_operator_row, found.rows))
        bad = frozenset(index for index, row in enumerate(found.rows) if row.outside)
        columns = ("operator", "nodes", "max error", "RMS", "relative", "ULP", "of what is allowed", "worst at")
        title = f"operators of {found.side} beside their references on the same operands, {found.steps} steps"
        yield Section(title, columns, rows, bad)
    if report.processes:
        rows = tuple(
            (item.side, str(item.process), item.digest[:16], "equal" if item.equal else "OTHER BITS")
            for item in report.processes
        )
        bad = frozenset(index for index, item in enumerate(report.processes) if not item.equal)
        yield Section("fresh processes", ("side", "process", "digest", "verdict"), rows, bad)


def _pair_section(report: CompareReport) -> Section:
    rows = []
    for pair in report.pairs:
        worst = "" if pair.worst is None else f"{pair.worst.difference:.3g}"
        limit = "0" if pair.tolerance == 0 else f"{pair.tolerance:.3g}"
        at = "" if pair.worst is None else f"{pair.worst.case or pair.worst.output} {list(pair.worst.index)}"
        rows.append((f"{pair.left} / {pair.right}", pair.verdict, worst, limit, count(pair.compared), at))
    bad = frozenset(index for index, pair in enumerate(report.pairs) if not pair.ok)
    columns = ("sides", "verdict", "largest difference", "limit", "rows compared", "at")
    return Section(f"{report.model}, {report.steps} steps", columns, tuple(rows), bad)


def _side_section(report: CompareReport) -> Section:
    rows = []
    for side, timing in zip(report.sides, report.timings, strict=True):
        pays = _NOTHING
        if side.break_even is not None:
            after = side.break_even.replays
            pays = "no gain" if after is None else f"{count(after)}, over {side.break_even.against}"
        cells = (milliseconds(side.seconds), str(timing.runs), "yes" if side.repeats else "NO")
        rows.append((side.name, side.mode, *cells, milliseconds(side.ready_seconds), pays))
    bad = frozenset(index for index, side in enumerate(report.sides) if not side.repeats)
    columns = ("side", "mode", "median of all steps", "replays", "same bits", "made ready in", "pays after replays")
    return Section("sides", columns, tuple(rows), bad)


def _count_section(sides: Sequence[SideReport]) -> Section:
    found = [side.counts for side in sides if side.counts is not None]
    rows = (
        ("launches", [count(item.launches) for item in found]),
        ("native calls", [count(item.submissions) for item in found]),
        ("nodes of captured graphs", [count(item.graph_nodes) for item in found]),
        ("steps of the plans", [count(item.steps) for item in found]),
        ("copies among them", [count(item.copies) for item in found]),
        ("strided copies", [count(item.strided_copies) for item in found]),
        ("allocations", [count(item.allocations) for item in found]),
        ("bytes allocated", [size(item.allocated_bytes) for item in found]),
        ("arena", [size(item.arena_bytes) for item in found]),
        ("weights", [size(item.weight_bytes) for item in found]),
        ("all memory of the program", [size(item.device_bytes) for item in found]),
    )
    columns = ("a replay of all steps", *(side.name for side in sides))
    return Section("what it takes", columns, tuple((name, *cells) for name, cells in rows))


def _operator_row(row: OperatorError) -> tuple[str, ...]:
    name = row.op if row.row is None else f"{row.op}@{row.row}"
    nodes = count(row.nodes) if not row.outside else f"{count(row.nodes)}, {count(row.outside)} outside"
    line = "" if row.worst.file is None else f" ({row.worst.file.rpartition('/')[2]}:{row.worst.line})"
    numbers = (f"{row.max:.3g}", f"{row.rms:.3g}", f"{row.relative:.3g}", f"{row.ulp:.3g}", f"{row.worst_ratio:.1%}")
    return (name, nodes, *numbers, f"{row.worst.node}{line}")


def broken_lines(report: CompareReport) -> list[str]:
    """What is wrong, one line each; none where every contract holds."""
    lines = [line for line, pair in zip(report.pair_lines(), report.pairs, strict=True) if not pair.ok]
    return lines + report.finding_lines()


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
