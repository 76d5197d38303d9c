"""Draw a chart of the figures: mean accepted tokens per target pass on recorded outputs, from the raw results.

Trees and chains have a panel each, since different engines verify them. The recorded acceptance is of chains.

python benchmarks/chart.py -o docs/images/mat.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
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
REPLAYS = ("replay-mix", "replay-peers", "replay-chains", "replay-united")
BASE = "mix, chat 64 MB"  # the base that was measured on the recordings of both models
UNITED = "mix+recorded:eagle"
SERIES = {
    "mix": ("mix (Speculant, no training)", "#2463b0"),
    BASE: ("mix above a base of other models' chat", "#7fb0e8"),
    "peer:arctic": ("Arctic suffix decoding", "#8a8a8a"),
    "peer:draftretriever": ("ADED, its authors' code, empty at first", "#d9d9d9"),
    "official aded, chat": ("the same, beginning with that chat", "#b79fd6"),
    UNITED: ("mix and EAGLE-3, as recorded, in one draft", "#3f9c6d"),
    "recorded:eagle": ("EAGLE-3 (trained head), recorded on vLLM", "#d98a2b"),
}
PANELS = (
    ("tree", 64, ("mix", BASE, "peer:arctic", "peer:draftretriever", "official aded, chat", UNITED)),
    ("chain", 20, ("mix", BASE, "peer:arctic", "recorded:eagle", UNITED)),
)
Mats = Mapping[tuple[str, str, str, int], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "mat", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(options):
        figure = Figure(figsize=(8.2, 5.6), layout="constrained")
        for axes, panel in zip(figure.subplots(2, 1), PANELS, strict=True):
            draw(axes, mats(), *panel)
        figure.savefig(args.out, format="svg", metadata={"Date": None})


def mats() -> Mats:
    """Return MAT by file, series, shape and nodes."""
    replayed = [row for name in REPLAYS for row in read(name)]  # rows without a shape are trees, here of 64 nodes
    based = [row for name in ("mix-base", "chains") for row in read(name)]
    found = {(row["file"], row["method"], row.get("shape", "tree"), row["nodes"]): row["mat"] for row in replayed}
    return found | {
        (row["recording"], row["system"], row.get("shape", "tree"), row.get("nodes", 64)): row["mat"] for row in based
    }


def draw(axes: Axes, found: Mats, shape: str, nodes: int, series: tuple[str, ...]) -> None:
    """Draw one panel: a group of bars per file."""
    width = 0.84 / len(series)
    for place, method in enumerate(series):
        label, color = SERIES[method]
        known = [(i, found[key]) for i, file in enumerate(FILES) if (key := (file, method, shape, nodes)) in found]
        left = [i + (place - (len(series) - 1) / 2) * width for i, _ in known]
        bars = axes.bar(left, [value for _, value in known], width, label=label, color=color)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.text(-0.62, 1.04, "plain", fontsize=7, ha="left", color="#444444")
    axes.set_ylim(0, 6.6)
    axes.set_xlim(-0.65, len(FILES) - 0.4)
    axes.set_xticks(range(len(FILES)), list(FILES.values()))
    axes.set_ylabel("tokens per target pass")
    of = {"tree": "Drafts are trees of up to 64 tokens", "chain": "Drafts are chains of up to 20 tokens, as in vLLM"}
    axes.set_title(of[shape], fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=2)


def read(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


if __name__ == "__main__":
    main()
