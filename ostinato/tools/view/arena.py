"""The arena over time as a picture: SVG that stands alone.

Above, every slot as a rectangle: its steps across, its bytes upwards, coloured by what wrote it; the line at the top is the arena, the dashed one the lower
bound, and pointing at a rectangle names its tenants. Below, how many bytes are live at each step: where the curve touches the bound is the peak, and what
lies between curve and arena is what the placement could not use at that step. The thin line above the curve is the end of the highest live byte: what lies
between the two is fragmentation. Plans and placement problems are drawn by the same function.

A picture stays small enough for a browser: of very many slots the largest are drawn, and of a curve the highest and the last point
in each tenth of a pixel.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ostinato.ir.graph import Graph
from ostinato.ir.step import WORKSPACE
from ostinato.planner.plan import EntryPlan
from ostinato.planner.problem import Bound, Problem, Solution
from ostinato.planner.usage import Tenancy, reuse_count, usage_changes
from ostinato.tools.console import size

__all__ = ["ArenaMap", "Tenant", "arena_to_svg", "map_of_plan", "map_of_problem"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Bytes [offset, offset + size) held during the half-open interval of steps [first, last); `kind` chooses the colour."""

    label: str
    kind: str
    first: int
    last: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """What is drawn: the tenants of one device's arena below `height` bytes, the lower bound, and the step at which it is reached."""

    title: str
    tenants: tuple[Tenant, ...]
    height: int
    lower_bound: int
    peak: int


def map_of_plan(plan: EntryPlan, graph: Graph | None = None) -> ArenaMap:
    """The arena of an entry on its own device. With its graph the colours say which operator made a slot's first value."""

    def kind(values: Sequence[str]) -> str:
        if values[0].startswith(WORKSPACE):
            return WORKSPACE
        node = graph.producers.get(values[0]) if graph is not None else None
        return "value" if node is None else node.op

    tenants = tuple(
        Tenant(", ".join(slot.values), kind(slot.values), slot.first, slot.last, slot.range.offset, slot.range.size)
        for slot in plan.slots_on(plan.device)
    )
    stats = plan.stats
    return ArenaMap(plan.name, tenants, stats.arena_bytes, stats.lower_bound, stats.peak_step)


def map_of_problem(title: str, problem: Problem, solution: Solution, bound: Bound) -> ArenaMap:
    """A solved placement problem."""
    tenants = tuple(
        Tenant(buffer.id, "buffer", buffer.lower, buffer.upper, offset, buffer.size)
        for buffer, offset in zip(problem.buffers, solution.offsets, strict=True)
    )
    return ArenaMap(title, tenants, solution.height, bound.height, bound.step)


def tenancies_of(drawing: ArenaMap) -> list[Tenancy]:
    """The tenants without their names."""
    return [Tenancy(tenant.first, tenant.last, tenant.offset, tenant.size) for tenant in drawing.tenants]


_WIDTH, _MAP, _CURVE, _LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 1200, 420, 130, 84, 24, 64, 44, 70
_MOST_DRAWN = 20_000
"""Slots of a picture: about 6 MB."""
_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#86bcb6", "#d37295", "#a0cbe8",
)  # fmt: skip
_SCRATCH = "#8d99a6"
_LETTER = 6.2
"""Width of a small letter on average, for the legend and the names in the rectangles."""
_STYLE = """
  text { font: 12px Helvetica, Arial, sans-serif; fill: #1f2933; }
  .title { font-size: 16px; font-weight: bold; } .small { font-size: 10px; } .name { font-size: 9px; fill: #10171e; pointer-events: none; }
  .paper { fill: #ffffff; } .plot { fill: #f7f9fb; stroke: #cbd2d9; } .grid { stroke: #e4e7eb; }
  .slot { stroke: #ffffff; stroke-width: 0.4; } .slot:hover { stroke: #000000; stroke-width: 1.5; }
  .arena { stroke: #d64545; stroke-width: 1.5; } .bound { stroke: #186faf; stroke-width: 1.5; stroke-dasharray: 7 4; }
  .peak { stroke: #7b8794; stroke-dasharray: 2 3; } .live { fill: #bcccdc; stroke: #486581; stroke-width: 1; }
  .extent { fill: none; stroke: #f28e2b; stroke-width: 1; }
"""


