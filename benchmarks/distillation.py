"""Alignment of a small draft model with the story model: acceptance before and after, by way of training.

Each system starts from the same weights and takes the same number of steps:

- seq-kd: cross-entropy on texts that the target wrote (sequence-level distillation)
- off-policy kl: forward KL on the same texts
- on-policy kl, tvd: DistillSpec, the student writes and the target scores
- one model, two models: the share of positions where a greedy draft, or one of two boosted in turn (Col-BT), is right,
  at equal parameters and steps in all

    python benchmarks/distillation.py TEXTS -o benchmarks/results/distillation.json

TEXTS is a folder of shards (.npz) with `ids` and `lengths`, as `models/stories/target_texts.py` writes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant.api.loading import bundled_draft_model, load_model
from speculant.training.distill import DistillSettings, acceptance, distil
from speculant.training.texts import Texts, from_parts

WAYS = {
    "seq-kd": {"loss": "ce"},
    "off-policy kl": {"loss": "kl"},
    "on-policy kl": {"loss": "kl", "on_policy": 1.0},
    "on-policy tvd": {"loss": "tvd", "on_policy": 1.0},
}
LONGEST = 160  # tokens of a text
NEW_LR = 0.03  # of layers that are new, with Muon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--warm-steps", type=int, default=300, help="seq-kd steps that all systems share")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--count", type=int, default=1024, help="texts; 64 more are held out")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, _ = load_model(None)
    texts = read_texts(args.texts, args.count + 64)
    held_out = texts.select(np.arange(64))
    texts = texts.select(np.arange(64, len(texts)))
    began = time.process_time()
    start = new_student(1)
    distil(start, target, texts, DistillSettings(steps=args.warm_steps, loss="ce", lr=NEW_LR, optimizer="muon"))
    results: dict[str, Any] = {
        "texts": len(texts),
        "held_out_texts": len(held_out),
        "warm_steps": args.warm_steps,
        "steps": args.steps,
        "parameters": sum(weight.numel() for weight in start.parameters()),
        "before": measured([start], target, held_out),
        "after": {},
    }
    for name, options in WAYS.items():
        student = copy.deepcopy(start)
        distil(student, target, texts, DistillSettings(steps=args.steps, lr=1e-3, seed=1, **options))  # type: ignore[arg-type]
        results["after"][name] = measured([student], target, held_out)
        print(name, results["after"][name], flush=True)
    results["boosting"] = boosting(target, texts, held_out, args.steps)
    results["cpu_seconds"] = round(time.process_time() - began)
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def boosting(target: Any, texts: Texts, held_out: Texts, steps: int) -> dict[str, Any]:
    """Return the agreement of one model and of the union of two, each new and trained for so many steps on kl.

    Two models that are trained alike but for their first weights tell what boosting itself gains.
    """
    settings = DistillSettings(steps=steps, lr=NEW_LR, optimizer="muon", loss="kl", seed=2)
    one, alike, boosted = new_student(2), new_student(3), new_student(3)
    distil(one, target, texts, settings)
    distil(alike, target, texts, settings)
    distil(boosted, target, texts, settings, before=[one])
    longer = new_student(2)
    distil(longer, target, texts, replace(settings, steps=2 * steps))
    found = {
        "one model": measured([one], target, held_out),
        "one model, twice the steps": measured([longer], target, held_out),
        "two models alike": measured([one, alike], target, held_out),
        "two models boosted": measured([one, boosted], target, held_out),
    }
    print(found, flush=True)
    return found


def new_student(seed: int) -> Any:
    """Return a model of the bundled draft model's shape whose embeddings are that one's and whose layers are new."""
    bundled, _ = load_model(str(bundled_draft_model()))
    torch.manual_seed(seed)
    student = type(bundled)(bundled.config)
    student.load_state_dict(
        {name: weight for name, weight in bundled.state_dict().items() if "embed" in name or "lm_head" in name},
        strict=False,
    )
    return student.eval()


def measured(students: list[Any], target: Any, texts: Texts) -> dict[str, float]:
    """Return the acceptance on held-out texts."""
    return {name: round(value, 4) for name, value in acceptance(students, target, texts).items()}


def read_texts(folder: Path, count: int) -> Texts:
    """Return the first texts of a folder, cut to a length; the first 16 tokens count as their prompts."""
    parts = list[Any]()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as shard:
            cuts = np.cumsum(shard["lengths"])[:-1]
            found = np.split(shard["ids"].astype(np.int32), cuts)
        parts += [text[:LONGEST] for text in found if len(text) > 40]
        if len(parts) >= count:
            break
    return from_parts(parts[:count], [16] * len(parts[:count]))


if __name__ == "__main__":
    main()
