"""How well a draft model predicts what the story model writes after held-out prompts.

`acceptance` is the mean over positions of sum min(p, q), the probability that speculative sampling at temperature 1
accepts a drafted token, p being the target's distribution and q the draft model's. `agreement` is the share of
positions at which both have the same most probable token, which is what greedy decoding accepts. Both are measured on
the target's own texts, teacher-forced: `sampled` and `greedy` after beginnings of stories, `rewritten` for greedy
answers to requests to rewrite a story.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from edits import sample_edit
from target_texts import Prompt, write
from tokenizer import read_stories

KINDS = ("sampled", "greedy", "rewritten")
NEW_TOKENS = 128  # after a prompt
MOST_BYTES = 800  # of a story to rewrite


def prompts_of(
    kind: str, stories: list[str], tokenizer: PreTrainedTokenizerBase, count: int, rng: random.Random
) -> list[Prompt]:
    """Return the first `count` prompts of a kind, each of another story."""
    prompts: list[Prompt] = []
    for story in stories:
        if len(prompts) == count:
            break
        if kind != "rewritten":
            text = " ".join(story.split(" ")[: rng.randint(5, 40)])
            prompts.append(Prompt(tokenizer(text)["input_ids"], greedy=kind == "greedy"))
        elif len(story) < MOST_BYTES and (edit := sample_edit(story, rng)):
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": edit.request}], tokenize=False, add_generation_prompt=True
            )
            prompts.append(Prompt(tokenizer(text, add_special_tokens=False)["input_ids"], greedy=True))
    return prompts


@torch.inference_mode()
def compare(target: LlamaForCausalLM, draft: LlamaForCausalLM, prompts: list[Prompt], seed: int) -> dict[str, float]:
    """Return acceptance and agreement over the tokens that the target writes after the prompts."""
    texts = write(target, prompts, seed, NEW_TOKENS)
    accepted, agreed, tokens, place = 0.0, 0, 0, 0
    for prompt, length in zip(prompts, texts["lengths"], strict=True):
        ids = torch.from_numpy(texts["ids"][place : place + length]).long()[None]
        place += length
        p, q = (model(ids).logits[0, len(prompt.ids) - 1 : -1].softmax(-1) for model in (target, draft))
        accepted += float(torch.minimum(p, q).sum())
        agreed += int((p.argmax(-1) == q.argmax(-1)).sum())
        tokens += len(p)
    return {
        "acceptance": round(accepted / tokens, 4),
        "agreement": round(agreed / tokens, 4),
        "prompts": len(prompts),
        "tokens": tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="folder of the story model")
    parser.add_argument("draft", type=Path, help="folder of the draft model")
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target, draft = (
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (args.target, args.draft)
    )
    stories = read_stories(args.heldout)
    report: dict[str, object] = {
        "parameters": sum(p.numel() for p in draft.parameters()),
        "bytes": sum(path.stat().st_size for path in args.draft.glob("*") if path.suffix in (".json", ".safetensors")),
    }
    for kind in KINDS:
        prompts = prompts_of(kind, stories, tokenizer, args.prompts, random.Random(args.seed))
        report[kind] = compare(target, draft, prompts, args.seed)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
