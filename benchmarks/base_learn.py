"""Measure bases built from the target's own outputs, by size, and in addition to a base of other models' texts.

    python benchmarks/base_learn.py --llama3 FILE -o benchmarks/results/base-learn.json [--folder DIR]

The target is Llama-3.1-8B as recorded in SPECULANT_DATA. The first, third, ... requests of every task, prompts
included, serve as its own text; the others are replayed. The texts of other models are those of mix_corpora.py, all of
them or only the first chat answers. FILE is Llama 3's tokenizer.model, as shipped in the package `llama-models`;
reading it needs `tiktoken`. Bases are cached in `--folder`, and replay results in the output file.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mix_base import BUDGET, SHAPES, Played, built_base, trained
from mix_corpora import LLAMA3, VOCABULARIES, Tokens, encoded, excluded, llama3_encoder
from speculant.bench.replay.traces import read_recordings
from speculant.cli.env import environment
from speculant.drafters.mix.base import MixBase, read_base
from speculant.drafters.mix.drafter import MixDrafter

VOCABULARY = VOCABULARIES["llama3"]
SIZES = (10_000, 30_000, 100_000)
Bases = Sequence[MixBase]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--llama3", type=Path, required=True, help="Llama 3's tokenizer.model")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="cache for the bases that are built")
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    recordings = {name: list(read_recordings(data / "traces" / f"{name}.jsonl")) for name in LLAMA3}
    order = np.random.default_rng(0)
    written = [each for recorded in recordings.values() for each in recorded[::2]]
    written = [written[place] for place in order.permutation(len(written))]
    held_out = {name: recorded[1::2] for name, recorded in recordings.items()}
    rows: list[dict[str, Any]] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []

    def play(system: str, bases: Bases, tokens: int) -> None:
        if any(row["system"] == system and row["tokens"] == tokens for row in rows):
            return
        for name, recorded in held_out.items():
            for shape, nodes in SHAPES:
                played = Played(MixDrafter(vocabulary=VOCABULARY, bases=bases))
                played.play(recorded, shape, nodes)
                rows.append({"system": system, "recording": name, "shape": shape, "tokens": tokens, **played.figures()})
            print(system, name, [round(row["mat"], 3) for row in rows[-len(SHAPES) :]], flush=True)
        found = {"environment": environment(), "requests": {name: len(each) for name, each in held_out.items()}}
        args.out.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        play("no base", [], 0)
        texts = [np.concatenate([each.prompt, each.output]) for each in written]
        for size in SIZES:
            fewer = first_texts(texts, size)
            play("own", [base_of(folder / f"own-{size}", {"chat": fewer})], total(fewer))
        own = base_of(folder / "own-all", {"chat": texts})
        play("own", [own], total(texts))
        answers = [each.output for each in written]
        play("own, without prompts", [base_of(folder / "own-answers", {"chat": answers})], total(answers))
        corpora = encoded(data, llama3_encoder(args.llama3), excluded(recordings))
        for size in (SIZES[-1], total(texts)):
            fewer = first_texts(corpora["chat"], size)
            play("others", [base_of(folder / f"others-{size}", {"chat": fewer})], total(fewer))
        others, tokens = base_of(folder / "others", corpora), sum(map(total, corpora.values()))
        play("others", [others], tokens)
        play("both", [own, others], tokens + total(texts))
        play("both, own's network", [own, replace(others, scorer=None)], tokens + total(texts))
        one = base_of(folder / "one", {**corpora, "chat": [*texts, *corpora["chat"]]})
        play("one base of both", [one], tokens + total(texts))


def total(texts: Sequence[Tokens]) -> int:
    """Return the total number of tokens."""
    return sum(map(len, texts))


def first_texts(texts: Sequence[Tokens], size: int) -> list[Tokens]:
    """Return the first texts, until they have at least `size` tokens in total."""
    ends = np.cumsum([len(ids) for ids in texts])
    return list(texts[: int(np.searchsorted(ends, size)) + 1])


def base_of(path: Path, corpora: dict[str, list[Tokens]]) -> MixBase:
    """Return a base of the usual size, building it unless it exists."""
    if not path.exists():
        built_base(path, corpora, VOCABULARY, BUDGET, trained)
    return read_base(path, vocabulary=VOCABULARY, tokenizer="")


if __name__ == "__main__":
    main()
