"""Measure batches with drafts against plain ones: tokens per CPU second, on fresh texts and on those the memory knows.

Greedy continuations of held-out stories by the bundled model, at several batch sizes; requests join as others end. Both
sides run in one process and take turns of a tenth of a second. All times, including those by which sizes are chosen,
are CPU time of the process. Prompts are new in each repetition (`fresh`) and then asked a second time (`known`). Texts
of both sides must be the same.

    OMP_NUM_THREADS=1 python benchmarks/batch_drafts.py -o benchmarks/results/batch-drafts.json

With `--before`, another version of the source runs the same requests in a process of its own, in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from serving_turns import LENGTHS
from versions import VersionProcess

SIZES = (1, 4, 16, 64)
SIDES, KINDS = ("none", "mix"), ("fresh", "known")
TOKENS, SHORTEST = 64, 8
SLICE = 0.1  # seconds of a turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--before", type=Path, help="the `src` folder of an earlier version")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--requests", type=int, default=2, help="per text of the batch; at least eight in all")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--method", default=SIDES[1])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.method)
        return
    from stories import cut_prompts

    sources = {"before": args.before} if args.before else {}
    sources["after"] = Path(__file__).resolve().parents[1] / "src"
    prompts = iter(cut_prompts(Path(os.environ["SPECULANT_DATA"]) / "text/tinystories", count=5000))
    cells = list[dict[str, Any]]()
    for size in map(int, args.sizes.split(",")):
        workers = {
            name: VersionProcess(__file__, source, "--worker", "--method", args.method)
            for name, source in sources.items()
        }
        count = max(SHORTEST, args.requests * size)
        for repetition in range(-1, args.repetitions):
            asked = [next(prompts) for _ in range(size if repetition < 0 else count)]
            for kind in KINDS:
                names = [*workers][:: 1 if repetition % 2 else -1]
                found = {name: json.loads(workers[name].ask(json.dumps([size, asked]))) for name in names}
                if repetition >= 0:
                    cells += [
                        {"size": size, "kind": kind, "repetition": repetition, "version": name, **found[name]}
                        for name in workers
                    ]
        for worker in workers.values():
            worker.close()
        print("\n".join(described(summary(cells), size)), flush=True)
        if args.out is not None:
            facts = {"tokens": TOKENS, "lengths": LENGTHS, "requests": args.requests, "clock": "process_time"}
            args.out.write_text(json.dumps(facts | {"summary": summary(cells), "cells": cells}, indent=1) + "\n")


def serve(method: str) -> None:
    """Decode the requests that standard input names on both sides, which keep their memories."""
    import torch

    import speculant
    from speculant import Speculator
    from speculant.api.loading import load_model

    torch.set_num_threads(1)
    model, tokenizer = load_model(None)
    plain = Speculator.from_transformers(model, tokenizer, method=SIDES[0])
    drafted = Speculator.from_transformers(model, tokenizer, method=method, fast=plain.fast)
    print(Path(speculant.__file__).parent, flush=True)
    for turn, line in enumerate(sys.stdin):
        size, prompts = json.loads(line)
        sides = [Side(speculator, size, prompts) for speculator in (plain, drafted)]
        while any(side.left for side in sides):
            for side in sides[:: 1 if turn % 2 else -1]:
                side.run(SLICE)
        one, other = sides
        if one.texts != other.texts:
            raise RuntimeError("the texts differ.")
        print(json.dumps({name: side.figures() for name, side in zip(SIDES, sides, strict=True)}), flush=True)


class Side:
    """A batch and the CPU seconds of its steps."""

    def __init__(self, speculator: Any, size: int, prompts: Sequence[str]) -> None:
        from speculant.api.batch import Batch

        speculator.probe(size)
        parts = speculator.parts(size)
        clocks = [each.name for each in fields(parts) if each.name in ("clock", "work_clock")]  # one in older versions
        parts = replace(parts, **dict.fromkeys(clocks, time.process_time))
        self._batch = Batch(speculator.prepare, parts, speculator.engine, size=size)
        lengths = [round(TOKENS * LENGTHS[place % len(LENGTHS)]) for place in range(len(prompts))]
        self._generations = [
            self._batch.add(prompt, max_new_tokens=length, temperature=0)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        self._seconds = 0.0

    @property
    def left(self) -> bool:
        """Whether texts remain to be decoded."""
        return len(self._batch) > 0

    @property
    def texts(self) -> list[list[int]]:
        """The tokens of each text."""
        return [list(generation.result.ids) for generation in self._generations]

    def run(self, seconds: float) -> None:
        """Decode for about so many CPU seconds."""
        began = time.process_time()
        while self.left and time.process_time() - began < seconds:
            self._batch.step()
        self._seconds += time.process_time() - began

    def figures(self) -> dict[str, Any]:
        """Return tokens, seconds and counts."""
        stats = self._batch.stats
        return {
            "tokens": stats.tokens,
            "seconds": round(self._seconds, 4),
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "draft_seconds": round(stats.draft_seconds, 4),
            "target_seconds": round(stats.target_seconds, 4),
        }


def summary(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ratios of tokens per second with drafts to those without, and the milliseconds of rounds, by case."""
    found = []
    for key in dict.fromkeys((cell["size"], cell["kind"], cell["version"]) for cell in cells):
        own = [cell for cell in cells if (cell["size"], cell["kind"], cell["version"]) == key]
        ratios = [cell["none"]["seconds"] / cell["mix"]["seconds"] for cell in own]
        found.append(
            {
                "size": key[0],
                "kind": key[1],
                "version": key[2],
                "ratio": round(median(ratios), 4),
                "spread": [round(min(ratios), 4), round(max(ratios), 4)],
                "tokens_per_second": {
                    side: round(median(cell[side]["tokens"] / cell[side]["seconds"] for cell in own), 1)
                    for side in SIDES
                },
                "tokens_per_round": {side: total(own, side, "tokens") for side in SIDES},
                "drafted_per_round": total(own, "mix", "drafted"),
                "ms_per_round": {
                    side: {
                        name: round(1e3 * total(own, side, f"{name}_seconds", digits=7), 3)
                        for name in ("draft", "target")
                    }
                    for side in SIDES
                },
            }
        )
    return found


def total(cells: Sequence[dict[str, Any]], side: str, name: str, *, digits: int = 3) -> float:
    """Return a figure per round over all repetitions."""
    rounds: int = sum(cell[side]["rounds"] for cell in cells)
    figure: float = sum(cell[side][name] for cell in cells) / rounds
    return round(figure, digits)


def described(rows: Sequence[dict[str, Any]], size: int) -> list[str]:
    """Return lines about one batch size."""
    return [
        f"{row['size']:3} {row['kind']} {row['version']:6} {row['ratio']:.3f} {row['spread']} "
        f"{row['tokens_per_second']} {row['ms_per_round']} {row['drafted_per_round']}"
        for row in rows
        if row["size"] == size
    ]


if __name__ == "__main__":
    main()
