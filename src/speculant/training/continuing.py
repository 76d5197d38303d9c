"""Continues many prompts at once with a transformers model, removing finished texts from the batch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from speculant.training.texts import Texts, from_parts

COMPACT_EVERY = 8  # passes between removals of finished texts


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to continue, and the temperature; 0 for greedy decoding."""

    ids: list[int]
    temperature: float


def continue_texts(model: Any, prompts: Sequence[TokenPrompt], *, new_tokens: int, seed: Sequence[int]) -> Texts:
    """Return the texts, prompts included.

    Args:
        model: a transformers causal LM.
        prompts: non-empty prompts of similar length, since shorter ones are padded.
        new_tokens: maximum new tokens per text, within the model's positions.
        seed: seed of sampling.
    """
    longest = max(len(prompt.ids) for prompt in prompts)
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    end = longest + new_tokens if positions is None else max(longest, min(longest + new_tokens, positions))
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
    with torch.inference_mode():
        ids, ends = _run(model, prompts, longest, end, torch.Generator(model.device).manual_seed(number))
    given = [len(prompt.ids) for prompt in prompts]
    parts = [row[longest - size : stop] for row, size, stop in zip(ids, given, ends, strict=True)]
    return from_parts(parts, given)


def _run(
    model: Any, prompts: Sequence[TokenPrompt], longest: int, end: int, generator: torch.Generator
) -> tuple[Any, list[int]]:
    """Return the ids [rows, end], left-padded, and the end of each text."""
    device = model.device
    ids = torch.zeros(len(prompts), end, dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.ids) : longest] = torch.tensor(prompt.ids)
        mask[row, longest - len(prompt.ids) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    temperatures = torch.tensor([prompt.temperature for prompt in prompts], device=device)
    ending = torch.tensor(find_end_tokens(model), dtype=torch.long, device=device)
    takes = inspect.signature(model.forward).parameters
    ends = torch.full((len(prompts),), end, device=device)
    cache, active, start = DynamicCache(config=model.config), torch.arange(len(prompts), device=device), 0
    for place in range(longest, end):
        options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        if "position_ids" in takes:
            options["position_ids"] = positions[active, start:place]
        logits = model(
            input_ids=ids[active, start:place],
            attention_mask=mask[active, :place],
            past_key_values=cache,
            use_cache=True,
            **options,
        ).logits
        ids[active, place] = _choose(logits[:, -1].float(), temperatures[active], generator)
        ended = active[torch.isin(ids[active, place], ending)]
        ends[ended] = ends[ended].clamp(max=place + 1)  # rows continue until they are removed, and may end again
        start = place
        if place % COMPACT_EVERY == 0:
            left = (ends[active] > place + 1).nonzero().squeeze(1)
            if not len(left):
                break
            if len(left) < len(active):
                active = active[left]
                cache.batch_select_indices(left)
    return ids.cpu().numpy(), ends.tolist()


def _choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Return the next token of each row."""
    divisors = temperatures.clamp(min=1e-5)[:, None]
    drawn = (logits / divisors).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    return torch.where(temperatures > 0, drawn, logits.argmax(-1))


def find_end_tokens(model: Any) -> list[int]:
    """Return the tokens that end a text."""
    for config in (getattr(model, "generation_config", None), model.config):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []
