"""Draw the README's chart: mean accepted tokens per target pass on recorded outputs, from the raw replay results.

python benchmarks/chart.py -o docs/images/mat.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
FILES = {
    "llama31-8b-instructcoder": "code edits",
    "llama31-8b-gsm8k": "maths",
    "llama31-8b-cnn": "summaries",
    "llama31-8b-sharegpt": "chat",
    "vicuna-7b-mtbench": "MT-Bench",
    "vicuna-7b-alpaca": "instructions",
}
SERIES = {
    "mix": ("mix (Speculant, no training)", "#2463b0"),
    "peer:arctic": ("Arctic suffix decoding", "#8a8a8a"),
    "peer:draftretriever": ("ADED, its authors' code", "#c9c9c9"),
    "recorded:eagle": ("EAGLE (trained head)", "#d98a2b"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    rows = [row for name in ("replay-mix", "replay-peers") for row in read(name)]
    mat = {(row["file"], row["method"]): row["mat"] for row in rows}
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "mat", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(options):
        figure = Figure(figsize=(8.2, 3.1), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(SERIES)
        for place, (method, (label, color)) in enumerate(SERIES.items()):
            found = [(i, mat[file, method]) for i, file in enumerate(FILES) if (file, method) in mat]
            left = [i + (place - (len(SERIES) - 1) / 2) * width for i, _ in found]
            bars = axes.bar(left, [value for _, value in found], width, label=label, color=color)
            axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
        axes.axhline(1.0, color="#444444", linewidth=0.8)
        axes.text(-0.62, 1.04, "plain", fontsize=7, ha="left", color="#444444")
        axes.set_ylim(0, 4.7)
        axes.set_xlim(-0.65, len(FILES) - 0.4)
        axes.set_xticks(range(len(FILES)), list(FILES.values()))
        axes.set_ylabel("tokens per target pass")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, ncols=2)
        figure.savefig(args.out, format="svg", metadata={"Date": None})


def read(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


if __name__ == "__main__":
    main()
