"""Compare texts with drafts to those of the same quantised weights without drafts, token by token.

The bundled model, rounded to 8 and to 4 bits, continues beginnings of stories that it was not trained on: greedily and
sampled, one at a time and in batches of 8, with the kernels of this processor. A sampled text has the seed of its
prompt. Texts that differ are counted; the exit code is 1 if there are any.

    OMP_NUM_THREADS=1 python benchmarks/quantised_equality.py -o benchmarks/results/quantised-equality.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from speculant import Speculator
from speculant.cli.env import environment
from speculant.core.stats import Stats, compute_mat
from stories import cut_prompts

TOKENS, TOGETHER = 60, 8
SAMPLING: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.8, "top_p": 0.95}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    args = parser.parse_args()
    prompts = cut_prompts(Path(os.environ["SPECULANT_DATA"]) / "text/tinystories", count=args.prompts)
    rows = []
    for layout in ("int8", "int4"):
        plain, drafted = (
            Speculator.from_pretrained(method=method, quantize=layout, packed_cache=False) for method in ("none", "mix")
        )
        for name, sampling in SAMPLING.items():
            texts = decode_alone(plain, prompts, sampling)[0]
            for way, decode in (("alone", decode_alone), ("in batches", decode_together)):
                found, tokens_per_pass = decode(drafted, prompts, sampling)
                different = sum(one != other for one, other in zip(found, texts, strict=True))
                row = {"layout": layout, "sampling": name, "drafted": way, "different": different}
                rows.append(row | {"tokens": sum(map(len, texts)), "tokens_per_pass": round(tokens_per_pass, 3)})
                print(json.dumps(rows[-1]), file=sys.stderr)
    settings = {"prompts": len(prompts), "tokens": TOKENS, "together": TOGETHER, "sampling": SAMPLING}
    args.out.write_text(json.dumps({"environment": environment(), "settings": settings, "rows": rows}, indent=1) + "\n")
    if any(row["different"] for row in rows):
        raise SystemExit(1)


def decode_alone(speculator: Speculator, prompts: list[str], sampling: dict[str, Any]) -> tuple[list[list[int]], float]:
    """Return the texts, decoded one after the other, and the tokens per pass."""
    results = [speculator.generate(prompt, **options(sampling, place)) for place, prompt in enumerate(prompts)]
    return [each.ids for each in results], mean_tokens([each.stats for each in results])


def decode_together(
    speculator: Speculator, prompts: list[str], sampling: dict[str, Any]
) -> tuple[list[list[int]], float]:
    """Return the texts, decoded in batches, and the tokens per pass."""
    batch = speculator.batch(TOGETHER)
    generations = [batch.add(prompt, **options(sampling, place)) for place, prompt in enumerate(prompts)]
    for _ in batch:
        pass
    results = [generation.result for generation in generations]
    return [each.ids for each in results], mean_tokens([each.stats for each in results])


def options(sampling: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the options of a prompt's text; a sampled one has a seed."""
    return {"max_new_tokens": TOKENS, **sampling} | ({"seed": place} if sampling["temperature"] else {})


def mean_tokens(stats: list[Stats]) -> float:
    """Return the tokens per pass of all texts."""
    return compute_mat(sum(each.tokens for each in stats), sum(each.rounds for each in stats), texts=len(stats))


if __name__ == "__main__":
    main()
