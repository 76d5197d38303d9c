"""Bits per byte of a model on held-out stories: per story, BOS, the first 512 tokens.

The sum of the tokens' losses in nats over ln 2, divided by the UTF-8 bytes of the text they stand for.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokenizer import read_stories

LENGTH = 512


@torch.inference_mode()
def bits_per_byte(folder: Path, stories: list[str], batch: int = 16) -> dict[str, float]:
    """Return bits per byte, nats per token, and how much text was scored."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for story in stories:
        ids = tokenizer(story, add_special_tokens=False)["input_ids"][:LENGTH]
        rows.append(([tokenizer.bos_token_id, *ids], len(tokenizer.decode(ids).encode())))
    rows.sort(key=lambda row: len(row[0]))
    nats, tokens, size = 0.0, 0, 0
    for start in range(0, len(rows), batch):
        group = rows[start : start + batch]
        longest = max(len(ids) for ids, _ in group)
        ids = torch.full((len(group), longest), -100)
        for i, (row, _) in enumerate(group):
            ids[i, : len(row)] = torch.tensor(row)
        logits = model(ids.clamp(min=0)).logits[:, :-1]
        nats += float(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100, reduction="sum"))
        tokens += int((ids[:, 1:] != -100).sum())
        size += sum(length for _, length in group)
    return {
        "bits_per_byte": nats / math.log(2) / size,
        "nats_per_token": nats / tokens,
        "stories": len(rows),
        "tokens": tokens,
        "bytes": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--limit", type=int, help="stories to score; all if left out")
    args = parser.parse_args()
    print(json.dumps(bits_per_byte(args.model, read_stories(args.heldout)[: args.limit]), indent=1))


if __name__ == "__main__":
    main()
