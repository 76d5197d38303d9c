"""The requests that tests and benchmarks of the vLLM integration decode."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from speculant.api.loading import bundled_heads, bundled_model, load_tokenizer
from speculant.bench.replay.traces import read_recordings
from vllm_runs.jobs import Ask, Job, Turn
from vllm_runs.replay_model import write_replay_model

FIRST, PROMPTS, WORDS = 1000, 50, 12
NAMES = ("Lily", "Tim", "Tom", "Ben", "Sam", "Sue", "Max", "Jack", "Lucy")
TRACE, SESSIONS, TURNS, VOCABULARY, END, LONGEST = "llama31-8b-instructcoder", 8, 5, 128_256, 128_009, 8192


def stories(data: Path) -> list[list[Ask]]:
    """Return the held-out prompts on the bundled model; their lengths differ, so that rows join and leave."""
    text = (data / "text/tinystories/heldout.txt").read_text(encoding="utf-8")
    held_out = [story.split() for story in text.split("<|endoftext|>")]
    prompts = [" ".join(words[:WORDS]) for words in held_out if len(words) > WORDS][FIRST : FIRST + PROMPTS]
    tokenizer = load_tokenizer()
    asks = [Ask(prompt=tokenizer(text).input_ids, maximum=40 + i * 37 % 161) for i, text in enumerate(prompts)]
    return [asks]


def rewrites(data: Path) -> list[list[Ask]]:
    """Return requests to the bundled model to rewrite held-out stories with another name, which copies most tokens."""
    text = (data / "text/tinystories/heldout.txt").read_text(encoding="utf-8")
    tokenizer = load_tokenizer()
    asks: list[Ask] = []
    for story in text.split("<|endoftext|>")[FIRST:]:
        words, name = " ".join(story.split()), next((each for each in NAMES if f" {each} " in story), None)
        if name is None or "Mia" in story:
            continue
        message = {"role": "user", "content": f"Rewrite the story, calling {name} Mia: {words}"}
        ids = tokenizer(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))
        prompt = [token for i, token in enumerate(ids.input_ids) if not (i == 1 and token == ids.input_ids[0])]
        if 100 <= len(prompt) <= 250:
            asks.append(Ask(prompt=prompt, maximum=len(prompt)))
        if len(asks) == PROMPTS:
            break
    return [asks]


def edits(data: Path, folder: Path) -> list[list[Ask]]:
    """Write a model that replays recorded edit conversations; return them, a wave for each turn of all of them.

    The requests are odd ones of the trace, on which no setting was chosen.
    """
    recordings = list(read_recordings(data / f"traces/{TRACE}.jsonl"))[1::2]
    waves: list[list[Ask]] = [[] for _ in range(TURNS)]
    answers = []
    for session in range(SESSIONS):
        text: list[int] = []
        for turn in range(TURNS):
            recording = recordings[session * TURNS + turn]
            prompt, output = recording.prompt.tolist(), recording.output.tolist()
            output = output[:-1] if output[-1] == END else output
            text = [*text, *(prompt[1:] if text else prompt)]  # one beginning-of-text token is enough
            waves[turn].append(Ask(prompt=text, maximum=len(output) + 1))
            answers.append((text, output))
            text = [*text, *output, END]
    write_replay_model(folder, answers, vocabulary=VOCABULARY, longest=LONGEST, end=END)
    return waves


def samples(count: int, *, tokens: int, temperature: float, first_seed: int) -> list[list[Ask]]:
    """Return a prompt that is answered many times, sampled with other seeds each time."""
    prompt = load_tokenizer()("Once upon a time there was a little").input_ids
    return [[Ask(prompt=prompt, maximum=tokens, temperature=temperature, seed=first_seed + i) for i in range(count)]]


def on_bundled_model(*turns: Turn, rows: int = 16, ranks: int = 1, scheduler: str = "") -> Job:
    """Return a job on the bundled model."""
    return Job(model=str(bundled_model()), turns=list(turns), rows=rows, ranks=ranks, scheduler=scheduler)


def bundled_head(kind: str, drafts: int) -> dict[str, Any]:
    """Return vLLM's speculative_config that selects the bundled model's head, `eagle` or `eagle3`."""
    folder = next(each for each in bundled_heads() if each.name == kind)
    return {"method": kind, "model": str(folder), "num_speculative_tokens": drafts}


def on_recordings(folder: Path, *turns: Turn) -> Job:
    """Return a job on the model that `edits` wrote."""
    return Job(model=str(folder), turns=list(turns), replay=True, longest=LONGEST)


def total_variation(first: list[list[int]], second: list[list[int]], length: int) -> float:
    """Return the total variation between the first `length` tokens of two samples of answers."""
    counts = [Counter(tuple(answer[:length]) for answer in answers) for answers in (first, second)]
    every = set(chain(*counts))
    return sum(abs(counts[0][each] / len(first) - counts[1][each] / len(second)) for each in every) / 2