def arena_to_svg(drawing: ArenaMap) -> str:
    """SVG text of a map, in a fixed size; the same map gives the same text."""
    return _Picture(drawing).text()


class _Picture:
    def __init__(self, drawing: ArenaMap) -> None:
        self._map = drawing
        self._steps = max((tenant.last for tenant in drawing.tenants), default=1)
        self._first = min((tenant.first for tenant in drawing.tenants), default=0)
        kinds = sorted({tenant.kind for tenant in drawing.tenants} - {WORKSPACE})
        self._colour = {kind: _COLOURS[index % len(_COLOURS)] for index, kind in enumerate(kinds)}
        if any(tenant.kind == WORKSPACE for tenant in drawing.tenants):
            self._colour[WORKSPACE] = _SCRATCH
        self._floor, self._base = _TOP + _MAP, _TOP + _MAP + _GAP + _CURVE
        self._usage = usage_changes(tenancies_of(drawing))

    def text(self) -> str:
        height = self._base + _BOTTOM
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
            *self._heading(),
            *self._axes(),
            *(self._slot(tenant) for tenant in self._drawn()),
            *self._levels(_TOP, _MAP),
            *self._curve(),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _drawn(self) -> Sequence[Tenant]:
        """The tenants that take the most bytes times steps, all if they are not too many."""
        tenants = self._map.tenants
        if len(tenants) <= _MOST_DRAWN:
            return tenants
        areas = ((tenant.size * (tenant.last - tenant.first), -index) for index, tenant in enumerate(tenants))
        return [tenants[-place] for _, place in sorted(heapq.nlargest(_MOST_DRAWN, areas), key=lambda area: -area[1])]

    def _x(self, step: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - self._first) / max(1, self._steps - self._first)

    def _up(self, nbytes: int, extent: int) -> float:
        return extent * nbytes / max(1, self._map.height)

    def _heading(self) -> list[str]:
        found = self._map
        ratio = found.height / found.lower_bound if found.lower_bound else 1.0
        tenants = len(found.tenants)
        sizes = f"arena {size(found.height)}, lower bound {size(found.lower_bound)} (ratio {ratio:.4f}), peak at step {found.peak}"
        total = sum(tenant.size for tenant in found.tenants)
        reused = reuse_count(tenancies_of(found))
        worst = max((usage.fragmentation for _, usage in self._usage), default=0.0)
        slots = f"{tenants} slots ({reused} in bytes that another had), {size(total)} without reuse"
        if tenants > _MOST_DRAWN:
            slots = f"the {_MOST_DRAWN} largest of {slots}"
        return [
            f'<text class="title" x="{_LEFT}" y="26">{_text(found.title)}</text>',
            f'<text x="{_LEFT}" y="46">{sizes}; {slots}; fragmentation at most {worst:.1%}</text>',
        ]

    def _axes(self) -> list[str]:
        lines = []
        for top, extent, marks in ((_TOP, _MAP, 4), (_TOP + _MAP + _GAP, _CURVE, 2)):
            lines.append(
                f'<rect class="plot" x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{extent}"/>'
            )
            for mark in range(marks + 1):
                y = top + extent - extent * mark / marks
                lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
                lines.append(
                    f'<text class="small" x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{size(self._map.height * mark // marks)}</text>'
                )
        for mark in range(9):
            step = self._first + (self._steps - self._first) * mark // 8
            lines.append(
                f'<text class="small" x="{self._x(step):.1f}" y="{self._base + 14}" text-anchor="middle">{step}</text>'
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        lines.append(f'<text class="small" x="{middle:.1f}" y="{self._base + 28}" text-anchor="middle">step</text>')
        lines.append(f'<text class="small" x="{_LEFT}" y="{self._floor + _GAP - 8}">bytes live at each step</text>')
        return lines

    def _slot(self, tenant: Tenant) -> str:
        x, width = self._x(tenant.first), self._x(tenant.last) - self._x(tenant.first)
        height = self._up(tenant.size, _MAP)
        y = self._floor - self._up(tenant.offset, _MAP) - height
        end = tenant.offset + tenant.size
        title = (
            f"{tenant.label}\n{tenant.kind.lstrip('#')}\nbytes [{tenant.offset}, {end}), {size(tenant.size)}\n"
            f"steps [{tenant.first}, {tenant.last})"
        )
        shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
        text = f'<rect class="slot" {shape} fill="{self._colour[tenant.kind]}"><title>{_text(title)}</title></rect>'
        room = int((width - 6) / _LETTER)
        if height >= 11 and room >= 6:
            name = tenant.label if len(tenant.label) <= room else tenant.label[: room - 1] + "…"
            text += f'<text class="name" x="{x + 3:.2f}" y="{y + height / 2 + 3:.2f}">{_text(name)}</text>'
        return text

    def _levels(self, top: int, extent: int) -> list[str]:
        """The arena's and the bound's line, and the peak's."""
        lines = []
        for kind, nbytes in (("arena", self._map.height), ("bound", self._map.lower_bound)):
            y = top + extent - self._up(nbytes, extent)
            lines.append(f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>')
        x = (self._x(self._map.peak) + self._x(self._map.peak + 1)) / 2
        lines.append(f'<line class="peak" x1="{x:.2f}" x2="{x:.2f}" y1="{top}" y2="{top + extent}"/>')
        return lines

    def _curve(self) -> list[str]:
        live = self._stairs([(step, usage.live) for step, usage in self._usage])
        extent = self._stairs([(step, usage.extent) for step, usage in self._usage])
        return [
            f'<path class="live" d="{live}Z"/>',
            f'<path class="extent" d="{extent}"/>',
            *self._levels(_TOP + _MAP + _GAP, _CURVE),
        ]

    def _stairs(self, points: Sequence[tuple[int, int]]) -> str:
        """The path through (step, bytes from it on), from the first step to the last."""
        columns: dict[str, tuple[int, int]] = {}  # x -> the most bytes at it, and the last
        for step, nbytes in (*points, (self._steps, 0)):
            x = f"{self._x(step):.1f}"
            columns[x] = (max(nbytes, columns.get(x, (0, 0))[0]), nbytes)
        path = [f"M{self._x(self._first):.1f} {self._base}"]
        for x, (most, last) in columns.items():
            path.append(f"H{x}V{self._base - self._up(most, _CURVE):.2f}")
            if last != most:
                path.append(f"V{self._base - self._up(last, _CURVE):.2f}")
        return "".join(path)

    def _legend(self) -> list[str]:
        lines, x, y = [], float(_LEFT), self._base + 44
        for name, mark in (
            ("arena", "arena"),
            ("lower bound", "bound"),
            ("peak", "peak"),
            ("highest live byte", "extent"),
        ):
            lines.append(f'<line class="{mark}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y}" y2="{y}"/>')
            lines.append(f'<text class="small" x="{x + 23:.0f}" y="{y + 3}">{name}</text>')
            x += 34 + _LETTER * len(name)
        for kind, colour in self._colour.items():
            width = 26 + _LETTER * len(kind)
            if x + width > _WIDTH - _RIGHT:
                x, y = float(_LEFT), y + 15
            lines.append(f'<rect x="{x:.0f}" y="{y - 5}" width="10" height="10" fill="{colour}"/>')
            lines.append(f'<text class="small" x="{x + 14:.0f}" y="{y + 3}">{_text(kind.lstrip("#"))}</text>')
            x += width
        return lines


def _text(text: str) -> str:
    """Text in XML, which has no place for control characters: they are left out."""
    return escape("".join(character for character in text if character.isprintable() or character == "\n"))
