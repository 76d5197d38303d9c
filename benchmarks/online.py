"""Online distillation on a stream of changing topics: acceptance request by request, with updates and without.

The draft model is the bundled one with noise in its weights, so that it has something to learn on each topic. The
stream asks for stories, then for rewrites of short texts (in the chat template), then for stories again. Two drafters
answer the same requests: one is fixed, one learns online. Texts are greedy and must be identical. Updates are made
between requests, so that the figures are reproducible.

    python benchmarks/online.py TEXTS -o benchmarks/results/online.json --chart docs/images/online.png

TEXTS is a folder of shards (.npz) with `ids` and `lengths`, as written by `models/stories/target_texts.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from speculant.api.loading import bundled_draft_model, load_model
from speculant.api.speculator import Speculator
from speculant.core.tree import Int32

CHAT = (1, 3455)  # the first tokens of a message in the story model's chat template
OPENING = 16  # prompt tokens of a story
SPAN = 10  # moving average: requests per point of the chart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--requests", type=int, default=40, help="requests in each of the three parts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.2, help="draft model noise, relative to each weight's std")
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load_model(None)
    stories, rewrites = read_prompts(args.texts, 2 * args.requests, args.requests)
    stream = [*stories[: args.requests], *rewrites, *stories[args.requests :]]
    began = time.perf_counter()
    settings = {"every": args.every, "steps": args.steps, "lr": args.lr, "when": "manual"}
    results: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if name not in ("texts", "out", "chart")
    }
    results["parts"] = ["stories", "rewrites", "stories"]
    runs = {
        name: run(model, tokenizer, stream, args, online) for name, online in (("online", settings), ("still", None))
    }
    assert runs["online"].pop("ids") == runs["still"].pop("ids"), "the texts differ"
    results |= runs
    results["identical_texts"] = len(stream)
    results["mat"] = {
        name: [round(float(np.mean(part)), 3) for part in np.split(np.array(found["mat"]), 3)]
        for name, found in runs.items()
    }
    results["seconds"] = round(time.perf_counter() - began)
    print(json.dumps({"mat": results["mat"], "seconds": results["seconds"]}))
    args.out.write_text(json.dumps(results) + "\n", "utf-8")
    if args.chart is not None:
        draw(results, args.chart)


def run(model: Any, tokenizer: Any, stream: list[Int32], args: argparse.Namespace, online: Any) -> dict[str, Any]:
    """Return tokens per pass and acceptance of every request, the updates, and the texts."""
    draft, _ = load_model(str(bundled_draft_model()))
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += args.noise * weight.std() * torch.randn(weight.shape, generator=source)
    speculator = Speculator.from_transformers(
        model, tokenizer, method="draft-model", draft_model=draft, nodes=args.nodes, online=online
    )
    drafter: Any = speculator.drafter
    mat, first, ids = list[float](), list[float](), list[list[int]]()
    for place, prompt in enumerate(stream):
        result = speculator.generate(prompt.tolist(), max_new_tokens=args.tokens, temperature=0)
        mat.append(round(result.stats.mat, 3))
        offered, accepted = result.stats.offered_by_depth, result.stats.accepted_by_depth
        first.append(round(accepted[0] / max(1, offered[0]), 3) if offered else 0.0)
        ids.append(list(result.ids))
        if online is not None and (place + 1) % args.every == 0:
            drafter.update()
    updates = [] if online is None else drafter.updates
    kept = [[round(each.before, 4), round(each.after, 4), each.used] for each in updates]
    speculator.close()
    return {"mat": mat, "first_token_acceptance": first, "updates": kept, "ids": ids}


def read_prompts(folder: Path, stories: int, rewrites: int) -> tuple[list[Int32], list[Int32]]:
    """Return openings of stories, and chat messages up to the start of the model's answer."""
    found: tuple[list[Int32], list[Int32]] = [], []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as shard:
            texts = np.split(shard["ids"].astype(np.int32), np.cumsum(shard["lengths"])[:-1])
        for text in texts:
            chat = tuple(text[:2].tolist()) == CHAT
            if chat:
                ends = np.flatnonzero(text[2:] == 2) + 3  # after the message
                end = int(ends[0]) + 3 if len(ends) and 40 < ends[0] < 160 else 0  # "Story:" and a space
            else:
                end = OPENING if len(text) > 2 * OPENING else 0
            if end:
                found[chat].append(text[:end])
        if len(found[0]) >= stories and len(found[1]) >= rewrites:
            break
    return found[0][:stories], found[1][:rewrites]


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot tokens per pass along the stream."""
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for name, label, color in (("online", "learns online", "#2463b0"), ("still", "stays as it is", "#8a8a8a")):
        values = np.array(results[name]["mat"])
        means = np.convolve(values, np.ones(SPAN) / SPAN, "valid")
        axes.plot(np.arange(len(means)) + SPAN / 2, means, label=label, color=color)
    count = results["requests"]
    for place, name in enumerate(results["parts"]):
        axes.axvline(place * count, color="#cccccc", linewidth=0.8)
        axes.text(place * count + 1, axes.get_ylim()[1], name, va="top", fontsize=8, color="#444444")
    axes.set_xlabel(f"request (mean of {SPAN})")
    axes.set_ylabel("tokens per target pass")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
