"""A table and a chart in the style of Spec-Bench, of recorded outputs: every method, chains and trees, by kind of task.

Reads the output of `speculant replay ... --chain --tree --nodes auto,... --step-cost FILE --json FILE`. MAT is that of
the largest drafts of a method and shape; the speed-up is that of sizes chosen round by round, as in decoding.

A fixed size beside "auto" is required. With `--corpora`, the page also has the methods that start with a corpus, from
the output of spec_corpora.py.

    python benchmarks/spec_table.py benchmarks/results/spec-table.json -o benchmarks/spec-table.md \
        --chart docs/images/spec-table.svg --corpora benchmarks/results/spec-table-corpora.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

TASKS = {
    "vicuna-7b-mtbench": "MT-Bench",
    "vicuna-7b-alpaca": "instructions",
    "llama31-8b-sharegpt": "chat",
    "llama31-8b-cnn": "summaries",
    "llama31-8b-gsm8k": "maths",
    "llama31-8b-instructcoder": "code edits",
}
NAMES = {"recorded:eagle": "EAGLE-3, as recorded", "recorded:vllm-ngram": "vLLM's n-gram drafter, as recorded"}
PEERS = {"peer:arctic": "Arctic's suffix decoding", "peer:draftretriever": "ADED, its authors' code"}
AUTO = "auto"
SHAPES = {"tree": "#2463b0", "chain": "#d98a2b"}


@dataclass(frozen=True, slots=True)
class Line:
    """A method with drafts of one shape.

    Attributes:
        mats: MAT of the largest drafts, by task.
        speedups: speed-up with automatic sizes, by task; empty if drafting time was not recorded.
        fixed: mean speed-up with the fixed size that is best on average, and that size; None if not recorded.
        nodes: mean automatic size, averaged over tasks.
        draft_us: median microseconds of drafting per round with automatic sizes, pauses included; None if not recorded.
        corpus: name of the corpus that the memory began with; empty for none.
        megabytes: size of its file, averaged over tasks.
    """

    method: str
    shape: str
    mats: Mapping[str, float]
    speedups: Mapping[str, float]
    fixed: tuple[float, int] | None
    nodes: float | None
    draft_us: float | None
    corpus: str = ""
    megabytes: float = 0.0

    @property
    def mean(self) -> float:
        """The mean speed-up, used for sorting; lines without one come last, by MAT."""
        return mean(self.speedups.values()) if self.speedups else mean(self.mats.values()) - 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--chart", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, help="methods that start with a corpus")
    args = parser.parse_args()
    rows = [row for path in args.files for row in json.loads(path.read_text())["rows"]]
    lines = read_lines(rows)
    corpora = None if args.corpora is None else json.loads(args.corpora.read_text())
    args.out.write_text(render(lines, rows, corpora), "utf-8")
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "spec", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(options):
        draw(lines).savefig(args.chart, format="svg", metadata={"Date": None})


def read_lines(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return a line for each method, shape and corpus, fastest first."""
    found = list[Line]()
    keys = [(row["method"], row["shape"], row.get("corpus", "")) for row in rows]
    for method, shape, corpus in dict.fromkeys(keys):
        own = [row for row, key in zip(rows, keys, strict=True) if key == (method, shape, corpus)]
        timed = [row for row in own if row["speedup"] is not None]
        sizes = sorted({row["nodes"] for row in own if row["nodes"] != AUTO})
        automatic = [row for row in timed if row["nodes"] == AUTO]
        means = [(mean([row["speedup"] for row in timed if row["nodes"] == size]), size) for size in sizes if timed]
        found.append(
            Line(
                method,
                shape,
                {row["file"]: row["mat"] for row in own if row["nodes"] == sizes[-1]},
                {row["file"]: row["speedup"] for row in automatic},
                max(means, default=None),
                mean([row["nodes_per_round"] for row in automatic]) if automatic else None,
                mean([row["draft_us"]["p50"] for row in automatic]) if automatic else None,
                corpus,
                mean([row.get("corpus_bytes", 0) for row in automatic or own]) / (1 << 20),
            )
        )
    return sorted(found, key=lambda line: -line.mean)


def render(lines: Sequence[Line], rows: Sequence[Mapping[str, Any]], corpora: Mapping[str, Any] | None = None) -> str:
    """Return the page as Markdown; `corpora` is the output of spec_corpora.py."""
    requests = {row["file"]: row["requests"] for row in rows}
    fixed = sorted({row["nodes"] for row in rows if row["nodes"] != AUTO and row["speedup"] is not None})
    counts = ", ".join(f"{requests[file]} {task}" for file, task in TASKS.items() if file in requests)
    parts = [
        "# Methods by kind of task",
        "",
        "<!-- written by `python benchmarks/spec_table.py` -->",
        "",
        "Recorded outputs of Llama-3.1-8B and Vicuna-7B, replayed in order; memories begin empty and learn from",
        f"request to request ({counts}).",
        "Methods that need the target's logits or a model cannot be replayed; see [methods](methods.md) for those.",
        "",
        "**Speed** is over plain decoding, at the measured costs of passes of a 0.5 B model in bf16 on one CPU thread,",
        "drafting and learning included. Each round has the number of nodes that decoding would choose at these costs;",
        f'"fixed" is the speed with the best limit of {", ".join(map(str, fixed))}, and that limit. Rows of a pass are',
        "dear there; where they are nearly free, as for one request on a GPU, speed comes near MAT.",
        "",
        "![Speed by method](../docs/images/spec-table.svg)",
        "",
        *table(lines, "speed", speeds=True),
        "",
        "**MAT** of the largest drafts, 63 tokens; recorded chains are of 20:",
        "",
        *table(sorted(lines, key=lambda line: -mean(line.mats.values())), "MAT", speeds=False),
        "",
        *(with_corpora(corpora) if corpora else []),
    ]
    return "\n".join(parts)


