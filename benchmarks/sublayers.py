"""Find which parts of the story model drafts can skip: whole layers, or attention and MLP separately.

Draft & Verify (Zhang et al. 2024, arXiv 2309.08168) and SWIFT (Xia et al. 2025, arXiv 2410.06916) skip sublayers. With
the bundled model's six layers, all sets can be tried: 63 of layers, 4,095 of sublayers. A set's acceptance is the share
of greedy tokens that the remaining model predicts, its cost the share of the weights that it reads, and its speed that
of the best length (`speculant.api.layer_tuning`). Sets are chosen on six texts and measured on six others.

    OMP_NUM_THREADS=1 python benchmarks/sublayers.py -o benchmarks/results/sublayers.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speculant.api.layer_tuning import LONGEST, expected_speed
from speculant.cli.env import environment
from targets import load_pair, story_prompts

PROMPT, TOKENS, TEXTS, SHOWN = 32, 64, 6, 4
Part = tuple[str, int]  # "attention" or "mlp", and the layer


@dataclass(slots=True)
class Skipped:
    """The parts that are currently skipped."""

    parts: frozenset[Part] = field(default_factory=frozenset)


class Attention(nn.Module):
    """An attention module that can be skipped; its layer then adds nothing."""

    def __init__(self, own: nn.Module, part: Part, skipped: Skipped) -> None:
        super().__init__()
        self.own, self.part, self.skipped = own, part, skipped

    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        if self.part in self.skipped.parts:
            return torch.zeros_like(hidden_states), None
        return self.own(hidden_states, **given)


class MLP(nn.Module):
    """An MLP that can be skipped."""

    def __init__(self, own: nn.Module, part: Part, skipped: Skipped) -> None:
        super().__init__()
        self.own, self.part, self.skipped = own, part, skipped

    def forward(self, hidden_states: Tensor) -> Any:
        return torch.zeros_like(hidden_states) if self.part in self.skipped.parts else self.own(hidden_states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("bundled", dtype="float32", draft_model=None)
    model, prompts = pair.model, story_prompts(pair.tokenizer, count=2 * TEXTS, tokens=PROMPT)
    ids = torch.tensor(np.stack(prompts), dtype=torch.long)
    with torch.inference_mode():
        texts = model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    skipped, shares = Skipped(), dict[Part, float]()
    total = sum(map(weights, model.model.layers)) + model.lm_head.weight.numel()
    for index, layer in enumerate(model.model.layers):
        shares["attention", index], shares["mlp", index] = weights(layer.self_attn) / total, weights(layer.mlp) / total
        layer.self_attn = Attention(layer.self_attn, ("attention", index), skipped)
        layer.mlp = MLP(layer.mlp, ("mlp", index), skipped)
    parts = [*shares]
    sets = [frozenset(each for j, each in enumerate(parts) if bits >> j & 1) for bits in range(1, 1 << len(parts))]
    found = {each: measured(model, texts[:TEXTS], each, skipped, shares) for each in sets}
    whole = [each for each in sets if all((("attention", i) in each) == (("mlp", i) in each) for _, i in parts)]
    results: dict[str, Any] = {"environment": environment(), "texts": TEXTS, "tokens": TOKENS}
    for name, some in (("layers", whole), ("sublayers", sets)):
        best = sorted(some, key=lambda each: -found[each]["speed"])[:SHOWN]
        results[name] = {
            "sets": len(some),
            "best": [
                {
                    "left_out": [f"{part} {index}" for part, index in parts if (part, index) in each],
                    "chosen_on": found[each],
                    "held_out": measured(model, texts[TEXTS:], each, skipped, shares),
                }
                for each in best
            ],
        }
    args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def measured(
    model: Any, texts: Tensor, parts: frozenset[Part], skipped: Skipped, shares: dict[Part, float]
) -> dict[str, float]:
    """Return a set's acceptance, cost, and speed relative to plain decoding at the best length."""
    skipped.parts = parts
    with torch.inference_mode():
        drafted = model(texts[:, :-1]).logits[:, PROMPT - 1 :].argmax(-1)
    acceptance = float((drafted == texts[:, PROMPT:]).float().mean())
    cost = 1 - sum(shares[each] for each in parts)
    speed, length = max((expected_speed(acceptance, cost, n), -n) for n in range(1, LONGEST + 1))
    return {"speed": round(speed, 3), "length": -length, "acceptance": round(acceptance, 3), "cost": round(cost, 3)}


def weights(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


if __name__ == "__main__":
    main()
