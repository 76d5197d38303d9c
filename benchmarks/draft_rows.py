"""Compare draft-model methods of the survey with plain decoding, in CPU time.

Each system alternates with plain decoding on each held-out story, in one process with one thread. Both sides count the
CPU time of all threads, so a pipeline gains nothing from idle cores and its overhead is visible. Draft sizes are
automatic; MAT is given for those and for a fixed number of nodes, which says more about the drafts. For the fixed
number, `draft_passes` counts draft-model passes per round after the first.

    python benchmarks/draft_rows.py -o benchmarks/results/draft-rows.json
    python benchmarks/draft_rows.py -o FILE --boosted DIR --continued DIR    # additional draft models for specinfer

An additional draft model is trained on other stories, starting from the bundled one, with and without `--before`:

    speculant train draft-model --data STORIES --init DRAFT --before DRAFT --out DIR --minutes 6 --length 160
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.api.loading import load_model
from speculant.api.speculator import Speculator
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.core.tree import Int32
from speculant.drafters.models.draft_text import DraftText
from speculant.registry import METHODS
from targets import Pair, load_pair, story_prompts


@dataclass(frozen=True, slots=True)
class System:
    """A system to measure: method and settings, temperature, additional draft models, nodes."""

    method: str
    settings: dict[str, Any] | None = None
    temperature: float = 0.0
    further: str = ""
    nodes: int = 8


_READ = DraftText.read
SYSTEMS = {
    "draft-model": System("draft-model"),
    "draft-model, confidence": System("draft-model", {"stop": "confidence"}),
    "draft-model, entropy": System("draft-model", {"stop": "entropy"}),
    "specinfer": System("specinfer", {"widths": "4,1,1,1"}, nodes=16),
    "specinfer, boosted": System("specinfer", {"widths": "2,1,1,1"}, further="boosted", nodes=16),
    "specinfer, continued": System("specinfer", {"widths": "2,1,1,1"}, further="continued", nodes=16),
    "sequoia": System("sequoia"),
    "staged": System("staged"),
    "staged, no inner": System("staged", {"inner_nodes": 0}),
    "staged, chain": System("staged", {"siblings": 1}),
    "cs-drafting": System("cs-drafting"),
    "cs-drafting, no vertical": System("cs-drafting", {"lengths": "5,10;0,0"}),
    "opt-tree": System("opt-tree"),
    "llmcad": System("llmcad", {"ahead": 0}),
    "llmcad, fixed threshold": System("llmcad", {"ahead": 0, "adaptive": False}),
    "llmcad, pipeline": System("llmcad", {"ahead": 4}),
    "pearl": System("pearl"),
    "pearl, first=0": System("pearl", {"first": 0}),
    "pearl, first=1": System("pearl", {"first": 1}),
    "sam": System("sam"),
    "recycling": System("recycling"),
    "sam, recycling": System("sam", {"auxiliary": "recycling"}),
    "sam, mix": System("sam", {"auxiliary": "mix"}),
    "eagle2": System("eagle2"),
    "sam-head": System("sam-head"),
    "swift": System("swift"),
    "swift, chain": System("swift", {"wide": False}),
    "draft-model, T=1": System("draft-model", temperature=1.0),
    "specinfer, T=1": System("specinfer", {"widths": "4,1,1,1"}, temperature=1.0, nodes=16),
    "specinfer, boosted, T=1": System("specinfer", {"widths": "2,1,1,1"}, temperature=1.0, further="boosted", nodes=16),
    "specinfer, continued, T=1": System(
        "specinfer", {"widths": "2,1,1,1"}, temperature=1.0, further="continued", nodes=16
    ),
    "staged, T=1": System("staged", temperature=1.0),
    "cs-drafting, T=1": System("cs-drafting", temperature=1.0),
    "pearl, T=1": System("pearl", temperature=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--systems", metavar="NAME;...", help="default: all that can run")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per request")
    parser.add_argument("--boosted", metavar="DIR", help="draft model trained with --before")
    parser.add_argument("--continued", metavar="DIR", help="draft model trained without --before")
    args = parser.parse_args()
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    set_threads(pair.model, 1)
    prompts = story_prompts(pair.tokenizer, count=args.requests + 2, tokens=args.prompt_tokens)
    given = {"boosted": args.boosted, "continued": args.continued}
    further = {name: load_model(path, dtype="float32", device="cpu")[0] for name, path in given.items() if path}
    results: dict[str, Any] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
    results["conditions"] = {"requests": args.requests, "prompt_tokens": args.prompt_tokens, "tokens": args.tokens}
    results["environment"] = environment(pair.model)
    for name in args.systems.split(";") if args.systems else SYSTEMS:
        system = SYSTEMS[name]
        if name in results.get("systems", {}) or (system.further and system.further not in further):
            continue
        found = measure(pair, system, prompts, args.tokens, further.get(system.further))
        results.setdefault("systems", {})[name] = found
        print(name, found, flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def measure(pair: Pair, system: System, prompts: Sequence[Int32], tokens: int, further: Any) -> dict[str, Any]:
    """Return the figures of a system and of plain decoding; the first two prompts are warm-up."""
    options: dict[str, Any] = {"method": system.method, "settings": system.settings}
    method = METHODS[system.method]
    if method.takes_draft_model:
        options["draft_model"] = pair.draft_model if further is None else [pair.draft_model, further]
    own = Speculator.from_transformers(pair.model, pair.tokenizer, **options)
    fixed = Speculator.from_transformers(pair.model, pair.tokenizer, nodes=system.nodes, **options)
    plain = Speculator.from_transformers(pair.model, pair.tokenizer, method="none")
    ratios, same, reads = list[float](), 0, Reads()
    rounds, count = dict.fromkeys(("own", "fixed"), 0), dict.fromkeys(("own", "fixed"), 0)
    for place, prompt in enumerate(prompts):
        texts, seconds = dict[str, list[int]](), dict[str, float]()
        for name, speculator in (("plain", plain), ("own", own), ("fixed", fixed)):
            began = time.process_time()
            sampling: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "seed": place} if system.temperature else {}
            reads.counting = name == "fixed" and place > 1
            found = speculator.generate(
                prompt.tolist(), max_new_tokens=tokens, temperature=system.temperature, **sampling
            )
            texts[name] = found.ids
            seconds[name] = (time.process_time() - began) / max(1, len(found.ids))
            if name in rounds and place > 1:
                rounds[name] += found.stats.rounds
                count[name] += len(found.ids) - 1
        if place < 2:
            continue
        ratios.append(seconds["plain"] / seconds["own"])
        same += texts["plain"] == texts["own"]
    quartiles = np.quantile(ratios, [0.25, 0.5, 0.75]).round(3).tolist()
    passes = {} if not reads.count else {"draft_passes": round(reads.count / rounds["fixed"], 2)}
    mats = {"mat": round(count["own"] / rounds["own"], 3), "mat_fixed": round(count["fixed"] / rounds["fixed"], 3)}
    result = {**mats, **passes, "speedup_quartiles": quartiles, "same": same, "texts": len(ratios)}
    settings = {"method": system.method, "settings": system.settings, "temperature": system.temperature}
    return {**settings, "nodes": system.nodes, "verifier": method.verifier, **result}


class Reads:
    """Counts passes of draft models below the root, from its creation on."""

    def __init__(self) -> None:
        self.count, self.counting, own = 0, False, _READ

        def read(text: DraftText, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], torch.Tensor]:
            self.count += self.counting
            return own(text, tokens, above)

        DraftText.read = read  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
