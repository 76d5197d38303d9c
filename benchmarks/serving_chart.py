"""Draw the results of `serving.py`: throughput and latencies by number of clients, one row per target.

python benchmarks/serving_chart.py benchmarks/results/serving.json -o docs/images/serving.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

TITLES = {"bundled": "bundled model, 5.5 M", "inflated": "inflated target, 494 M"}  # row titles
SERIES = {
    "speculant": ("speculant serve", "#2463b0"),
    "plain": ("speculant serve, plain decoding", "#8fb4de"),
    "transformers": ("transformers serve", "#c9c9c9"),
    "transformers-paged": ("transformers serve, continuous batching", "#8a8a8a"),
    "llamacpp": ("llama-server", "#f0c08a"),
    "llamacpp-ngram": ("llama-server, n-grams", "#e0913a"),
    "llamacpp-draft": ("llama-server, draft model", "#a85f12"),
}
PANELS = {
    "tokens_per_cpu_second": "tokens per second of the server's CPU time",
    "time_to_first_token_ms": "time to first token, ms",
    "time_per_output_token_ms": "time per output token, ms",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    draw(json.loads(args.results.read_text()), args.out)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the results; latency bars are medians, and the lines on them extend to the 99th percentile."""
    targets = {name: own["summary"] for name, own in found["targets"].items()}
    with matplotlib.rc_context({"font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(12, 2.9 * len(targets) + 0.3), layout="constrained")
        grid = figure.subplots(len(targets), len(PANELS), squeeze=False)
        for row, (target, summary) in zip(grid, targets.items(), strict=True):
            for axes, (name, label) in zip(row, PANELS.items(), strict=True):
                panel(axes, summary, name)
                axes.set_title(label, fontsize=9)
            row[0].set_ylabel(TITLES[target])
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def panel(axes: Axes, summary: list[dict[str, Any]], name: str) -> None:
    """Draw one metric for all systems."""
    shown = [series for series in SERIES if any(series in row["systems"] for row in summary)]
    width = 0.8 / len(shown)
    for place, series in enumerate(shown):
        label, color = SERIES[series]
        found = [(i, row["systems"][series][name]) for i, row in enumerate(summary) if series in row["systems"]]
        left = [i + (place - (len(shown) - 1) / 2) * width for i, _ in found]
        heights = [value["p50"] if isinstance(value, dict) else value for _, value in found]
        bars = axes.bar(left, heights, width, label=label, color=color)
        if name == "tokens_per_cpu_second":
            axes.bar_label(bars, fmt=number, fontsize=6, padding=2, rotation=90)
            axes.margins(y=0.18)  # room for the labels below the title
        else:
            axes.vlines(left, heights, [value["p99"] for _, value in found], color="#444444", linewidth=0.8)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(number)
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks(round_numbers(*axes.get_ylim()))
    axes.set_xticks(range(len(summary)), [f"{row['clients']} client{'s'[: row['clients'] != 1]}" for row in summary])
    axes.spines[["top", "right"]].set_visible(False)


def number(value: float, _: object = None) -> str:
    """Return a number in three digits, or in whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def round_numbers(low: float, high: float) -> list[float]:
    """Return the numbers 1, 2 and 5 times a power of ten in a range."""
    candidates = [factor * 10.0**power for power in range(-2, 6) for factor in (1, 2, 5)]
    return [each for each in candidates if low <= each <= high]


if __name__ == "__main__":
    main()
