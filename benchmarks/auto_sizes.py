"""Compare automatic draft sizes with fixed ones, end to end on two small real models.

Prompts of `stories.py`, greedy, fp32, `mix`. Each size has its own memory, initially empty; the sizes alternate on
each prompt, so that a slow spell of the machine affects all of them. All outputs must be identical.

    OMP_NUM_THREADS=1 python benchmarks/auto_sizes.py -o benchmarks/results/auto-sizes.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from speculant import Speculator
from speculant.api.loading import load_model
from speculant.api.options import AUTO
from speculant.core.stats import Stats
from stories import TOKENS, cut_prompts

SIZES = (0, 4, 8, 16, 32, 64, AUTO)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    data = Path(os.environ["SPECULANT_DATA"])
    prompts = cut_prompts(data / "text/tinystories")
    models = {"bundled": None, "stories260k": str(data / "models/stories260K")}
    results = [measure(name, model, prompts) for name, model in models.items()]
    args.out.write_text(json.dumps(results, indent=1) + "\n")


def measure(name: str, folder: str | None, prompts: list[str]) -> dict[str, Any]:
    model, tokenizer = load_model(folder)
    speculators = {
        size: Speculator.from_transformers(model, tokenizer, method="mix" if size else "none", nodes=size)
        for size in SIZES
    }
    Speculator.from_transformers(model, tokenizer, nodes=8).generate(prompts[0], max_new_tokens=40)  # compiles kernels
    samples: dict[int | str, list[Stats]] = {size: [] for size in SIZES}
    for prompt in prompts:
        texts = set()
        for size, speculator in speculators.items():
            result = speculator.generate(prompt, max_new_tokens=TOKENS, temperature=0)
            samples[size].append(result.stats)
            texts.add(tuple(result.ids))
        assert len(texts) == 1, prompt
    rows = {str(size): figures(stats) for size, stats in samples.items()}
    best_fixed = max((size for size in rows if size != AUTO), key=lambda size: rows[size]["tokens_per_second"])
    share = rows[AUTO]["tokens_per_second"] / rows[best_fixed]["tokens_per_second"]
    for size, row in rows.items():
        print(name, size, {key: round(value, 3) for key, value in row.items()})
    print(name, f"auto reaches {share:.3f} of the best fixed size, {best_fixed}:", samples[AUTO][-1].sizes)
    return {
        "model": name,
        "prompts": len(prompts),
        "sizes": rows,
        "best_fixed": best_fixed,
        "auto_of_best_fixed": share,
    }


def figures(stats: list[Stats]) -> dict[str, float]:
    """Return speed, acceptance and times per round, excluding prefill."""
    seconds = sum(each.seconds - each.prefill_seconds for each in stats)
    rounds = sum(each.rounds for each in stats)
    tokens = sum(each.tokens - 1 for each in stats)
    return {
        "tokens_per_second": tokens / seconds,
        "mat": tokens / rounds,
        "nodes_per_round": sum(each.drafted for each in stats) / rounds,
        "target_ms": 1e3 * sum(each.target_seconds for each in stats) / rounds,
        "draft_ms": 1e3 * sum(each.draft_seconds for each in stats) / rounds,
        "rest_ms": 1e3 * (seconds - sum(each.target_seconds + each.draft_seconds for each in stats)) / rounds,
    }


if __name__ == "__main__":
    main()
