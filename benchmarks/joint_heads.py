"""Medusa heads trained for a fixed model (Medusa-1) and together with a copy of it (Medusa-2), and what that changed.

Each pair of model and heads alternates with plain decoding by the same model on held-out stories, greedy, in one
process with one thread, in CPU time. For every model also: nats per token of human stories, of the original's greedy
text and of its own, both under the original, and KL(original || model) on the stories. `greedy` and `sampled`
are the trainer's held-out estimates for chains of four tokens.

    OMP_NUM_THREADS=1 python benchmarks/joint_heads.py NAME=FOLDER... -o benchmarks/results/joint-heads.json

FOLDER is the output of `speculant train medusa`, with or without --joint, as in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.api.heads import open_head
from speculant.api.loading import load_model
from speculant.api.speculator import Speculator
from speculant.cli.env import environment
from speculant.cli.threads import set_threads
from speculant.core.tree import Int32
from targets import load_pair, story_prompts

DRAFTS: dict[str, tuple[int | str, dict[str, Any]]] = {
    "chain of 4": (4, {"tree": "chain"}),
    "tree of 16": (16, {"tree": "dynamic"}),
    "automatic": ("auto", {"tree": "dynamic"}),
}
WARM_UP, STORY = 2, 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heads", metavar="NAME=FOLDER", nargs="+")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    args = parser.parse_args()
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    set_threads(pair.model, 1)
    prompts = story_prompts(pair.tokenizer, count=args.requests + WARM_UP, tokens=32)
    stories = story_prompts(pair.tokenizer, count=args.requests, tokens=STORY)
    results: dict[str, Any] = {
        "conditions": {"requests": args.requests, "tokens": args.tokens},
        "environment": environment(pair.model),
        "heads": {},
    }
    for given in args.heads:
        name, _, folder = given.partition("=")
        found = measure(pair, Path(folder), prompts, stories, args.tokens)
        results["heads"][name] = found
        print(name, json.dumps({**found, "training": None}, indent=1), flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def measure(pair: Any, folder: Path, prompts: Sequence[Int32], stories: Sequence[Int32], tokens: int) -> dict[str, Any]:
    """Return the figures of one folder of heads, and of the model they draft for."""
    record = json.loads((folder / "training.json").read_text("utf-8"))
    model = load_model(str(folder / "model"), dtype="float32", device="cpu")[0] if "joint" in record else pair.model
    set_threads(model, 1)
    head = open_head(str(folder), model)
    plain = Speculator.from_transformers(model, pair.tokenizer, method="none")
    original = Speculator.from_transformers(pair.model, pair.tokenizer, method="none")
    drafting = {
        name: Speculator.from_transformers(
            model, pair.tokenizer, method="medusa", head=head, nodes=nodes, settings=settings
        )
        for name, (nodes, settings) in DRAFTS.items()
    }
    sums = {name: {"tokens": 0, "rounds": 0, "same": 0, "ratios": list[float]()} for name in DRAFTS}
    nats: dict[str, list[float]] = {"own_text": [], "original_text": []}
    equal = 0
    for place, prompt in enumerate(prompts):
        wanted, base = timed(plain, prompt, tokens)
        for name, speculator in drafting.items():
            text, seconds = timed(speculator, prompt, tokens)
            if place >= WARM_UP:
                total: Any = sums[name]
                total["tokens"] += len(text.ids) - 1
                total["rounds"] += text.stats.rounds
                total["same"] += text.ids == wanted.ids
                total["ratios"].append(base / seconds)
        if place >= WARM_UP:
            first, _ = timed(original, prompt, tokens)
            equal += first.ids == wanted.ids
            for key, text in (("own_text", wanted.ids), ("original_text", first.ids)):
                own = logits_of(pair.model, [*prompt.tolist(), *text])[len(prompt) - 1 :]
                nats[key].append(float(torch.nn.functional.cross_entropy(own, torch.tensor(text))))
    systems: dict[str, Any] = {}
    for name, total in sums.items():
        systems[name] = {
            "mat": round(total["tokens"] / total["rounds"], 3),
            "speedup": np.quantile(total["ratios"], [0.25, 0.5, 0.75]).round(3).tolist(),
            "identical": total["same"],
        }
    return {
        "systems": systems,
        "nats_under_original": {key: round(float(np.mean(each)), 4) for key, each in nats.items()},
        "texts_equal_to_original": equal,
        "texts": len(prompts) - WARM_UP,
        **compare(pair.model, model, stories),
        "training": {
            key: record.get(key) for key in ("settings", "steps", "tokens", "seconds", "best", "joint", "data")
        },
    }


def timed(speculator: Speculator, prompt: Int32, tokens: int) -> tuple[Any, float]:
    """Decode greedily; return the result and the CPU seconds per token."""
    began = time.process_time()
    found = speculator.generate(prompt.tolist(), max_new_tokens=tokens, temperature=0)
    return found, (time.process_time() - began) / max(1, len(found.ids))


@torch.no_grad()
def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the logits [T - 1, V] for the tokens after the first one."""
    found: torch.Tensor = model(torch.tensor([ids])).logits[0, :-1].float()
    return found


def compare(original: Any, model: Any, stories: Sequence[Int32]) -> dict[str, float]:
    """Return KL(original || model) and the model's nats per token, on human stories."""
    kl, nats = list[float](), list[float]()
    for story in stories:
        p, q = (logits_of(each, story.tolist()).log_softmax(-1) for each in (original, model))
        kl.append(float((p.exp() * (p - q)).sum(-1).mean()))
        nats.append(float(torch.nn.functional.nll_loss(q, torch.tensor(story.tolist()[1:]))))
    return {"kl_on_stories": round(float(np.mean(kl)), 5), "nats_of_stories": round(float(np.mean(nats)), 4)}


if __name__ == "__main__":
    main()
