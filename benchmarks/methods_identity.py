"""Test that every method's greedy text equals that of `model.generate`, alone and in batches, on real prompts.

Prompts are the first tokens of held-out stories; each method begins with an empty memory that grows over the prompts.
For targets without a draft model, the draft model is the target with noise in its weights, so that drafts are often
wrong. Exits with 1 if a text differs.

    OMP_NUM_THREADS=1 python benchmarks/methods_identity.py -o benchmarks/results/methods-identity.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from speculant.api.draft_caches import open_draft_caches
from speculant.api.heads import open_head
from speculant.api.speculator import Speculator
from speculant.bench.suite.margins import margins
from speculant.bench.suite.rows import PLAIN
from speculant.cli.env import environment
from speculant.core.errors import SpeculantError
from speculant.core.tree import Int32
from speculant.registry import METHODS
from targets import Pair, load_pair, story_prompts

TARGETS = ("bundled", "stories260k")
NOISE = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="results file, which is extended")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--draft-model", metavar="DIR", help="default: for the bundled model, the bundled one")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per request")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--methods", metavar="NAME,...", help="default: all registered methods")
    parser.add_argument(
        "--head", metavar="DIR", action="append", default=[], help="head of the target; default: bundled heads"
    )
    parser.add_argument("--again", action="store_true", help="compare again the methods that are in the file")
    args = parser.parse_args()
    names = args.methods.split(",") if args.methods else list(METHODS)
    asked = {key: getattr(args, key) for key in ("requests", "prompt_tokens", "tokens", "batch", "nodes")}
    results: dict[str, Any] = {"conditions": asked, "environment": environment(), "targets": {}}
    if args.out.exists():
        results = json.loads(args.out.read_text("utf-8"))
        if results.get("conditions") != asked:
            raise SystemExit(f"{args.out} was made under other conditions; name another -o")
    for target in args.targets.split(","):
        known = results["targets"].setdefault(target, {})
        pair = load_pair(target, dtype="float32", draft_model=args.draft_model)
        if pair.draft_model is None:
            pair = load_pair(target, dtype="float32", draft_model=None, noise=NOISE)
        prompts = story_prompts(pair.tokenizer, count=args.requests, tokens=args.prompt_tokens)
        identity = Identity(pair, prompts, args.tokens, args.head)
        for name in names:
            if name in known and "skipped" not in known[name] and not args.again:
                continue
            known[name] = identity.compare(name, nodes=args.nodes, batch=args.batch)
            print(target, name, json.dumps(known[name]), flush=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    wrong = sum(len(each.get("mismatches", ())) for found in results["targets"].values() for each in found.values())
    print(f"{wrong} mismatches")
    sys.exit(1 if wrong else 0)


class Identity:
    """Compares methods with `model.generate` on one target."""

    def __init__(self, pair: Pair, prompts: Sequence[Int32], tokens: int, heads: Sequence[str] = ()) -> None:
        self._heads = [open_head(folder, pair.model) for folder in heads]
        self._pair, self._prompts, self._tokens = pair, prompts, tokens
        self._fast = Speculator.from_transformers(pair.model, method=PLAIN).fast
        self._judge = Speculator.from_transformers(pair.model, method=PLAIN, fast=False)
        self._expected = [self._generated(prompt) for prompt in prompts]
        vocabulary = pair.model.config.vocab_size
        self._caches = None
        if pair.draft_model is not None:
            self._caches = open_draft_caches(
                pair.draft_model, vocabulary, tokenizer=pair.tokenizer, draft_tokenizer=pair.draft_tokenizer
            )

    def compare(self, name: str, *, nodes: int, batch: int) -> dict[str, Any]:
        """Return the number of compared texts and every difference, or the reason why the method cannot run."""
        method = METHODS[name]
        if method.exactness != "lossless":
            return {"skipped": f"it is not lossless: {method.exactness}"}
        draft = {"draft_model": self._pair.draft_name} if method.takes_draft_model else {}
        try:
            alone, mat = self._alone(name, nodes)
            together = self._speculator(name, nodes).generate_batch(
                [prompt.tolist() for prompt in self._prompts], size=batch, max_new_tokens=self._tokens, temperature=0
            )
        except SpeculantError as error:
            return {**draft, "skipped": str(error)}
        mismatches = self._mismatches("alone", alone)
        mismatches += self._mismatches(f"batches of {batch}", [each.ids for each in together])
        return {**draft, "compared": 2 * len(self._prompts), "mat": round(mat, 3), "mismatches": mismatches}

    def _speculator(self, name: str, nodes: int) -> Speculator:
        caches = self._caches if METHODS[name].takes_draft_model else None
        kinds = METHODS[name].heads
        head = next((each for each in self._heads if each.kind in kinds or "*" in kinds), None)
        return Speculator.from_transformers(
            self._pair.model, method=name, nodes=nodes, draft_model=caches, head=head, fast=self._fast
        )

    def _alone(self, name: str, nodes: int) -> tuple[list[list[int]], float]:
        """Return the texts, decoded one request at a time, and the MAT."""
        speculator = self._speculator(name, nodes)
        found = [
            speculator.generate(prompt.tolist(), max_new_tokens=self._tokens, temperature=0) for prompt in self._prompts
        ]
        rounds = sum(each.stats.rounds for each in found)
        return [each.ids for each in found], sum(len(each.ids) - 1 for each in found) / max(1, rounds)

    def _generated(self, prompt: Int32) -> list[int]:
        ids = torch.from_numpy(prompt).long()[None]
        out = self._pair.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self._tokens, do_sample=False
        )
        found: list[int] = out[0, len(prompt) :].tolist()
        return found

    def _mismatches(self, where: str, texts: Sequence[list[int]]) -> list[dict[str, Any]]:
        found = []
        for number, (prompt, expected, ids) in enumerate(zip(self._prompts, self._expected, texts, strict=True)):
            if ids == expected:
                continue
            shared = min(len(ids), len(expected))
            place = next((i for i in range(shared) if ids[i] != expected[i]), shared)
            margin = margins(self._judge, prompt, ids[: place + 1])[-1] if place < shared else None
            found.append(
                {
                    "where": where,
                    "prompt": number,
                    "position": place + 1,
                    "margin": margin and margin.value,
                    "near_tie": margin and margin.near_tie,
                }
            )
        return found


if __name__ == "__main__":
    main()
