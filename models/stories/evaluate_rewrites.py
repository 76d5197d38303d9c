"""How many rewrites of held-out stories are exact: greedy decoding gives the right answer, token for token.

One pass over prompt and right answer decides: greedy decoding gives the answer if and only if every token of it,
the end of the text included, is the model's first choice after those before it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from edits import Edit, sample_edit
from rewrite import encode
from tokenizer import read_stories

SHORTEST, LONGEST = 100, 250  # tokens of a story


def held_out_edits(stories: list[str], tokenizer: object, count: int, rng: random.Random) -> list[Edit]:
    """Return edits of the first stories that are of the right length and have a name or thing to change."""
    edits = []
    for story in stories:
        if SHORTEST <= len(tokenizer(story, add_special_tokens=False)["input_ids"]) <= LONGEST:
            edit = sample_edit(story, rng)
            if edit is not None:
                edits.append(edit)
        if len(edits) == count:
            break
    return edits


@torch.inference_mode()
def exact_rewrites(folder: Path, stories: list[str], *, count: int, seed: int) -> dict[str, object]:
    """Return counts of exact rewrites, over all and by kind, and the share of right tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    right, asked = defaultdict(int), defaultdict(int)
    tokens, wrong = 0, []
    for edit in held_out_edits(stories, tokenizer, count, random.Random(seed)):
        row = encode([edit], tokenizer)
        start = next(place for place, weight in enumerate(row.weights) if weight)
        ids = torch.tensor([row.ids])
        hidden = model.model(ids[:, :-1]).last_hidden_state[:, start - 1 :]
        hits = model.lm_head(hidden).argmax(-1)[0] == ids[0, start:]
        kind = "names" if "calling" in edit.instruction else "things"
        for name in ("all", kind):
            asked[name] += 1
            right[name] += bool(hits.all())
        tokens += len(hits)
        if not hits.all():
            wrong.append(int((~hits).sum()))
    return {
        "exact": {name: [right[name], asked[name]] for name in sorted(asked)},
        "share": right["all"] / asked["all"],
        "token_accuracy": 1 - sum(wrong) / tokens,
        "wrong_tokens_of_inexact": sorted(wrong),
        "answer_tokens": tokens,
        "story_tokens": [SHORTEST, LONGEST],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        json.dumps(exact_rewrites(args.model, read_stories(args.heldout), count=args.count, seed=args.seed), indent=1)
    )


if __name__ == "__main__":
    main()
