"""The arena over time as a picture: SVG that stands alone, for the screen or for print.

Above, every slot as a rectangle: its steps across, its bytes upwards, coloured by what its bytes are for; the line at the top is the arena, the dashed one the
lower bound, and pointing at a rectangle names its tenants. Below, how many bytes are live at each step: where the curve touches the bound is the peak, and what
lies between curve and arena is what the placement could not use at that step. The thin line above the curve is the end of the highest live byte: what lies
between the two is fragmentation. Plans and placement problems are drawn by the same function.

A picture is read in print too: `Paper` gives its size in millimetres, letters of 7 points and no heading, since a paper has captions. Colours differ in
brightness and every second one is hatched, so that they can be told apart without colour. Texts stay texts, in fonts that everybody has.

A picture stays small enough for a browser: of very many slots the largest are drawn, and of a curve the highest and the last point
in each tenth of a pixel.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.planner.plan import EntryPlan
from ostinato.planner.problem import Bound, Problem, Solution
from ostinato.planner.usage import Tenancy, reuse_count, usage_changes
from ostinato.tools.console import size
from ostinato.tools.view.roles import ROLES, Touches

__all__ = ["ArenaMap", "Paper", "Tenant", "arena_to_svg", "map_of_plan", "map_of_problem"]


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


@dataclass(frozen=True, slots=True)
class Paper:
    """The size of a printed picture in millimetres, by default as wide as a text of A4. Raises `ConfigError` for one that has no room for its axes."""

    width: float = 160.0
    height: float = 90.0

    @staticmethod
    def parse(text: str) -> Paper:
        """The size that a text like "160x90" says, in millimetres. Raises `ConfigError` for any other text."""
        try:
            width, height = map(float, text.lower().split("x"))
        except ValueError:
            raise ConfigError(f"{text!r} is no size of a picture", hint='write millimetres, as in "160x90"') from None
        return Paper(width, height)

    def __post_init__(self) -> None:
        sizes = (self.width, self.height)
        if not all(isinstance(size, int | float) for size in sizes):
            raise ConfigError(f"the size of a picture is {shown(sizes)}", hint="give millimetres, as in Paper(160, 90)")
        if not (60 <= self.width <= 2000 and 50 <= self.height <= 2000):
            raise ConfigError(
                f"a picture of {self.width} by {self.height} mm cannot be drawn",
                hint="from 60 by 50 to 2000 by 2000 mm",
            )


def map_of_plan(plan: EntryPlan, device: str | None = None) -> ArenaMap:
    """The arena of an entry on its own device, or on another one that its plan names; `kind` is what each slot is for (`roles.py`).

    Raises `ConfigError` for a device on which the plan has no arena.
    """
    touches = Touches(plan)
    tenants = tuple(
        Tenant(
            ", ".join(slot.values),
            touches.role(slot),
            slot.first,
            slot.last,
            slot.range.offset,
            slot.range.size,
        )
        for slot in plan.slots_on(device)
    )
    stats = next((arena for arena in plan.stats.arenas if arena.device == (device or plan.device)), None)
    if stats is None:
        known = ", ".join(arena.device for arena in plan.stats.arenas)
        raise ConfigError(f"the plan of {plan.name} has no arena on {device}", hint=f"it has one on {known}")
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


_SCREEN = (1200, 728)
"""Pixels."""
_ZOOM = 1.25
"""Pixels of a unit."""
_UNIT = 0.7 * 25.4 / 72
"""Millimetres of a unit on paper: its letters are 10 units high, and 7 points."""
_LEFT, _RIGHT, _HEADING, _GAP, _AXIS, _ROW = 66, 14, 54, 26, 34, 15
_MOST_DRAWN = 20_000
"""Slots of a picture: about 6 MB."""
_COLOURS = {
    "activation": "#7fb2e5",
    "in place": "#3a9d8f",
    "saved": "#2f5597",
    "backward": "#f6c58f",
    "gradient": "#c0504d",
    "recomputed": "#8064a2",
    "workspace": "#d0d5da",
    "buffer": "#7fb2e5",
}
"""From light to dark by turns, each beside a brightness that is not near."""
_OTHERS = ("#59a14f", "#edc948", "#9c755f", "#b07aa1")
_HATCHED = {"in place": 45, "gradient": -45, "recomputed": 0, "workspace": 90}
"""Kinds with lines across them, and their angle."""
_LETTER = 5.4
"""Width of a small letter on average, for the legend and the names in the rectangles."""
_STYLE = """
  text { font: 10px Helvetica, Arial, sans-serif; fill: #1f2933; }
  .title { font-size: 14px; font-weight: bold; } .name { font-size: 9px; pointer-events: none; }
  text.white { fill: #ffffff; } text.black { fill: #10171e; } text.hatched { fill: #10171e; stroke: #ffffff; stroke-width: 3; paint-order: stroke; }
  .paper { fill: #ffffff; } .plot { fill: #f7f9fb; stroke: #9aa5b1; stroke-width: 0.6; } .grid { stroke: #dfe4ea; stroke-width: 0.6; }
  .slot { stroke: #ffffff; stroke-width: 0.4; } .slot:hover { stroke: #000000; stroke-width: 1.5; }
  .thin { stroke: none; }
  .arena { stroke: #b3261e; stroke-width: 1.4; } .bound { stroke: #0b4f9e; stroke-width: 1.4; stroke-dasharray: 7 4; }
  .peak { stroke: #52606d; stroke-dasharray: 2 3; } .live { fill: #c3d3e4; stroke: #486581; stroke-width: 0.8; }
  .extent { fill: none; stroke: #d9822b; stroke-width: 1; }
"""


def arena_to_svg(drawing: ArenaMap, paper: Paper | None = None) -> str:
    """SVG text of a map for the screen, or of a printed size; the same map gives the same text."""
    return _Picture(drawing, paper).text()


class _Picture:
    """Everything is in units: 1.25 pixels of a screen, 0.7 points on paper."""

    def __init__(self, drawing: ArenaMap, paper: Paper | None) -> None:
        self._map, self._paper = drawing, paper
        self._width, self._height = (
            (paper.width / _UNIT, paper.height / _UNIT) if paper else (_SCREEN[0] / _ZOOM, _SCREEN[1] / _ZOOM)
        )
        self._steps = max((tenant.last for tenant in drawing.tenants), default=1)
        self._first = min((tenant.first for tenant in drawing.tenants), default=0)
        found = {tenant.kind for tenant in drawing.tenants}
        known = [kind for kind in ROLES if kind in found]
        others = sorted(found - set(ROLES))
        self._colour = {kind: _COLOURS[kind] for kind in known}
        for index, kind in enumerate(others):
            self._colour[kind] = _COLOURS.get(kind, _OTHERS[index % len(_OTHERS)])
        self._rows = list(self._legend_rows())
        top, foot = (8 if paper else _HEADING), self._height - _AXIS - _ROW * len(self._rows) - 6
        curve = min(130.0, (foot - top - _GAP) * 0.24)
        self._top, self._base = float(top), foot
        self._second = foot - curve
        self._floor = self._second - _GAP
        self._usage = usage_changes(tenancies_of(drawing))

    def text(self) -> str:
        width, height = self._width, self._height
        unit = (
            (f"{self._paper.width:g}mm", f"{self._paper.height:g}mm")
            if self._paper
            else (f"{_SCREEN[0]}", f"{_SCREEN[1]}")
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{unit[0]}" height="{unit[1]}" viewBox="0 0 {width:.2f} {height:.2f}">',
            f"<style>{_STYLE}</style>",
            *self._hatches(),
            f'<rect class="paper" width="{width:.2f}" height="{height:.2f}"/>',
            *(() if self._paper else self._heading()),
            *self._axes(),
            *(self._slot(tenant) for tenant in self._drawn()),
            *self._levels(self._top, self._floor),
            *self._curve(),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _hatches(self) -> Iterator[str]:
        for number, (kind, colour) in enumerate(self._colour.items()):
            if kind in _HATCHED:
                line = "#ffffff" if _brightness(colour) < 0.6 else "#7b8794"
                yield (
                    f'<pattern id="k{number}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate({_HATCHED[kind]})">'
                    f'<rect width="7" height="7" fill="{colour}"/><line x1="0" y1="3.5" x2="7" y2="3.5" stroke="{line}" stroke-width="1" '
                    'stroke-opacity="0.7"/></pattern>'
                )

    def _fill(self, kind: str) -> str:
        return f"url(#k{list(self._colour).index(kind)})" if kind in _HATCHED else self._colour[kind]

    def _drawn(self) -> Sequence[Tenant]:
        """The tenants that take the most bytes times steps, all if they are not too many."""
        tenants = self._map.tenants
        if len(tenants) <= _MOST_DRAWN:
            return tenants
        areas = ((tenant.size * (tenant.last - tenant.first), -index) for index, tenant in enumerate(tenants))
        return [tenants[-place] for _, place in sorted(heapq.nlargest(_MOST_DRAWN, areas), key=lambda area: -area[1])]

    def _x(self, step: int) -> float:
        return _LEFT + (self._width - _LEFT - _RIGHT) * (step - self._first) / max(1, self._steps - self._first)

    def _up(self, nbytes: int, extent: float) -> float:
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
            f'<text class="title" x="{_LEFT}" y="22">{_text(found.title)}</text>',
            f'<text class="facts" x="{_LEFT}" y="42">{sizes}; {slots}; fragmentation at most {worst:.1%}</text>',
        ]

    def _axes(self) -> list[str]:
        lines = []
        right = self._width - _RIGHT
        for top, foot in ((self._top, self._floor), (self._second, self._base)):
            lines.append(
                f'<rect class="plot" x="{_LEFT}" y="{top:.1f}" width="{right - _LEFT:.1f}" height="{foot - top:.1f}"/>'
            )
            for nbytes in _round_bytes(self._map.height, max(1, min(5, int((foot - top) // 34)))):
                y = foot - self._up(nbytes, foot - top)
                lines.append(f'<line class="grid" x1="{_LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
                lines.append(f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{size(nbytes)}</text>')
        y = self._base + 13
        steps = _round_steps(self._first, self._steps, int((right - _LEFT) // 70))
        lines += [f'<text x="{self._x(step):.1f}" y="{y:.1f}" text-anchor="middle">{step}</text>' for step in steps]
        lines.append(f'<text x="{(_LEFT + right) / 2:.1f}" y="{self._base + 27:.1f}" text-anchor="middle">step</text>')
        lines.append(f'<text x="{_LEFT}" y="{self._second - 6:.1f}">bytes live at each step</text>')
        return lines

    def _slot(self, tenant: Tenant) -> str:
        x, width = self._x(tenant.first), self._x(tenant.last) - self._x(tenant.first)
        extent = self._floor - self._top
        height = self._up(tenant.size, extent)
        y = self._floor - self._up(tenant.offset, extent) - height
        end = tenant.offset + tenant.size
        title = (
            f"{tenant.label}\n{tenant.kind}\nbytes [{tenant.offset}, {end}), {size(tenant.size)}\n"
            f"steps [{tenant.first}, {tenant.last})"
        )
        shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
        drawn = "slot" if min(width, height) >= 2 else "slot thin"
        named = "" if self._paper else f"<title>{_text(title)}</title>"  # print has no pointer
        text = f'<rect class="{drawn}" {shape} fill="{self._fill(tenant.kind)}">{named}</rect>'
        room = int((width - 6) / _LETTER)
        if height >= 11 and room >= 6:
            label = tenant.label.removeprefix("#")
            name = label if len(label) <= room else label[: room - 1] + "…"
            ink = (
                "hatched"
                if tenant.kind in _HATCHED
                else "white"
                if _brightness(self._colour[tenant.kind]) < 0.6
                else "black"
            )
            text += f'<text class="name {ink}" x="{x + 4:.2f}" y="{y + height / 2 + 3:.2f}">{_text(name)}</text>'
        return text

    def _levels(self, top: float, foot: float) -> list[str]:
        """The arena's and the bound's line, and the peak's."""
        lines = []
        for kind, nbytes in (("arena", self._map.height), ("bound", self._map.lower_bound)):
            y = foot - self._up(nbytes, foot - top)
            lines.append(
                f'<line class="{kind}" x1="{_LEFT}" x2="{self._width - _RIGHT:.2f}" y1="{y:.2f}" y2="{y:.2f}"/>'
            )
        x = (self._x(self._map.peak) + self._x(self._map.peak + 1)) / 2
        lines.append(f'<line class="peak" x1="{x:.2f}" x2="{x:.2f}" y1="{top:.2f}" y2="{foot:.2f}"/>')
        return lines

    def _curve(self) -> list[str]:
        live = self._stairs([(step, usage.live) for step, usage in self._usage])
        extent = self._stairs([(step, usage.extent) for step, usage in self._usage])
        return [
            f'<path class="live" d="{live}Z"/>',
            f'<path class="extent" d="{extent}"/>',
            *self._levels(self._second, self._base),
        ]

    def _stairs(self, points: Sequence[tuple[int, int]]) -> str:
        """The path through (step, bytes from it on), from the first step to the last."""
        columns: dict[str, tuple[int, int]] = {}  # x -> the most bytes at it, and the last
        for step, nbytes in (*points, (self._steps, 0)):
            x = f"{self._x(step):.1f}"
            columns[x] = (max(nbytes, columns.get(x, (0, 0))[0]), nbytes)
        extent = self._base - self._second
        path = [f"M{self._x(self._first):.1f} {self._base:.2f}"]
        for x, (most, last) in columns.items():
            path.append(f"H{x}V{self._base - self._up(most, extent):.2f}")
            if last != most:
                path.append(f"V{self._base - self._up(last, extent):.2f}")
        return "".join(path)

    def _legend_rows(self) -> Iterator[list[tuple[str, str, float]]]:
        """What the legend says, row by row: the text, what is drawn before it ("" for a colour), and where it begins."""
        marks = {"arena": "arena", "lower bound": "bound", "peak": "peak", "highest live byte": "extent"}
        row: list[tuple[str, str, float]] = []
        x = float(_LEFT)
        for name, mark in (*marks.items(), *((kind, "") for kind in self._colour)):
            width = (34 if mark else 28) + _LETTER * len(name)
            if row and x + width > self._width - _RIGHT:
                yield row
                row, x = [], float(_LEFT)
            row.append((name, mark, x))
            x += width
        yield row

    def _legend(self) -> Iterator[str]:
        for number, row in enumerate(self._rows):
            y = self._base + _AXIS + 8 + _ROW * number
            for name, mark, x in row:
                if mark:
                    yield f'<line class="{mark}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                else:
                    yield f'<rect x="{x:.0f}" y="{y - 5:.1f}" width="12" height="10" fill="{self._fill(name)}"/>'
                yield f'<text x="{x + (23 if mark else 17):.0f}" y="{y + 3.5:.1f}">{_text(name)}</text>'


def _round_bytes(height: int, wanted: int) -> list[int]:
    """All of it, and below that so many multiples of a power of two, or up to twice as many."""
    every = 1 << max(0, (max(1, height // wanted)).bit_length() - 1)
    return [*range(0, height - every // 3, every), height]


def _round_steps(first: int, last: int, wanted: int) -> range:
    """At most about so many steps of [first, last]: multiples of 1, 2 or 5 times a power of ten."""
    least = max(1, (last - first) // max(1, wanted))
    power: int = 10 ** (len(str(least)) - 1)
    every = next(by * power for by in (1, 2, 5, 10) if by * power >= least)
    return range(-(-first // every) * every, last + 1, every)


def _brightness(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _text(text: str) -> str:
    """Text in XML, which has no place for control characters: they are left out."""
    return escape("".join(character for character in text if character.isprintable() or character == "\n"))
