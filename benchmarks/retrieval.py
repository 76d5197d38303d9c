"""Compare speculative retrieval (RaLMSpec) with a search before every interval, with three retrievers.

    OMP_NUM_THREADS=1 python benchmarks/retrieval.py -o benchmarks/results/retrieval.json

The bundled model continues held-out stories of SPECULANT_DATA; the collection is its training stories, cut to passages.
The three procedures answer each question alternately, in wall-clock time, since verification runs in parallel with
decoding. Vectors are random projections of weighted words, in place of an encoder's; `--vectors` adds random ones that
no query matches, so that an exact search takes as long as in a larger collection. For each retriever, the time of a
search is reported relative to a plain answer, since every gain depends on it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from speculant.api.speculator import Speculator
from speculant.options.retrieval import RetrievalOptions
from speculant.options.sampling import SamplingOptions
from speculant.retrieval.bm25 import Bm25Retriever
from speculant.retrieval.dense import DenseRetriever, GraphRetriever
from speculant.retrieval.generation import RetrievalGenerator, RetrievalResult
from speculant.retrieval.retriever import split_passages

WAYS = {
    "each time": RetrievalOptions(sequential=True),
    "guessed, in turn": RetrievalOptions(in_turn=True),
    "guessed, beside": RetrievalOptions(),
}


class WordVectors:
    """Unit vectors Float32[N, D] of texts: sums of the words' random vectors, weighted by the words' rarity."""

    def __init__(self, texts: Sequence[str], size: int) -> None:
        self._counts = Counter(word for text in texts for word in set(words_of(text)))
        self._texts, self._size = len(texts), size
        self._known: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        vectors = np.array([sum(map(self._vector, words_of(text)), np.zeros(self._size)) for text in texts])
        return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)).astype(np.float32)

    def _vector(self, word: str) -> Any:
        if word not in self._known:
            seed = int.from_bytes(word.encode()[:8].ljust(8, b" "), "little")
            rarity = np.log(self._texts / (1 + self._counts[word]))
            self._known[word] = rarity * np.random.default_rng(seed).normal(size=self._size)
        return self._known[word]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per answer")
    parser.add_argument("--vectors", type=int, default=100_000, help="vectors of the dense collections")
    parser.add_argument("--retrievers", nargs="+", default=["dense", "graph", "bm25"])
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"]) / "text" / "tinystories"
    stories = "\n\n".join((data / f"train-{part}.txt").read_text("utf-8") for part in "ab")
    passages = split_passages(stories.replace("<|endoftext|>", ""), 100)
    held_out = (data / "heldout.txt").read_text("utf-8").split("<|endoftext|>")
    questions = [re.split(r"(?<=[.!?])\s", story.strip())[0] for story in held_out if story.strip()][: args.questions]
    speculator = Speculator.from_pretrained()
    found: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"retrievers": {}}
    found["conditions"] = {
        "model": "bundled",
        "method": "mix",
        "questions": len(questions),
        "tokens": args.tokens,
        "passages": len(passages),
        "vectors": args.vectors,
        "interval": 4,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    for name in args.retrievers:
        if name in found["retrievers"]:
            continue
        retriever = open_retriever(name, passages, args.vectors)
        found["retrievers"][name] = measure(speculator, retriever, questions, args.tokens)
        args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(name, json.dumps(found["retrievers"][name]), flush=True)


def words_of(text: str) -> list[str]:
    """Return the lower-case words of a text."""
    return re.findall(r"\w\w+", text.lower())


def open_retriever(name: str, passages: list[str], vectors: int) -> Any:
    """Return a retriever over the passages; dense collections also hold random vectors."""
    if name == "bm25":
        return Bm25Retriever(passages)
    encode = WordVectors(passages, 384)
    others = np.random.default_rng(0).normal(size=(max(vectors - len(passages), 0), 384)).astype(np.float32)
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    every = np.concatenate([encode(passages), others])
    kind = DenseRetriever if name == "dense" else GraphRetriever
    return kind([*passages, *[""] * len(others)], encode, vectors=every)


def measure(speculator: Speculator, retriever: Any, questions: Sequence[str], tokens: int) -> dict[str, Any]:
    """Answer all questions in three ways, alternating; return times, counts and the number of different answers."""
    sampling = SamplingOptions(max_new_tokens=tokens)
    generators = {way: RetrievalGenerator(speculator, retriever, options) for way, options in WAYS.items()}
    for generator in generators.values():
        generator.generate("Once upon a time there was a fox.", sampling)
    results: dict[str, list[RetrievalResult]] = {way: [] for way in WAYS}
    differing = 0
    for place, question in enumerate(questions):
        turn = list(WAYS)
        turn = turn[place % 3 :] + turn[: place % 3]
        for way in turn:
            results[way].append(generators[way].generate(question, sampling))
        answers = {(tuple(found[-1].ids), tuple(found[-1].documents)) for found in results.values()}
        differing += len(answers) > 1
    plain = sum(each.stats.seconds for each in results["each time"])
    searching = sum(each.stats.search_seconds for each in results["each time"])
    summary: dict[str, Any] = {"differing answers": differing, "searching, of plain time": round(searching / plain, 3)}
    for way, found in results.items():
        totals = Counter[str]()
        for each in found:
            totals.update(asdict(each.stats))
        summary[way] = {name: round(value, 3) for name, value in totals.items()}
        summary[way]["speedup"] = round(plain / totals["seconds"], 3)
    return summary


if __name__ == "__main__":
    main()
