"""Time ADED's search on a table as large as the one that the official drafter was measured on.

The table holds 4.6 million tri-grams: text of SPECULANT_DATA in Llama 2 tokens, extended by sampling from its own
n-grams until there are enough distinct tri-grams. Searches start at positions of text that is not in the table.

    python benchmarks/aded_search.py -o benchmarks/results/aded-search.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import sentencepiece
from tqdm import tqdm

from speculant.cli.env import environment
from speculant.core.drafter import Budget, SessionRequest
from speculant.core.tree import Int32
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import AdedDrafter, save_table

TRIGRAMS = 4_610_831
VOCABULARY = 32000


def texts(data: Path, tokenizer: sentencepiece.SentencePieceProcessor) -> tuple[Int32, Int32]:
    """Return the tokens of all texts, and those of the held-out stories used as queries."""
    files = sorted(data.glob("text/prose/*.txt")) + sorted(data.glob("text/code/*.txt"))
    pieces = [np.array(tokenizer.encode(path.read_text(encoding="utf-8")), np.int32) for path in files]
    held_out = pieces.pop(1)
    return np.concatenate(pieces), held_out


def resample(text: Int32, length: int, random: np.random.Generator) -> Int32:
    """Return new text: a random walk over the bi-grams of `text`, which yields tri-grams that never occurred in it."""
    order = np.argsort(text[:-1], kind="stable")
    starts = np.searchsorted(text[:-1][order], np.arange(VOCABULARY + 1))
    walkers = text[random.integers(0, len(text) - 1, 4096)]
    steps = [walkers]
    for _ in range(length // len(walkers)):
        low, high = starts[walkers], starts[walkers + 1]
        chosen = low + (random.random(len(walkers)) * np.maximum(high - low, 1)).astype(np.int64)
        walkers = np.where(high > low, text[order[np.minimum(chosen, len(order) - 1)] + 1], walkers)
        steps.append(walkers)
    return np.stack(steps, axis=1).astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--searches", type=int, default=100_000)
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    tokenizer = sentencepiece.SentencePieceProcessor(str(data / "tokenizers/llama2-32k.model"))
    text, queries = texts(data, tokenizer)

    random = np.random.default_rng(0)
    counter = TrigramCounter(VOCABULARY)
    counter.add(text)
    while (trigrams := counter.trigrams) < TRIGRAMS:
        for row in resample(text, 400_000, random):
            counter.add(row)
    table = counter.table()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.speculant"
        save_table(path, table, tokenizer="", vocabulary=VOCABULARY)
        size = path.stat().st_size
        began = time.perf_counter()
        drafter = AdedDrafter(vocabulary=VOCABULARY)
        drafter.load(path)
        load_seconds = time.perf_counter() - began

        report: dict[str, object] = {
            "environment": environment(),
            "trigrams": trigrams,
            "contexts": len(table.second),
            "successors_with_bigrams": len(table.token),
            "disk_bytes": size,
            "disk_bytes_per_trigram": size / trigrams,
            "load_seconds": load_seconds,
        }
        for nodes in (64, 16):
            report[f"search_{nodes}_nodes"] = measure(drafter, queries, nodes, args.searches)
    print(json.dumps(report, indent=1))
    args.out.write_text(json.dumps(report, indent=1) + "\n")


def measure(drafter: AdedDrafter, queries: Int32, nodes: int, searches: int) -> dict[str, float]:
    """Time searches as a session runs them, learning in between, and track the process's memory."""
    positions = np.random.default_rng(1).integers(2, len(queries) - 2, searches)
    times = np.empty(searches)
    session, budget = drafter.open(SessionRequest(prompt=queries[:2])), Budget(nodes=nodes, depth=nodes)
    for at in positions[:200]:
        drafter.search(int(queries[at - 1]), int(queries[at]), budget)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    drawn = 0
    for i, at in enumerate(tqdm(positions, disable=None)):
        began = time.perf_counter()
        tree = drafter.search(int(queries[at - 1]), int(queries[at]), budget)
        times[i] = time.perf_counter() - began
        drawn += len(tree)
    session.close()
    p50, p99 = np.percentile(times, [50, 99]) * 1e6
    return {
        "searches": searches,
        "mean_nodes": drawn / searches,
        "p50_us": float(p50),
        "p99_us": float(p99),
        "mean_us": float(times.mean() * 1e6),
        "peak_rss_growth_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    }


if __name__ == "__main__":
    main()
