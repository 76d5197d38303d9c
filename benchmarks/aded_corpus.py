"""Compare `aded-paper` with the drafter of ADED's authors on the same corpus: tokens per round on recorded answers.

    python benchmarks/aded_corpus.py -o benchmarks/results/aded-corpus.json

The corpus is the chat data of SPECULANT_DATA/corpora; the recordings are Vicuna's answers on MT-Bench, with the same
tokenizer. Needs draftretriever, which leaks about 0.13 MB per round, hence the limited number of tokens.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from speculant.bench.replay.player import replay
from speculant.bench.replay.traces import Recording, read_recordings
from speculant.bench.systems.peers import OfficialAded
from speculant.core.tree import Int32
from speculant.drafters.aded.corpus import TrigramCounter
from speculant.drafters.aded.drafter import save_table
from speculant.drafters.aded.paper import AdedPaperDrafter
from speculant.engines.hf.tokenizer_files import load_tokenizer_file

VOCABULARY = 32_000
NODES = 64


def documents(data: Path) -> Iterator[Int32]:
    """Yield the answers of the corpus as token ids."""
    tokenizer = load_tokenizer_file(data / "tokenizers" / "llama2-32k.model")
    for path in sorted((data / "corpora").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield np.array(tokenizer.encode(json.loads(line)["output"]), np.int32)


def first(recordings: Iterator[Recording], tokens: int) -> list[Recording]:
    """Return the first recordings, `tokens` output tokens in total; the last one is cut."""
    chosen = list[Recording]()
    for each in recordings:
        chosen.append(Recording(each.prompt, each.output[:tokens]))
        tokens -= len(chosen[-1].output)
        if tokens <= 0:
            break
    return chosen


def main() -> None:
    """Run the comparison and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8000)
    given = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    texts = list(documents(data))
    recordings = first(iter(read_recordings(data / "traces" / "vicuna-7b-mtbench.jsonl")), given.tokens)
    found = {
        "empty table": {"aded-paper": replay(AdedPaperDrafter(vocabulary=VOCABULARY), recordings, nodes=NODES).mat}
    }
    found["empty table"]["draftretriever"] = replay(OfficialAded(), recordings, nodes=NODES).mat
    counter = TrigramCounter(VOCABULARY)
    for text in texts:
        counter.add(text)
    with tempfile.TemporaryDirectory() as folder:
        save_table(Path(folder) / "table", counter.table(), tokenizer="", vocabulary=VOCABULARY)
        ours = AdedPaperDrafter(vocabulary=VOCABULARY, memory_limit=1 << 30)
        ours.load(Path(folder) / "table")
        found["corpus"] = {"aded-paper": replay(ours, recordings, nodes=NODES).mat}
    found["corpus"]["draftretriever"] = replay(OfficialAded(texts), recordings, nodes=NODES).mat
    settings = {"corpus_tokens": counter.tokens, "tokens": given.tokens, "nodes": NODES, "trace": "vicuna-7b-mtbench"}
    given.out.write_text(json.dumps({"settings": settings, "mat": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
