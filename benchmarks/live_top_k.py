"""Measure what the target's top-k tokens add to `mix` in live decoding, with and without a base; replays lack them.

Greedy continuations of the beginnings of held-out stories by two small real models; the memory is initially empty and
kept across prompts. The base is built from the training text. Every run must yield the texts of plain decoding.

    OMP_NUM_THREADS=1 python benchmarks/live_top_k.py -o benchmarks/results/live-top-k.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from speculant import Speculator
from speculant.api.loading import bundled_model
from speculant.cli.env import environment
from speculant.cli.main import main as speculant
from speculant.drafters.mix.drafter import MixSettings
from stories import cut_prompts

TOKENS = 100
NODES = (16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    prompts = cut_prompts(data / "text/tinystories", count=args.prompts)
    rows: list[dict[str, Any]] = []
    for name, folder in {"bundled": bundled_model(), "stories260K": data / "models/stories260K"}.items():
        with tempfile.TemporaryDirectory() as scratch:
            base = built(folder, data / "text/tinystories", Path(scratch) / "base.speculant")
            plain = Speculator.from_pretrained(str(folder), method="none")
            texts = [plain.generate(prompt, max_new_tokens=TOKENS, temperature=0).ids for prompt in prompts]
            for nodes in NODES:
                for used in (None, base):
                    for top_k in (0, MixSettings().top_k):
                        row = {"model": name, "nodes": nodes, "base": used is not None, "top_k": top_k}
                        rows.append(row | decoded(folder, prompts, texts, nodes=nodes, base=used, top_k=top_k))
                        print(json.dumps(rows[-1]), file=sys.stderr)
    settings = {"prompts": len(prompts), "tokens": TOKENS}
    args.out.write_text(json.dumps({"environment": environment(), "settings": settings, "rows": rows}, indent=1) + "\n")


def built(model: Path, stories: Path, out: Path) -> Path:
    """Build a base of the training text and return its path."""
    texts = [str(stories / "train-a.txt"), str(stories / "train-b.txt")]
    if code := speculant(
        ["corpus", "build", "--kind", "mix-base", "--budget", "3500kB", "--model", str(model), "-o", str(out), *texts]
    ):
        raise SystemExit(code)
    return out


def decoded(
    model: Path, prompts: list[str], texts: list[list[int]], *, nodes: int, base: Path | None, top_k: int
) -> dict[str, Any]:
    """Return mean tokens per pass over all prompts, and over their second half.

    Raises:
        RuntimeError: if a text differs from plain decoding.
    """
    speculator = Speculator.from_pretrained(
        str(model), method="mix", nodes=nodes, base=base, settings=MixSettings(top_k=top_k)
    )
    results = [speculator.generate(prompt, max_new_tokens=TOKENS, temperature=0) for prompt in prompts]
    if [result.ids for result in results] != texts:
        raise RuntimeError(f"{model.name}: a text differs from that of plain decoding.")
    halves = results, results[len(results) // 2 :]
    whole, late = (
        1 + sum(each.stats.accepted for each in half) / sum(each.stats.rounds for each in half) for half in halves
    )
    return {"mat": round(whole, 4), "mat_second_half": round(late, 4)}


if __name__ == "__main__":
    main()