def with_corpora(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of the section on methods that start with a corpus."""
    rows, builds = report["rows"], report["builds"].values()
    chat, mixed = (span([tokens(each, domain) for each in builds]) for domain in ("chat", None))
    automata = max(row["memory_bytes"] for row in rows if row["method"] == "sam") / (1 << 20)
    return [
        "## With a corpus",
        "",
        "The same requests for methods that can begin with a corpus; their rows without one are above.",
        f"*Chat*, {chat} million tokens by the two tokenizers, is answers of other models to unrelated instructions;",
        f"*mixed*, {mixed} million, adds code, prose and maths. Left out are documents that share 13 tokens with a",
        'recording, and answers to instructions that are replayed. The task closest to *chat* is "instructions": both',
        "are from AlpacaEval.",
        "",
        "`mix` has a frozen base of 64 MB, `rest` a datastore of at most that size; the others hold all of *chat*. MB",
        f"is the file's size, averaged over tasks; `sam` builds automata of up to {automata:.0f} MB from it in memory.",
        "The weights that `mix` begins with were learned on every second request of these recordings, except MT-Bench.",
        *sizes_of_few(rows),
        "",
        *table(read_lines(rows), "speed", speeds=True),
        "",
    ]


def tokens(build: Mapping[str, Any], domain: str | None) -> float:
    """Return the millions of tokens of a domain of the corpora; None for all domains."""
    counts: Mapping[str, int] = build["tokens"]
    return (sum(counts.values()) if domain is None else counts[domain]) / 1e6


def span(values: Sequence[float]) -> str:
    """Return the smallest and the largest value, once if they are equal."""
    return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values))))


def sizes_of_few(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on methods for which fewer fixed sizes were tried."""
    tried = dict[str, set[int]]()
    for row in rows:
        if row["nodes"] != AUTO:
            tried.setdefault(row["method"], set()).add(row["nodes"])
    most = max(map(len, tried.values()), default=0)
    return [
        f"Of {label(method)}, the limits {' and '.join(map(str, sorted(sizes)))} were tried."
        for method, sizes in tried.items()
        if len(sizes) < most
    ]


def table(lines: Sequence[Line], title: str, *, speeds: bool) -> list[str]:
    """Return the lines of a Markdown table, with the corpora and MAT if there are corpora."""
    corpora = any(line.corpus for line in lines)
    headings = ["method", "draft", *(["corpus", "MB"] if corpora else [])]
    headings += [*(["nodes", "draft us", "fixed"] if speeds else []), *(["mean MAT"] if corpora else [])]
    headings += [f"mean {title}", *TASKS.values()]
    found = [f"| {' | '.join(headings)} |", "|" + " --- |" * len(headings)]
    for line in lines:
        values = line.speedups if speeds else line.mats
        if not values:
            continue
        cells = [label(line.method), line.shape, *([line.corpus, f"{line.megabytes:.0f}"] if corpora else [])]
        if speeds:
            fixed = "-" if line.fixed is None else "{:.2f} ({})".format(*line.fixed)
            cells += [f"{line.nodes:.1f}", f"{line.draft_us:.0f}", fixed]
        cells += [middle(line.mats)] if corpora else []
        mark = middle(values)
        cells += [mark if mark == "-" else f"**{mark}**"]
        cells += [f"{values[file]:.2f}" if file in values else "-" for file in TASKS]
        found.append(f"| {' | '.join(cells)} |")
    return found


def middle(values: Mapping[str, float]) -> str:
    """Return the mean over all tasks, or a dash if some are missing."""
    return f"{mean(values.values()):.2f}" if len(values) == len(TASKS) else "-"


def draw(lines: Sequence[Line]) -> Figure:
    """Return the chart: mean speed-up of each method with trees and chains, with its worst and best task."""
    timed = [line for line in lines if line.speedups]
    methods = list(dict.fromkeys(line.method for line in timed))[::-1]
    figure = Figure(figsize=(8.2, 0.42 * len(methods) + 1.2), layout="constrained")
    axes = figure.subplots()
    for shape, color in SHAPES.items():
        own = [line for line in timed if line.shape == shape]
        middle = [line.mean for line in own]
        spread = [
            [value - min(line.speedups.values()) for value, line in zip(middle, own, strict=True)],
            [max(line.speedups.values()) - value for value, line in zip(middle, own, strict=True)],
        ]
        shift, above = (0.16, 4) if shape == "tree" else (-0.16, -11)
        places = [methods.index(line.method) + shift for line in own]
        axes.errorbar(middle, places, xerr=spread, fmt="o", color=color, label=f"{shape}s", capsize=2, linewidth=1)
        for value, place in zip(middle, places, strict=True):
            axes.annotate(
                f"{value:.2f}", (value, place), (0, above), textcoords="offset points", ha="center", fontsize=7
            )
    axes.axvline(1.0, color="#444444", linewidth=0.8)
    axes.set_yticks(range(len(methods)), [label(method).replace("`", "") for method in methods])
    axes.set_xlabel("speed over plain decoding: mean, and the worst and best task")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def label(method: str) -> str:
    """Return the name of a method in the table."""
    return NAMES.get(method) or PEERS.get(method) or f"`{method}`"


if __name__ == "__main__":
    main()
