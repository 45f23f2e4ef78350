"""Plots as inline SVG, drawn without a library: lines, steps, areas and dots over two axes. Colours are CSS variables, so a page can
be light or dark.

The palette is Okabe and Ito's (2008), which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 38
Point = tuple[float, float]

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --quiet: #5b6470; --line: #d9dde3;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a35a88; --c4: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --paper: #12151a; --card: #1b2027; --ink: #e8ebef; --quiet: #9aa4b1; --line: #323a45;
  --c0: #56b4e9; --c1: #f0824a; --c2: #2cc49b; --c3: #d68fb8; --c4: #e6c229; } }
.plot { width: 100%; height: auto; display: block; overflow: visible; }
.plot text { font: 12px system-ui, sans-serif; fill: var(--quiet); font-variant-numeric: tabular-nums; }
.plot .grid { stroke: var(--line); stroke-width: 1; }
.plot .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; opacity: .7; }
"""


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, and where it is marked."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    @staticmethod
    def of(label: str, high: float, low: float = 0.0, num_ticks: int = 5) -> Axis:
        """Linear, with round marks; it ends at the mark above `high`."""
        step = round_step((high - low or 1.0) / num_ticks)
        first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
        marks = [number * step for number in range(first, max(last, first + 1) + 1)]
        return Axis(label, marks[0], marks[-1], [(mark, number_text(mark, step)) for mark in marks])


@dataclass(frozen=True)
class Series:
    """Points of one kind; `colour` is a place in the palette."""

    points: Sequence[Point]
    kind: Literal["line", "steps", "area", "dots"] = "line"
    colour: int = 0


@dataclass(frozen=True)
class Plot:
    """Series over two axes; `limits` are horizontal lines with a name, `marks` points with one."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    limits: Sequence[tuple[float, str]] = ()
    marks: Sequence[tuple[float, float, str]] = field(default=())

    def svg(self, title: str) -> str:
        """`title` is read out by screen readers."""
        parts = [f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">', *self._grid()]
        parts += [self._drawn(one) for one in self.series]
        for value, name in self.limits:
            y = self._y(value)
            parts.append(f'<path class="limit" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT + 6}" y="{y - 5:.1f}">{escape(name)}</text>')
        for x, y, name in self.marks:
            place = f'x="{self._x(x) - 6:.1f}" y="{self._y(y) - 6:.1f}" text-anchor="end"'
            parts.append(
                f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3.5" fill="var(--c1)"/><text {place}>{escape(name)}</text>'
            )
        return "".join([*parts, "</svg>"])

    def _x(self, value: float) -> float:
        return LEFT + (value - self.x.low) / (self.x.high - self.x.low or 1.0) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        share = min(1.0, max(0.0, (value - self.y.low) / (self.y.high - self.y.low or 1.0)))
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def _grid(self) -> list[str]:
        parts = [f'<path class="grid" d="M{LEFT} {self._y(at):.1f}H{WIDTH - RIGHT}"/>' for at, _ in self.y.ticks]
        parts += [f'<text x="{LEFT - 6}" y="{self._y(at) + 4:.1f}" text-anchor="end">{escape(text)}</text>' for at, text in self.y.ticks]
        parts += [
            f'<text x="{self._x(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'
            for at, text in self.x.ticks
        ]
        parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(self.x.label)}</text>')
        return parts

    def _drawn(self, series: Series) -> str:
        places = [(self._x(x), self._y(y)) for x, y in series.points]
        colour = f"var(--c{series.colour})"
        if not places:
            return ""
        if series.kind == "dots":
            return (
                f'<g fill="{colour}" fill-opacity=".55">'
                + "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places)
                + "</g>"
            )
        joint = "H{0:.1f}V{1:.1f}" if series.kind == "steps" else "L{0:.1f} {1:.1f}"
        line = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(joint.format(x, y) for x, y in places[1:])
        under = ""
        if series.kind == "area":
            base = HEIGHT - BOTTOM
            under = f'<path fill="{colour}" fill-opacity=".18" d="{line}L{places[-1][0]:.1f} {base}L{places[0][0]:.1f} {base}Z"/>'
        return f'{under}<path fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round" d="{line}"/>'


def round_step(step: float) -> float:
    """The nearest of 1, 2, 2.5, 5 times a power of ten that is not lower."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= step * (1 - 1e-9))


def number_text(value: float, step: float) -> str:
    """As many decimals as the step needs."""
    decimals = max(0, math.ceil(-math.log10(step) - 1e-9)) + (1 if f"{step:e}".startswith("2.5") and step < 10 else 0)
    return f"{value:,.{decimals}f}"


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]
