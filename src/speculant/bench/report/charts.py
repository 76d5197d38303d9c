"""Charts as inline SVG, without scripts or fonts of their own; colours are the page's classes s0, s1, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLORS = 12
WIDTH, HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 40


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of points (x, y) in the colour of that number."""

    name: str
    color: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A named bar per group in the colour of that number; None where there is nothing to show."""

    name: str
    color: int
    values: Sequence[float | None]


def line_chart(
    lines: Sequence[Line], *, label: str, across: str, up: str, low: float = 0.0, whole: bool = False
) -> str:
    """Return a chart of lines.

    Args:
        lines: what to draw.
        label: what the chart shows, for readers who do not see it.
        across, up: names of the axes.
        low: where the vertical axis begins.
        whole: both axes run from 0 to 1, with the diagonal on which they agree.
    """
    points = [point for line in lines for point in line.points]
    right = 1.0 if whole else max((x for x, _ in points), default=1.0)
    left = 0.0 if whole else min((x for x, _ in points), default=0.0)
    frame = _Frame(WIDTH, left, max(right, left + 1e-9), low, 1.0 if whole else max((y for _, y in points), default=1))
    parts = frame.axes(across, up)
    if whole:
        parts.append(f'<path class="guide" d="M{frame.at(0, 0)}L{frame.at(1, 1)}"/>')
    for line in lines:
        if not line.points:
            continue
        path = "L".join(frame.at(x, y) for x, y in line.points)
        dots = "".join('<circle cx="{}" cy="{}" r="2.4"/>'.format(*frame.at(x, y).split(",")) for x, y in line.points)
        parts.append(
            f'<g class="s{line.color % COLORS}"><title>{escape(line.name)}</title><path d="M{path}"/>{dots}</g>'
        )
    return frame.svg(label, parts)


def bar_chart(groups: Sequence[str], bars: Sequence[Bars], *, label: str, up: str) -> str:
    """Return a chart of groups of bars from zero."""
    width = max(WIDTH, min(2 * WIDTH, _LEFT + _RIGHT + len(groups) * max(70, 14 * len(bars))))
    values = [value for bar in bars for value in bar.values if value is not None]
    frame = _Frame(width, 0, len(groups), 0, max(values, default=1))
    parts = frame.axes("", up, numbered=False)
    share = 0.84 / len(bars)
    for number, group in enumerate(groups):
        x, y = frame.at(number + 0.5, 0).split(",")
        parts.append(f'<text class="middle" x="{x}" y="{float(y) + 16:.1f}">{escape(group)}</text>')
        for place, bar in enumerate(bars):
            value = bar.values[number]
            if value is None:
                continue
            begin = number + 0.08 + place * share
            (left, top), (right, bottom) = (
                map(float, frame.at(*corner).split(",")) for corner in ((begin, value), (begin + share, 0))
            )
            parts.append(
                f'<rect class="s{bar.color % COLORS}" x="{left:.1f}" y="{top:.1f}" width="{(right - left) * 0.9:.1f}" '
                f'height="{bottom - top:.1f}"><title>{escape(f"{group}, {bar.name}: {value:.2f}")}</title></rect>'
            )
    return frame.svg(label, parts)


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from `low` to `high`, at most about as many."""
    span = max(high - low, 1e-9)
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


class _Frame:
    """Places data within the axes."""

    def __init__(self, width: int, left: float, right: float, low: float, high: float) -> None:
        self._width = width
        self._left, self._right = left, right
        self._low, self._high = low, high if high > low else low + 1

    def at(self, x: float, y: float) -> str:
        across = _LEFT + (x - self._left) / (self._right - self._left) * (self._width - _LEFT - _RIGHT)
        down = HEIGHT - _BOTTOM - (y - self._low) / (self._high - self._low) * (HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    def axes(self, across: str, up: str, *, numbered: bool = True) -> list[str]:
        parts = []
        for y in round_numbers(self._low, self._high):
            begin, end = self.at(self._left, y), self.at(self._right, y)
            height = float(begin.split(",")[1]) + 4
            parts.append(f'<path class="grid" d="M{begin}L{end}"/>')
            parts.append(f'<text class="end" x="{_LEFT - 6}" y="{height:.1f}">{y:g}</text>')
        for x in round_numbers(self._left, self._right) if numbered else []:
            place = self.at(x, self._low).split(",")[0]
            parts.append(f'<text class="middle" x="{place}" y="{HEIGHT - _BOTTOM + 16}">{x:g}</text>')
        middle = (_LEFT + self._width - _RIGHT) / 2
        parts.append(f'<text class="middle" x="{middle}" y="{HEIGHT - 6}">{escape(across)}</text>')
        parts.append(
            f'<text class="middle" transform="translate(10,{(HEIGHT - _BOTTOM + _TOP) / 2}) rotate(-90)">'
            f"{escape(up)}</text>"
        )
        return parts

    def svg(self, label: str, parts: Sequence[str]) -> str:
        return (
            f'<svg viewBox="0 0 {self._width} {HEIGHT}" style="max-width:{self._width}px" role="img" '
            f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
        )
