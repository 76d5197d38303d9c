"""Fifty real prompts on two small real models: 0 mismatches with `model.generate`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from speculant import Speculator

DATA = os.environ.get("SPECULANT_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="SPECULANT_DATA is not set")


def prompts(words: int = 10, count: int = 50) -> list[str]:
    """Return the first words of held-out stories."""
    text = (Path(DATA or "") / "text/tinystories/heldout.txt").read_text(encoding="utf-8")
    cut = [" ".join(story.split()[:words]) for story in text.split("<|endoftext|>")]
    return [prompt for prompt in cut if prompt][:count]


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, "models/stories260K"], ids=["bundled", "stories260K"])
def test_real_prompts_on_real_models(model: str | None) -> None:
    """Guards the whole, greedy and sampled, with a memory that grows over the prompts."""
    speculator = Speculator.from_pretrained(None if model is None else str(Path(DATA or "") / model))
    for number, prompt in enumerate(prompts()):
        ids = speculator.tokenizer(prompt, return_tensors="pt").input_ids
        options = {"do_sample": True, "temperature": 0.8, "top_p": 0.95} if number % 2 else {"do_sample": False}
        torch.manual_seed(number)
        plain = speculator.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, **options)
        torch.manual_seed(number)
        ours = speculator.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, custom_generate=speculator, **options
        )
        assert torch.equal(plain, ours), prompt
