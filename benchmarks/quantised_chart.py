"""Draw the chart of quantised weights on a CPU, from cpu-quantised.json.

Top: CPU time of a pass by number of rows. Bottom: tokens per second along recorded outputs, relative to llama.cpp
without drafts.

    python benchmarks/quantised_chart.py -o docs/images/quantised.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
FORMATS = {"q8_0": "8 bits", "q4_0": "4 bits"}
FILES = {"instructcoder": "code edits", "gsm8k": "maths", "cnn": "summaries", "sharegpt": "chat"}
PASSES = {
    "speculant": ("Speculant", "#2463b0"),
    "llama.cpp": ("llama.cpp", "#8a8a8a"),
    "openvino": ("OpenVINO", "#d98a2b"),
}
DECODING = {
    "speculant none": ("Speculant, plain", "#7fb0e8"),
    "speculant mix": ("Speculant, mix", "#2463b0"),
    "speculant mix+base": ("Speculant, mix with a base", "#123c6e"),
    "openvino none": ("OpenVINO, plain", "#f0c99a"),
    "openvino lookup:5": ("OpenVINO, its prompt lookup", "#d98a2b"),
}
BASE = "llama.cpp none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    measured = json.loads((RESULTS / "cpu-quantised.json").read_text())["formats"]
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "quantised", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(options):
        figure = Figure(figsize=(8.2, 6.4), layout="constrained")
        for column, (kind, title) in zip(figure.subplots(2, 2).T, FORMATS.items(), strict=True):
            draw_passes(column[0], measured[kind]["passes"], title)
            draw_decoding(column[1], measured[kind]["forced"])
        figure.savefig(args.out, format="svg", metadata={"Date": None})


def draw_passes(axes: Axes, passes: dict[str, Any], title: str) -> None:
    """Draw a line per system: milliseconds by rows."""
    for system, (label, color) in PASSES.items():
        rows = [int(count) for count in passes[system]]
        axes.plot(rows, [each["cpu"] for each in passes[system].values()], "o-", ms=3, label=label, color=color)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(rows, [str(count) for count in rows])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("milliseconds")
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def draw_decoding(axes: Axes, found: dict[str, Any]) -> None:
    """Draw a group of bars per file: tokens per second relative to llama.cpp without drafts."""
    width = 0.84 / len(DECODING)
    for place, (system, (label, color)) in enumerate(DECODING.items()):
        rates = [{name: run["tokens_per_cpu_second"] for name, run in found[file]["systems"].items()} for file in FILES]
        values = [each[system] / each[BASE] for each in rates]
        left = [i + (place - (len(DECODING) - 1) / 2) * width for i in range(len(FILES))]
        bars = axes.bar(left, values, width, label=label, color=color)
        axes.bar_label(bars, fmt="%.1f", fontsize=6, padding=1)
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(FILES)), list(FILES.values()))
    axes.set_ylabel("times llama.cpp, plain")
    axes.margins(y=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=6.5, ncols=2)


if __name__ == "__main__":
    main()
