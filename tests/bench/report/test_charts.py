"""Charts as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart, round_numbers


def numbers(svg: str, tag: str, name: str) -> list[float]:
    return [float(element.get(name, "nan")) for element in ElementTree.fromstring(svg).iter(tag)]


def test_lines_stay_within_the_frame() -> None:
    """Every point is drawn inside the picture, higher values higher up, and text is escaped."""
    svg = line_chart([Line("<a>", 0, [(1, 1.0), (2, 3.0)]), Line("b", 14, [])], label="<l>", across="x", up="y")
    xs, ys = numbers(svg, "circle", "cx"), numbers(svg, "circle", "cy")
    assert 0 <= min(xs) < max(xs) <= 460
    assert 0 <= ys[1] < ys[0] <= 280
    assert "<a>" not in svg


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, 0.0), (2, 0.0)]])
def test_charts_of_little(points: list[tuple[float, float]]) -> None:
    """One point, none, or all the same still make a chart."""
    for whole in (False, True):
        svg = line_chart([Line("a", 0, points)], label="l", across="x", up="y", whole=whole)
        assert len(numbers(svg, "circle", "cx")) == len(points)
        assert "nan" not in svg


def test_bars() -> None:
    """Bars stand on the axis, their heights are in proportion, and what is missing has none."""
    svg = bar_chart(["f", "g"], [Bars("a", 0, [2.0, None]), Bars("b", 1, [1.0, 4.0])], label="l", up="y")
    heights = numbers(svg, "rect", "height")
    assert heights == pytest.approx([115, 57.5, 230], abs=0.1)
    feet = [y + height for y, height in zip(numbers(svg, "rect", "y"), heights, strict=True)]
    assert feet == pytest.approx([240] * 3, abs=0.11)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1, 3.2, [1, 1.5, 2, 2.5, 3]), (0, 150, [0, 50, 100, 150])],
)
def test_axes_have_round_numbers(low: float, high: float, found: list[float]) -> None:
    """Steps of one, two or five."""
    assert round_numbers(low, high) == pytest.approx(found)
