"""REST's datastore: the cost of building one from 100 MB of text, and the cost and benefit of drafting from it.

The text is that of SPECULANT_DATA, cut into pieces of about 2000 characters that are reshuffled for every repetition,
so that all of it occurs several times. `speculant corpus build --kind suffix` sorts it in a separate process, whose
memory is measured and compared with that of the same command on a one-line text. Then a held-out text is committed
token by token. Finally, the first half of each of two trace files is the corpus for the second half.

    python benchmarks/rest_corpus.py -o benchmarks/results/rest-corpus.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from speculant.api.loading import load_tokenizer
from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import read_recordings
from speculant.cli.env import environment
from speculant.cli.loading import silence_loading
from speculant.core.drafter import EMPTY_PATH, Budget, SessionRequest, Verified
from speculant.core.tree import DraftTree
from speculant.drafters.suffix.array import SuffixArrayBuilder
from speculant.drafters.suffix.rest import RestDrafter, save_corpus
from speculant.memory.file import read_header

NODES = 64
HELD_OUT = 5000  # tokens of held-out text
PIECE = 2000
TRACES = {"llama31-8b-gsm8k": 128_256, "llama31-8b-instructcoder": 128_256}  # with their vocabulary sizes
BUILD = "import sys; from speculant.cli.main import main; sys.exit(main(sys.argv[1:]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=100)
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    silence_loading()
    held_out = data / "text" / "tinystories" / "heldout.txt"
    with tempfile.TemporaryDirectory() as folder:
        text, line, corpus = (Path(folder) / name for name in ("text.txt", "line.txt", "corpus.speculant"))
        line.write_text("Once upon a time there was a dog.\n", encoding="utf-8")
        idle = build(line, corpus)
        files = [path for path in sorted((data / "text").rglob("*.txt")) if path != held_out]
        with text.open("w", encoding="utf-8") as file:
            for piece in pieces(files, int(args.megabytes * 1e6)):
                file.write(piece + "\n<|endoftext|>\n")
        built = build(text, corpus)
        figures = {
            "text_bytes": text.stat().st_size,
            "distinct_text_bytes": sum(path.stat().st_size for path in files),
            **built,
            "megabytes_per_second": text.stat().st_size / 1e6 / built["seconds"],
            "peak_rss_above_one_line_bytes": built["peak_rss_bytes"] - idle["peak_rss_bytes"],
            "peak_anonymous_above_one_line_bytes": built["peak_anonymous_bytes"] - idle["peak_anonymous_bytes"],
        }
        proposing = propose(corpus, held_out.read_text(encoding="utf-8"))
    traces = {name: replayed(data / "traces" / f"{name}.jsonl", vocabulary) for name, vocabulary in TRACES.items()}
    report = {"environment": environment(), "build": figures, "propose": proposing, "traces": traces}
    print(json.dumps(report, indent=1))
    args.out.write_text(json.dumps(report, indent=1) + "\n")


def pieces(files: list[Path], size: int) -> Iterator[str]:
    """Yield pieces of the files up to a total size in bytes."""
    texts = [path.read_text(encoding="utf-8", errors="replace").replace("<|endoftext|>", "") for path in files]
    cut = [text[at : at + PIECE] for text in texts for at in range(0, len(text), PIECE)]
    shuffle = random.Random(0).shuffle
    while True:
        shuffle(cut)
        for piece in cut:
            yield piece
            size -= len(piece.encode())
            if size <= 0:
                return


def build(text: Path, corpus: Path) -> dict[str, Any]:
    """Run the command and measure its memory; the system can evict resident pages of files, but not others."""
    began = time.perf_counter()
    command = [sys.executable, "-c", BUILD, "corpus", "build", "--kind", "suffix", "-o", str(corpus), str(text)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks = {"RssAnon:": 0, "VmRSS:": 0}
    while process.poll() is None:
        for words in map(str.split, Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()):
            if words[0] in peaks:
                peaks[words[0]] = max(peaks[words[0]], int(words[1]) << 10)
        time.sleep(0.05)
    assert process.returncode == 0
    assert process.stdout is not None
    facts = {line.split()[0]: line.split()[1] for line in process.stdout.read().splitlines()}
    tokens, size = int(facts["tokens"]), corpus.stat().st_size
    return {
        "tokens": tokens,
        "blocks": int(facts["blocks"]),
        "seconds": time.perf_counter() - began,
        "peak_rss_bytes": peaks["VmRSS:"],
        "peak_anonymous_bytes": peaks["RssAnon:"],
        "file_bytes": size,
        "file_bytes_per_token": size / tokens,
    }


def propose(corpus: Path, text: str) -> dict[str, Any]:
    """Commit a text token by token and time each draft."""
    header, _ = read_header(corpus)
    ids = np.array(load_tokenizer()(text[: 20 * HELD_OUT])["input_ids"], np.int32)[: HELD_OUT + 1]
    drafter = RestDrafter(vocabulary=int(ids.max()) + 1, tokenizer=header["tokenizer"], memory_limit=1 << 40)
    began = time.perf_counter()
    drafter.load(corpus)
    loading = time.perf_counter() - began
    session, budget = drafter.open(SessionRequest(prompt=ids[:1])), Budget(nodes=NODES, depth=NODES)
    micros, nodes, right = [], 0, 0
    for token in ids[1:]:
        began = time.perf_counter()
        tree = session.propose(budget)
        micros.append((time.perf_counter() - began) * 1e6)
        nodes += len(tree)
        right += token in tree.tokens[tree.children(-1)]
        session.observe(Verified(tree=DraftTree.empty(), path=EMPTY_PATH, tokens=np.array([token], np.int32)))
    p50, p99 = np.percentile(micros, [50, 99])
    return {
        "load_seconds": loading,
        "drafts": len(micros),
        "nodes_per_draft": nodes / len(micros),
        "next_token_drafted": right / len(micros),
        "us": {"p50": p50, "p99": p99, "max": max(micros)},
    }


def replayed(path: Path, vocabulary: int) -> dict[str, Any]:
    """Replay the second half of a file, first with an empty memory, then with the first half as the corpus."""
    recordings = list(read_recordings(path))
    half = len(recordings) // 2
    tokenizer = f"ids-{vocabulary}"
    with tempfile.TemporaryDirectory() as folder:
        builder = SuffixArrayBuilder(vocabulary, Path(folder))
        for recording in recordings[:half]:
            builder.add(np.concatenate([recording.prompt, recording.output]))
        save_corpus(Path(folder) / "corpus", builder.blocks(), tokenizer=tokenizer)
        drafters = [RestDrafter(vocabulary=vocabulary, tokenizer=tokenizer) for _ in range(2)]
        drafters[1].load(Path(folder) / "corpus")
        empty, primed = (replay(drafter, recordings[half:], nodes=NODES) for drafter in drafters)
    return {
        "corpus_tokens": builder.tokens,
        "requests": len(recordings) - half,
        "mat_without_corpus": empty.mat,
        "mat_with_corpus": primed.mat,
    }


if __name__ == "__main__":
    main()
