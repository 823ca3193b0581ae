"""A comparison as one HTML file: verdicts as a matrix, what was found, times, counts and errors by operator. It needs no script and nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from ostinato.tools.compare.report import CompareReport, OperatorTable, PairVerdict
from ostinato.tools.compare.show import Section, broken_lines, sections
from ostinato.tools.console import milliseconds
from ostinato.tools.page import asset, render_page

__all__ = ["comparison_page"]

_STYLE = {"bit-equal": "equal", "within contract": "within", "mismatch": "mismatch"}
_WORDS = {"bit-equal": "equal bits", "within contract": "within", "mismatch": "mismatch"}
_DECADES = 8
"""Decades that the bar of an error spans: from 1e-8 of what is allowed to all of it."""


def comparison_page(report: CompareReport) -> str:
    """The whole file as text."""
    body = "\n".join(("<main>", *_body(report), "</main>"))
    return render_page(f"compare {report.model}", body, styles=[asset("ostinato.tools.compare", "compare.css")])


def _body(report: CompareReport) -> Iterator[str]:
    verdict, style = ("every contract holds", "good") if report.ok else ("a contract is broken", "bad")
    yield f'<header><h1>{escape(report.model)} <span class="badge {style}">{verdict}</span></h1><div class="facts">'
    facts = [f"{report.steps} steps", f"{report.replays} replays", f"seed {report.seed}"]
    facts += [f"sequences of up to {report.tokens} tokens"] if report.tokens else []
    facts += ["memory poisoned with NaN" if report.poison else "memory not poisoned"]
    facts += [f"work: {', '.join(report.cases)}"] if report.cases else []
    yield "".join(f"<span>{escape(fact)}</span>" for fact in facts) + "</div></header>"
    if found := broken_lines(report):
        yield "<h2>What was found</h2>"
        yield f'<ul class="findings">{"".join(f"<li>{escape(line)}</li>" for line in found)}</ul>'
    if report.pairs:
        yield from _matrix(report)
    if report.not_covered:
        yield f'<p class="legend">Not covered: {escape("; ".join(report.not_covered))}.</p>'
    yield from _times(report)
    tables = {section.title: section for section in sections(report)}
    if (counts := tables.get("what it takes")) is not None:
        yield f"<h2>What it takes <small>{escape(counts.columns[0])}</small></h2>{_table(counts)}"
    for found_table in report.operators:
        yield from _operators(found_table)
    if (fresh := tables.get("fresh processes")) is not None:
        yield f"<h2>Fresh processes</h2>{_table(fresh)}"
    yield "<footer>Written by <code>ostinato compare</code>. Of two modes of one program equal bits are required; of others an agreement within a tolerance"
    yield " that scales with the spread of the outputs. Differences are the largest of all outputs.</footer>"


def _matrix(report: CompareReport) -> Iterator[str]:
    pairs = {(pair.left, pair.right): pair for pair in report.pairs}
    heads = "".join(f"<th>{escape(name)}</th>" for name in report.modes[1:])
    yield f'<h2>Verdicts</h2><div class="scroll"><table class="matrix"><thead><tr><th></th>{heads}</tr></thead><tbody>'
    for row, left in enumerate(report.modes[:-1]):
        cells = []
        for column, right in enumerate(report.modes[1:], 1):
            pair = pairs.get((left, right))
            cells.append('<td class="none"></td>' if pair is None or column <= row else _verdict(pair))
        yield f"<tr><th>{escape(left)}</th>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    yield '<p class="legend">Below each verdict: the largest difference, and what is allowed where that is not zero.</p>'


def _verdict(pair: PairVerdict) -> str:
    told = "0" if pair.worst is None else f"{pair.worst.difference:.3g}"
    allowed = "" if not pair.tolerance else f" of {pair.tolerance:.3g}"
    hint = f"{pair.compared} rows compared; {pair.required} is required"
    if pair.worst is not None:
        hint += f"; {pair.worst.output}{list(pair.worst.index)} of step {pair.worst.step}: {pair.worst.left:.9g} / {pair.worst.right:.9g}"
    style = _STYLE[pair.verdict] if pair.ok else "mismatch"
    return f'<td class="{style}" title="{escape(hint)}"><b>{_WORDS[pair.verdict]}</b>{told}{allowed}</td>'


def _times(report: CompareReport) -> Iterator[str]:
    slowest = max(side.seconds for side in report.sides) if report.sides else 0.0
    heads = ("side", "mode", "device", "median of all steps", "same bits", "made ready in", "pays after replays")
    yield f'<h2>Sides</h2><div class="scroll"><table class="wide"><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead><tbody>'
    for side in report.sides:
        share = side.seconds / slowest if slowest else 0.0
        pays = "-"
        if side.break_even is not None:
            after = side.break_even.replays
            pays = "no gain" if after is None else f"{after}, over {side.break_even.against}"
        cells = [
            escape(side.name),
            escape(side.mode),
            escape(side.device or "-"),
            f"{milliseconds(side.seconds)}{_bar(share, False)}",
            "yes" if side.repeats else "no",
            milliseconds(side.ready_seconds),
            escape(pays),
        ]
        style = "" if side.repeats else ' class="bad"'
        yield f"<tr{style}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table></div>"


def _operators(found: OperatorTable) -> Iterator[str]:
    yield f"<h2>Operators of {escape(found.side)} <small>beside their references on the same operands, {found.steps} steps</small></h2>"
    heads = ("operator", "nodes", "max error", "RMS", "relative", "ULP", "of what is allowed", "worst at")
    yield f'<div class="scroll"><table class="wide"><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead><tbody>'
    for row in found.rows:
        line = "" if row.worst.file is None else f"{row.worst.file.rpartition('/')[2]}:{row.worst.line}"
        decades = (
            1 + math.log10(row.worst_ratio) / _DECADES if 0 < row.worst_ratio < math.inf else float(row.worst_ratio > 0)
        )
        cells = [
            f"<code>{escape(row.op if row.row is None else f'{row.op}@{row.row}')}</code>",
            str(row.nodes) + (f", {row.outside} outside" if row.outside else ""),
            *(f"{number:.3g}" for number in (row.max, row.rms, row.relative, row.ulp)),
            f"{row.worst_ratio:.2%}{_bar(decades, bool(row.outside))}",
            f"<code>{escape(row.worst.node)}</code> {escape(line)}",
        ]
        style = ' class="bad"' if row.outside else ""
        yield f"<tr{style}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield '</tbody></table></div><p class="legend">Bars are logarithmic: full is all of what an operator is allowed, each eighth less is a tenth of it.</p>'


def _bar(share: float, bad: bool) -> str:
    width = 100 * min(1.0, max(0.0, share))
    return f'<span class="bar"><i{" class=bad" if bad else ""} style="width:{width:.1f}%"></i></span>'


def _table(section: Section) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in section.columns)
    rows = "".join(
        f"<tr{' class=bad' if index in section.bad else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for index, row in enumerate(section.rows)
    )
    return f'<div class="scroll"><table class="wide"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
