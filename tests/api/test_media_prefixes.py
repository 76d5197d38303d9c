"""Prompts with the same media go on from each other's rows; the text is that of `generate`, nothing else is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from media_models import PLACEHOLDER, build_media_model
from speculant import Speculator
from speculant.engines.hf.prompt import slices_by_length

pytestmark = pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise")
Inputs = dict[str, torch.Tensor]


def ask(inputs: Inputs, *, seed: int, before: int = 0) -> Inputs:
    """Return a prompt with the same media, other text behind them, and with `before` set another token in front."""
    ids = inputs["input_ids"].clone()
    if before:
        ids[0, 0] = before
    behind = torch.randint(5, 90, (1, 20), generator=torch.Generator().manual_seed(seed))
    behind[behind == PLACEHOLDER] = 5
    behind[0, :4] = 5  # shared by all, so that every model's common prefix fills a block
    found = dict(inputs) | {"input_ids": torch.cat([ids, behind], dim=1)}
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            found[name] = (found["input_ids"] == PLACEHOLDER).long()
    return found


def decode(batch: Any, inputs: Inputs) -> tuple[list[int], int]:
    """Return the text of a prompt, and how many of its tokens were found."""
    generation = batch.add(inputs, max_new_tokens=24, temperature=0)
    while not generation.done:
        batch.step()
    return generation.result.ids, generation.result.stats.reused_tokens


def plain(model: Any, inputs: Inputs) -> list[int]:
    ids: list[int] = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()
    return ids[inputs["input_ids"].shape[1] :]


FURTHER = ("qwen2_vl", "glm4v", "internvl", "idefics3", "gemma4", "llama4", "voxtral", "mistral3", "qwen2_5_vl")


@pytest.mark.parametrize(
    "name", ["llava", "gemma3", "qwen3_vl"] + [pytest.param(name, marks=pytest.mark.slow) for name in FURTHER]
)
def test_questions_about_the_same_media_share_their_rows(name: str) -> None:
    """Guards positions behind kept media on one axis and several, windows, and other media and texts before them."""
    model, inputs = build_media_model(name)
    first, second, behind = (ask(inputs, seed=1), ask(inputs, seed=2), ask(inputs, seed=1, before=17))
    others = {key: value * 0.5 if value.is_floating_point() else value for key, value in second.items()}
    prompts = (first, second, others, behind)
    expected = [plain(model, prompt) for prompt in prompts]
    end = int((first["input_ids"][0] == PLACEHOLDER).nonzero().max()) + 1
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    with speculator.batch(2, prefix_cache="8MB") as batch:
        found = [decode(batch, prompt) for prompt in prompts]
    assert [text for text, _ in found] == expected
    assert [reused >= end for _, reused in found] == [False, True, False, False]


def test_prompts_that_read_ahead_share_nothing() -> None:
    """Guards PaliGemma's kind, whose images see the question: rows behind another question are found to be wrong."""
    model, inputs = build_media_model("paligemma")
    prompts = [ask(inputs, seed=seed) for seed in (1, 2)]
    for prompt in prompts:
        prompt["token_type_ids"] = torch.zeros_like(prompt["input_ids"])
    expected = [plain(model, prompt) for prompt in prompts]
    speculator = Speculator.from_transformers(model, method="mix", nodes=6)
    with speculator.batch(2, prefix_cache="8MB") as batch:
        assert [decode(batch, prompt) for prompt in prompts] == [(text, 0) for text in expected]
