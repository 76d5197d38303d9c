"""`prompt_logprobs`: the model's own figures however a prompt is read, and refusals where rows would be missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models import tiny_model
from speculant import Speculator
from speculant.core.errors import UsageError

OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0, "prompt_logprobs": 2}


def opened() -> tuple[Any, Speculator, torch.Tensor]:
    """Return a model, its speculator and a prompt that is read in several chunks."""
    model = tiny_model("llama", max_position_embeddings=512)
    torch.manual_seed(2)
    return model, Speculator.from_transformers(model, method="mix", fast=False, nodes=4), torch.randint(3, 60, (300,))


def check(found: Any, model: Any, prompt: torch.Tensor) -> None:
    """Compare with one pass of the model: values, alternatives and ranks."""
    with torch.no_grad():
        every = model(prompt[None]).logits[0].float().log_softmax(-1)
    assert found[0] is None
    assert len(found) == len(prompt)
    for place, each in enumerate(found[1:]):
        row, token = every[place], int(prompt[place + 1])
        assert each.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert each.top_logprobs == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
        assert each.rank == pytest.approx(1 + int((row > row[token]).sum()), abs=1)


def test_streams_and_batches() -> None:
    """Guards both ways of decoding, prompts that are read in one pass with others, and prefixes that are cached."""
    model, speculator, prompt = opened()
    check(speculator.generate(prompt, **OPTIONS).prompt_logprobs, model, prompt)
    batch = speculator.batch(3, prefix_cache=1 << 20)
    for prompts in ([prompt[:20], prompt[5:30]], [prompt[:20], prompt]):
        generations = [batch.add(each, **OPTIONS) for each in prompts]
        for _ in batch:
            pass
        for generation, each in zip(generations, prompts, strict=True):
            assert generation.error is None
            check(generation.result.prompt_logprobs, model, each)


def test_nothing_unless_asked() -> None:
    """Guards results without the option."""
    _, speculator, prompt = opened()
    assert speculator.generate(prompt, max_new_tokens=2).prompt_logprobs is None


def test_texts_stay_the_same() -> None:
    """Guards the text: the rows that are read are the same."""
    _, speculator, prompt = opened()
    without = {name: value for name, value in OPTIONS.items() if name != "prompt_logprobs"}
    assert speculator.generate(prompt, **OPTIONS).ids == speculator.generate(prompt, **without).ids


@pytest.mark.parametrize("options", [{"cache": True}, {"attention_mask": True}, {"prompt_logprobs": 21}])
def test_what_is_refused(options: dict[str, Any]) -> None:
    """Guards caches and padding, whose rows are not computed or mean nothing, and the number's bound."""
    _, speculator, prompt = opened()
    if "cache" in options:
        options = {"cache": speculator.generate(prompt, max_new_tokens=2).cache}
    if "attention_mask" in options:
        options = {"attention_mask": torch.cat([torch.zeros(1, 2), torch.ones(1, 298)], dim=1).long()}
    with pytest.raises(UsageError, match="prompt_logprobs"):
        speculator.generate(prompt, **OPTIONS | options)
