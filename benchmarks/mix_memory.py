"""Speed and size of `mix` with many tokens in memory: it learns synthetic text, then recorded outputs are replayed.

The text is a Markov chain in which every token has its own successors with Zipf-distributed frequencies, so that
n-grams repeat as in real text. The memory limit is 24 bytes per token. Then the gsm8k traces are replayed at 64 and 16
nodes.
With --base, `mix` also uses a frozen base for the tokenizer of the traces.

    python benchmarks/mix_memory.py --tokens 50000000 -o benchmarks/results/mix-memory.json
    python benchmarks/mix_memory.py --base FILE -o benchmarks/results/mix-memory-base.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import read_recordings
from speculant.cli.env import environment
from speculant.core.drafter import SessionRequest
from speculant.drafters.mix.base import MixBase, read_base
from speculant.drafters.mix.drafter import MixDrafter
from speculant.memory.file import read_header

VOCABULARY = 128_256
BYTES_PER_TOKEN = 24
DOCUMENT = 100_000


@njit(cache=True)
def chain(length: int, seed: int, vocabulary: int) -> NDArray[np.int32]:
    """Return Int32[length], a sample of the chain."""
    np.random.seed(seed)
    text = np.empty(length, np.int32)
    state = np.uint64(seed)
    for i in range(length):
        rank = np.uint64(min(np.random.zipf(1.3), 1 << 30))
        state = (state * np.uint64(31) + rank) * np.uint64(0x9E3779B97F4A7C15)
        text[i] = np.int64((state >> np.uint64(33)) % np.uint64(vocabulary))
        state = np.uint64(text[i])
    return text


def opened(path: Path) -> MixBase:
    """Open a base with this vocabulary size, whatever its tokenizer."""
    return read_base(path, vocabulary=VOCABULARY, tokenizer=read_header(path)[0]["tokenizer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--base", type=Path, help="a frozen base for the tokenizer of the traces")
    args = parser.parse_args()
    limit = BYTES_PER_TOKEN * args.tokens
    bases = [opened(args.base)] if args.base else []
    drafter = MixDrafter(vocabulary=VOCABULARY, memory_limit=limit, bases=bases)
    traces = Path(os.environ["SPECULANT_DATA"]) / "traces" / "llama31-8b-gsm8k.jsonl"
    recordings = list(read_recordings(traces))
    replay(drafter, recordings[:2], nodes=64)
    seconds, maximum = 0.0, 0
    for seed in range(args.tokens // DOCUMENT):
        text = chain(DOCUMENT, seed, VOCABULARY)
        began = time.perf_counter()
        drafter.open(SessionRequest(prompt=text)).close()
        seconds += time.perf_counter() - began
        maximum = max(maximum, drafter.memory_bytes)
    figures = {
        "tokens": args.tokens,
        "limit_bytes": limit,
        "base_bytes": sum(base.path.stat().st_size for base in bases),
        "max_memory_bytes": maximum,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "learn_us_per_prompt_token": seconds / args.tokens * 1e6,
    }
    for nodes in (64, 16):
        played = replay(drafter, recordings, nodes=nodes)
        assert played.drafting is not None  # only replays of recorded acceptance have none
        micros = played.drafting.propose_seconds * 1e6
        figures[f"propose_us_at_{nodes}"] = {"p50": np.percentile(micros, 50), "p99": np.percentile(micros, 99)}
        figures[f"mat_at_{nodes}"] = played.mat
    print(json.dumps(figures, indent=1))
    args.out.write_text(json.dumps({"environment": environment(), "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
