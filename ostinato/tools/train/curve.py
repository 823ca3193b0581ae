"""The loss over the steps as a picture: SVG that stands alone. The thin line is every step, the thick one their running mean, the dashed one the learning rate.

A picture stays small: of very many steps each tenth of a pixel shows its lowest and highest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Point", "curve_to_svg"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 420, 64, 64, 44, 48
_COLUMNS = 8000
_STYLE = """
  text { font: 12px Helvetica, Arial, sans-serif; fill: #1f2933; } .title { font-size: 16px; font-weight: bold; } .small { font-size: 10px; }
  .paper { fill: #ffffff; } .plot { fill: #f7f9fb; stroke: #cbd2d9; } .grid { stroke: #e4e7eb; }
  .each { fill: none; stroke: #9fb3c8; stroke-width: 1; } .mean { fill: none; stroke: #186faf; stroke-width: 2; }
  .rate { fill: none; stroke: #f28e2b; stroke-width: 1; stroke-dasharray: 5 4; }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One step."""

    step: int
    loss: float
    learning_rate: float


def curve_to_svg(title: str, points: Sequence[Point]) -> str:
    """SVG text of the curve, in a fixed size; the same points give the same text. Losses that are not finite are left out."""
    shown = [point for point in points if math.isfinite(point.loss)]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>',
        f'<rect class="plot" x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_HEIGHT - _TOP - _BOTTOM}"/>',
    ]
    if shown:
        lines += _curves(shown)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _curves(points: Sequence[Point]) -> list[str]:
    losses, means = [point.loss for point in points], _running_mean([point.loss for point in points])
    low, high, tick = _scale(min(losses), max(losses))
    first, last = points[0].step, max(points[-1].step, points[0].step + 1)
    top_rate = max(point.learning_rate for point in points) or 1.0

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    lines = []
    for index in range(round((high - low) / tick) + 1):
        value, at = low + index * tick, y(index * tick / (high - low))
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(f'<text class="small" x="{_LEFT - 6}" y="{at + 3:.1f}" text-anchor="end">{value:g}</text>')
    below = _HEIGHT - _BOTTOM + 16
    lines += [
        f'<text class="small" x="{x(step):.1f}" y="{below}" text-anchor="middle">{step}</text>'
        for step in sorted({first, (first + last) // 2, last})
    ]
    steps = [point.step for point in points]
    for kind, values in (("each", losses), ("mean", means)):
        places = [(x(step), y((value - low) / (high - low))) for step, value in zip(steps, values, strict=True)]
        lines.append(_line(kind, places))
    lines.append(_line("rate", [(x(point.step), y(point.learning_rate / top_rate)) for point in points]))
    lines.append(f'<text class="small" x="{_WIDTH - _RIGHT + 6}" y="{_TOP + 4}">lr {top_rate:.3g}</text>')
    told = f"loss {losses[-1]:.4g} (mean {means[-1]:.4g}) after step {points[-1].step}"
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="26" text-anchor="end">{told}</text>')
    lines.append(f'<text class="small" x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">step</text>')
    return lines


def _line(kind: str, places: Sequence[tuple[float, float]]) -> str:
    kept = list(places)
    if len(places) > 2 * _COLUMNS:
        columns: dict[int, list[tuple[float, float]]] = {}
        for place in places:
            columns.setdefault(int(place[0] * 10), []).append(place)
        kept = [
            chosen
            for column in columns.values()
            for chosen in (min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1]))
        ]
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in kept)}"/>'


def _running_mean(values: Sequence[float]) -> list[float]:
    """Exponential mean over about a twentieth of all steps, without a bias at the beginning."""
    share = 1.0 / max(1.0, min(50.0, len(values) / 20))
    means, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = total * (1 - share) + value * share, weight * (1 - share) + share
        means.append(total / weight)
    return means


def _scale(low: float, high: float) -> tuple[float, float, float]:
    """Round numbers around the values, and the distance of ticks between them."""
    span = (high - low) or abs(high) or 1.0
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    tick = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return math.floor(low / tick) * tick, math.ceil(high / tick + 1e-9) * tick, tick
