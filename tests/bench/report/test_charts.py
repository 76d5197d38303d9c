"""Charts as SVG."""

from __future__ import annotations

import re
import sys

import pytest

from markup import Balance
from speculant.bench.report.charts import Bars, Line, bar_chart, line_chart
from speculant.core.errors import UnsupportedError

LINES = [Line("a", 0, [(1, 1.0), (2, 3.0)]), Line("b", 14, [])]
BARS = [Bars("a", 0, [2.0, None]), Bars("b", 1, [1.0, 4.25])]


def bars(groups: list[str], **options: float) -> str:
    return bar_chart(groups, BARS, label="l", x_label="speed-up", **options)  # type: ignore[arg-type]


def lines(label: str = "l") -> str:
    return line_chart(LINES, label=label, x_label="x", y_label="y")


def test_a_chart_is_the_same_text_every_time() -> None:
    """Ids and order do not depend on the process, the date or earlier charts."""
    assert lines() == lines()
    assert bars(["f", "g"]) == bars(["f", "g"])
    assert str(__import__("datetime").date.today().year) not in lines()


def test_charts_are_inline_elements_in_the_page_s_colours() -> None:
    """Each is one balanced element without addresses, its colours are variables, and its text is escaped."""
    for svg in (lines("<l>"), bars(["<a>$x$", "g"])):
        reader = Balance()
        reader.feed(svg)
        assert reader.open == []
        assert reader.counts["svg"] == 1
        assert "var(--series-0)" in svg
        assert "#1769aa" not in svg
        assert "<l>" not in svg
        assert "<a>" not in svg
        assert not re.search(r"https?:|url\(\"|@import|<style", svg)
    assert "&lt;a&gt;$x$" in bars(["<a>$x$", "g"])


def test_ids_differ_between_charts() -> None:
    """Two charts of a page must not clip each other."""
    one, other = (set(re.findall(r' id="([^"]*)"', svg)) for svg in (lines("one"), lines("other")))
    assert not one & other


def test_bars_have_values_and_a_reference_line() -> None:
    """Each bar that has a value shows it; the line is drawn where it is asked for."""
    svg = bars(["f", "g"], decimals=1, reference=1.0)
    assert [text for text in ("2.0", "1.0", "4.2") if f">{text}</text>" not in svg] == []
    assert "stroke-dasharray" in svg
    assert "stroke-dasharray" not in bars(["f", "g"])


def test_a_single_group_is_labelled_by_its_bars() -> None:
    """Then no legend is needed."""
    assert ">b</text>" in bar_chart(["f"], [Bars("b", 0, [1.0])], label="l", x_label="x")


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, 0.0), (2, 0.0)]])
def test_charts_of_few_points(points: list[tuple[float, float]]) -> None:
    """One point, none, or all the same still make a chart without warnings."""
    for unit_square in (False, True):
        svg = line_chart([Line("a", 0, points)], label="l", x_label="x", y_label="y", unit_square=unit_square)
        assert "nan" not in svg
    assert "<svg" in bar_chart(["f"], [Bars("a", 0, [None])], label="l", x_label="x")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="pip install jinja2 matplotlib"):
        lines()
