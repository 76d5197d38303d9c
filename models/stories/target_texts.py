"""Let the story model write the text that its draft model learns from, with its distribution at every position.

A draft model should know what the target writes, not what people write (Kim and Rush 2016, sequence-level knowledge
distillation). So the prompts are beginnings of the training stories, bare and in the chat template, and requests to
rewrite short ones; the target continues them, half of them greedily and half sampled at temperature 1. Stored beside
the tokens are the 32 most probable tokens of each position and their log probabilities, so that training never runs
the target.

Texts come in shards of 128 with prompts of like length, each made from its own seed: an interrupted run goes on with
the first missing shard, and more shards can be added later.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

from edits import sample_edit
from tokenizer import read_stories

ROWS = 128  # texts in a shard
POOL = 16  # shards whose prompts are made together, then sorted by length
NEW_TOKENS = 256  # of a text, at most
TOP = 32  # tokens of each position whose probability is stored
REWRITE_BYTES = 500  # of a story to rewrite, at most
COMPACT_STEPS = 8  # passes between removals of finished texts from the batch


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids to continue, and whether greedily."""

    ids: list[int]
    greedy: bool


def make_prompt(stories: list[str], tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> Prompt:
    """Return a prompt: the beginning of a story, nothing, or a message in the chat template."""
    kind = rng.random()
    if kind < 0.1:
        return Prompt([tokenizer.bos_token_id], greedy=False)  # greedily, there is but one such text
    story = rng.choice(stories)
    text = " ".join(story.split(" ")[: rng.randint(1, 60)])
    if kind < 0.25 and len(story) < REWRITE_BYTES * 2:
        edit = sample_edit(story[: story.rfind(".", 0, REWRITE_BYTES) + 1], rng)
        text = edit.request if edit else text
    if kind < 0.4:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        return Prompt(tokenizer(text, add_special_tokens=False)["input_ids"], greedy=rng.random() < 0.6)
    return Prompt(tokenizer(text)["input_ids"], greedy=rng.random() < 0.5)


def shard_prompts(number: int, stories: list[str], tokenizer: PreTrainedTokenizerBase, *, seed: int) -> list[Prompt]:
    """Return the prompts of a shard, which are of like length."""
    pool, place = divmod(number, POOL)
    rng = random.Random(f"{seed} {pool}")
    prompts = sorted((make_prompt(stories, tokenizer, rng) for _ in range(POOL * ROWS)), key=lambda p: len(p.ids))
    order = rng.sample(range(POOL), POOL)
    return prompts[order[place] * ROWS :][:ROWS]


@torch.inference_mode()
def write(
    model: LlamaForCausalLM, prompts: list[Prompt], seed: int, new_tokens: int = NEW_TOKENS
) -> dict[str, np.ndarray]:
    """Return the texts, prompts included, and the target's most probable tokens after each token but the last.

    Returns:
        `ids` of all texts in a row, `lengths` of the texts, and `top_ids` and `top_logps` [len(ids), TOP], which stand
        beside the token that they follow.
    """
    generator = torch.Generator().manual_seed(seed)
    longest = max(len(prompt.ids) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest + new_tokens, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.ids) : longest] = torch.tensor(prompt.ids)
        mask[row, longest - len(prompt.ids) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    greedy = torch.tensor([prompt.greedy for prompt in prompts])
    tops = torch.zeros(*ids.shape, TOP, dtype=torch.int16)
    logps = torch.zeros(*ids.shape, TOP, dtype=torch.float16)
    ends = torch.full((len(prompts),), longest + new_tokens)
    cache = DynamicCache(config=model.config)
    active = torch.arange(len(prompts))
    start = 0
    for end in range(longest, longest + new_tokens):
        logits = model(
            input_ids=ids[active, start:end],
            attention_mask=mask[active, :end],
            position_ids=positions[active, start:end],
            past_key_values=cache,
        ).logits
        found = top_of(logits)
        tops[active, start:end], logps[active, start:end] = found
        ids[active, end] = choose(logits[:, -1], greedy[active], generator)
        done = ids[active, end] == model.config.eos_token_id
        ends[active[done]] = end + 1
        start = end
        if end % COMPACT_STEPS == 0:
            left = (ends[active] > end + 1).nonzero().squeeze(1)
            if len(left) == 0:
                break
            if len(left) < len(active):
                active = active[left]
                cache.batch_select_indices(left)
    kept = mask.bool() & (torch.arange(ids.size(1)) < ends[:, None])
    return {
        "ids": ids[kept].to(torch.int16).numpy(),
        "lengths": kept.sum(1).numpy(),
        "top_ids": tops[kept].numpy(),
        "top_logps": logps[kept].numpy(),
    }


def top_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens of each position and their log probabilities."""
    found, tokens = logits.topk(TOP, sorted=False)
    return tokens.to(torch.int16), (found - logits.logsumexp(-1, keepdim=True)).to(torch.float16)


def choose(logits: Tensor, greedy: Tensor, generator: torch.Generator) -> Tensor:
    """Return the next token of each row: the most probable one, or one drawn at temperature 1."""
    drawn = logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return torch.where(greedy, logits.argmax(-1), drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="folder of the story model")
    parser.add_argument("data", type=Path, help="folder with train-a.txt and train-b.txt")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder that gets the shards")
    parser.add_argument("--first", type=int, default=0, help="first shard, for several runs at once")
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    stories = read_stories(args.data / "train-a.txt", args.data / "train-b.txt")
    for number in range(args.first, args.shards):
        path = args.out / f"texts-{number:03}.npz"
        if path.exists():
            continue
        clock = time.time()
        prompts = shard_prompts(number, stories, tokenizer, seed=args.seed)
        texts = write(model, prompts, seed=1000 * args.seed + number)
        unfinished = path.with_suffix(".tmp.npz")
        np.savez(unfinished, **texts)
        unfinished.rename(path)
        print(f"{path.name}  {len(texts['ids'])} tokens in {time.time() - clock:.0f} s", flush=True)


if __name__ == "__main__":
    main()
