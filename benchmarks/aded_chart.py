"""Draw the charts of docs/aded.md from the raw results: size of the table, changing domains, sampling.

python benchmarks/aded_chart.py -o docs/images
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
BLUE, PALE, GREY, ORANGE, PURPLE = "#2463b0", "#7fb0e8", "#8a8a8a", "#d98a2b", "#b79fd6"
SMOOTHED = 4  # moving average: bins per point of the curve over time, fewer at the start of a domain
DOMAINS = {
    "aded": ("aded", BLUE, "-"),
    "published": ("as published", ORANGE, "-"),
    "draftretriever": ("its authors' code", "black", ":"),
    "published, no adaptation": ("as published, no adaptation", GREY, "-"),
    "published, no corpus": ("as published, no corpus", PURPLE, "-"),
}
MAPS = {
    "aded-paper": "ADED as published",
    "aded": "aded",
    "aded, top_k 0": "aded, text alone",
    "rest": "REST, the same corpus",
    "lookahead": "Lookahead",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder")
    parser.add_argument("--format", default="svg")
    args = parser.parse_args()
    charts: dict[str, Callable[[Figure], None]] = {
        "aded-table": draw_table,
        "aded-domains": draw_domains,
        "aded-sampling": draw_sampling,
    }
    for name, draw in charts.items():
        options: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 9}
        with matplotlib.rc_context(options):
            figure = Figure(figsize=(8.2, 3.4), layout="constrained")
            draw(figure)
            metadata = {"Date": None} if args.format == "svg" else None
            figure.savefig(args.out / f"{name}.{args.format}", metadata=metadata, dpi=120)


def draw_table(figure: Figure) -> None:
    """Draw MAT over the table's bytes, and over the CPU time of a draft."""
    left, right = figure.subplots(1, 2)
    rows = [row for row in read("aded-representative") if "published_bytes" in row]
    curves: tuple[tuple[str, dict[str, Any], str, str], ...] = (
        ("12 successors a row", {"successors": 12, "occurrences": 1, "adaptation": True}, ORANGE, "o-"),
        ("4 successors", {"successors": 4, "occurrences": 1, "adaptation": True}, "#e8b678", "o-"),
        ("1 successor", {"successors": 1, "occurrences": 1, "adaptation": True}, "#f3dcbd", "o-"),
        ("12, tri-grams seen twice", {"occurrences": 2, "adaptation": True}, PURPLE, "s-"),
        ("12, no adaptation", {"successors": 12, "occurrences": 1, "adaptation": False}, GREY, "o--"),
    )
    for label, wanted, color, style in curves:
        chosen = [row for row in rows if wanted.items() <= row.items()]
        sizes = [row["published_bytes"] / 1e6 for row in chosen]
        left.plot(sizes, [row["mat"] for row in chosen], style, ms=4, label=label, color=color)
    left.set_xscale("log")
    left.set_xlabel("MB of the authors' file")
    left.set_title("The table: 0.14 to 9.6 M tokens of chat", fontsize=9, loc="left")
    for row in read("aded-draft-makers"):
        if "maker" in row and "same rows" not in row["maker"]:
            color = BLUE if "best-first" in row["maker"] else ORANGE if "PUCT" in row["maker"] else GREY
            right.plot(row["cpu_us"]["median"], row["mat"], "o", color=color)
            note(right, row["maker"], row["cpu_us"]["median"], row["mat"])
    right.set_xscale("log")
    right.set_xlim(25, 1600)
    right.set_ylim(1.9, 2.25)
    right.set_xlabel("processor time of a draft, µs")
    right.set_title("The draft maker, up to 64 rows", fontsize=9, loc="left")
    for axes in (left, right):
        axes.set_ylabel("tokens per target pass")
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=7)


def note(axes: Axes, text: str, x: float, y: float) -> None:
    """Label a point, on the side where there is room."""
    shift, side = {
        "exhaustive": ((0, -12), "center"),
        "PUCT, published paths": ((5, -11), "center"),
        "PUCT, most visited": ((-5, -3), "right"),
        "PUCT, most visited, 400 iterations": ((5, 6), "center"),
    }.get(text, ((5, -3), "left"))
    axes.annotate(text, (x, y), shift, textcoords="offset points", fontsize=7, ha=side)


def draw_domains(figure: Figure) -> None:
    """Draw MAT over output tokens as the domains change."""
    axes = figure.subplots()
    rows = read("aded-domains")
    width = 250  # output tokens per bin
    for system, (name, color, style) in DOMAINS.items():
        parts = [row for row in rows if row["system"] == system]
        start, named = 0, False
        for part in parts:
            rounds = np.array(part["rounds_by_bin"], float)
            sums = np.append(0, np.cumsum(rounds))
            ends = np.arange(2, len(sums))
            begins = np.maximum(0, ends - SMOOTHED)
            mean = width * (ends - begins) / (sums[ends] - sums[begins])
            at = (start + ends) * width
            axes.plot(at, mean, style, color=color, label=None if named else name, linewidth=1.4)
            start, named = start + len(rounds), True
            if system == "aded":
                axes.axvline(start * width, color="#cccccc", linewidth=0.8)
                axes.text((start - len(rounds) / 2) * width, 4.85, part["segment"], ha="center", fontsize=9)
    axes.set_xlim(0)
    axes.set_ylim(1, 5.1)
    axes.set_xlabel("output tokens")
    axes.set_ylabel(f"tokens per target pass,\nmean of {SMOOTHED * width:,} tokens")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=(0, 0.93))


def draw_sampling(figure: Figure) -> None:
    """Draw a map of MAT by temperature and top-p for each method."""
    rows = [row for row in read("aded-sampling") if row["temperature"]]
    temperatures, top_ps = (sorted({row[name] for row in rows}) for name in ("temperature", "top_p"))
    found = {(row["method"], row["temperature"], row["top_p"]): row["mat"] for row in rows}
    for axes, (method, title) in zip(figure.subplots(1, len(MAPS), sharey=True), MAPS.items(), strict=True):
        mats = np.array([[found[method, each, top_p] for top_p in top_ps] for each in temperatures])
        axes.imshow(mats, vmin=1, vmax=max(found.values()), cmap="Blues", aspect="auto", origin="lower")
        for (i, j), mat in np.ndenumerate(mats):
            dark = mat > 0.6 * max(found.values())
            axes.text(j, i, f"{mat:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
        axes.set_xticks(range(len(top_ps)), [f"{each:g}" for each in top_ps])
        axes.set_yticks(range(len(temperatures)), [f"{each:g}" for each in temperatures])
        axes.set_xlabel("top-p")
        axes.set_title(title, fontsize=9)
    figure.axes[0].set_ylabel("temperature")


def read(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


if __name__ == "__main__":
    main()
