"""Speed of ADED and its parts on a real model, over plain decoding: same model, corpora and prompts, in turns.

The bundled model, or the same padded to the cost of 494 million parameters, continues held-out stories greedily. The
corpora are its training text. Every system continues a story before any continues the next, after a story that does not
count; memories are kept from story to story. Draft sizes are chosen round by round, for the authors' drafter as well;
"fixed" systems draft as many tokens as the method yields, up to 64. All texts must equal those of plain decoding.

    OMP_NUM_THREADS=1 python benchmarks/aded_speed.py --target inflated -o benchmarks/results/aded-speed-inflated.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from aded_sampling import PROMPT, Systems
from speculant import Speculator
from speculant.bench.systems.peers import OfficialAded
from speculant.cli.env import environment
from speculant.drafters.aded.drafter import AdedSettings
from speculant.drafters.aded.paper import AdedPaperSettings
from targets import LAYERS, MLP, story_prompts

FIXED = ("aded-paper, corpus", "authors' code, corpus", "aded, corpus")  # systems that also draft at a fixed size
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--target", choices=("bundled", "inflated"), default="bundled")
    parser.add_argument("--stories", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        systems = Systems(Path(folder), layers=LAYERS, mlp=MLP) if args.target == "inflated" else Systems(Path(folder))
        stories = story_prompts(systems.tokenizer, count=args.stories + 1, tokens=PROMPT)
        prompts = [each.tolist() for each in stories]
        rows = measure(compared(systems), prompts, args.tokens)
    settings = {name: getattr(args, name) for name in ("target", "stories", "tokens")}
    report = {"environment": environment(), "settings": settings | {"prompt_tokens": PROMPT}, "rows": rows}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(f"{row['system']:42s} {row['speed']:.3f}x  MAT {row['mat']:.2f}", file=sys.stderr)


def compared(systems: Systems) -> dict[str, Speculator]:
    """Return the systems by name, plain decoding first."""
    trigram, suffix = systems.paths["trigram"], systems.paths["suffix"]
    makers: dict[str, Callable[[], Row]] = {
        "aded-paper": lambda: {"method": "aded-paper"},
        "aded-paper, corpus": lambda: {"drafter": systems.published()},
        "aded-paper, corpus, no adaptation": lambda: {"drafter": systems.published(AdedPaperSettings(step=0))},
        "authors' code, corpus": lambda: {"drafter": OfficialAded(systems.documents)},
        "aded": lambda: {"method": "aded"},
        "aded, corpus, text alone": lambda: {"method": "aded", "memory": trigram, "settings": AdedSettings(top_k=0)},
        "aded, corpus": lambda: {"method": "aded", "memory": trigram},
        "rest, corpus": lambda: {"method": "rest", "memory": suffix},
        "mix": lambda: {"method": "mix"},
        "mix, base": lambda: {"method": "mix", "base": "bundled"},
    }
    found = {"plain": systems.plain}
    found |= {name: systems.make(**{"nodes": "auto"} | make()) for name, make in makers.items()}
    return found | {f"{name}, fixed": systems.make(**makers[name]()) for name in FIXED}


def measure(systems: Mapping[str, Speculator], prompts: Sequence[list[int]], tokens: int) -> list[Row]:
    """Return the figures of each system; the first prompt does not count.

    Raises:
        SystemExit: if drafts changed a text.
    """
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    counts = {name: [0, 0, 0] for name in systems}
    for number, prompt in enumerate(prompts):
        texts = list[list[int]]()
        for name in [*systems][number % len(systems) :] + [*systems][: number % len(systems)]:
            began = time.process_time()
            result = systems[name].generate(prompt, temperature=0, max_new_tokens=tokens)
            seconds[name].append(time.process_time() - began)
            texts.append(result.ids)
            if result.ids != texts[0]:
                raise SystemExit(f"{name}: a text is not that of the others.")
            if number:
                stats = result.stats
                counts[name] = [
                    a + b for a, b in zip(counts[name], (stats.rounds, stats.accepted, stats.drafted), strict=True)
                ]
    plain = seconds["plain"][1:]
    rows = []
    for name, (rounds, accepted, drafted) in counts.items():
        own = seconds[name][1:]
        rows.append(
            {
                "system": name,
                "speed": round(sum(plain) / sum(own), 4),
                "median_speed": round(median(a / b for a, b in zip(plain, own, strict=True)), 4),
                "mat": round(1 + accepted / rounds, 4),
                "nodes": round(drafted / rounds, 2),
                "seconds": [round(each, 4) for each in own],
            }
        )
    return rows


if __name__ == "__main__":
    main()
