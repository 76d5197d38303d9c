"""Fifty real prompts on two small real models: 0 mismatches with `model.generate`; the bundled draft model's drafts."""

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


def test_the_bundled_draft_model_is_the_default_and_predicts_its_target() -> None:
    """Guards that no model need be named, and weights that draft no better than chance."""
    speculator = Speculator.from_pretrained(method="draft-model", nodes=3)
    results = [speculator.generate(prompt, max_new_tokens=40, temperature=0) for prompt in prompts(count=5)]
    rounds, tokens = (sum(getattr(result.stats, name) for result in results) for name in ("rounds", "tokens"))
    assert tokens / rounds > 1.3
    plain = Speculator.from_transformers(speculator.model, method="none")
    ids = speculator.tokenizer(prompts(count=1)[0]).input_ids
    assert results[0].ids == plain.generate(ids, max_new_tokens=40, temperature=0).ids


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
