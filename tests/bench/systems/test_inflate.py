"""Small models made costly without changing what they say."""

from __future__ import annotations

from typing import Any

import pytest

from models import deep_model
from speculant.api.loading import load_model
from speculant.api.speculator import Speculator
from speculant.bench.systems.inflate import check_inflation, inflate
from speculant.core.errors import UnsupportedError, UsageError


def test_the_bundled_model_says_the_same() -> None:
    """Token-identical, with more layers and wider MLPs in every pass."""
    model, tokenizer = load_model(device="cpu")
    large = inflate(model, layers=model.config.num_hidden_layers + 2, mlp=model.config.intermediate_size + 64)
    assert large.num_parameters() > model.num_parameters()
    texts = [
        Speculator.from_transformers(each, tokenizer, method="lookup").generate("Once upon a time", max_new_tokens=24)
        for each in (model, large)
    ]
    assert texts[0].ids == texts[1].ids
    assert len(texts[1].cache.layers) == model.config.num_hidden_layers + 2


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_families(name: str) -> None:
    """Each family that is promised works, and the model itself stays as it was."""
    model = deep_model(name)
    large = inflate(model, layers=5, mlp=96)
    prompt: Any = [3, 4, 5]
    one, other = (Speculator.from_transformers(each, method="none").generate(prompt, max_new_tokens=12)
                  for each in (model, large))  # fmt: skip
    assert one.ids == other.ids
    assert (model.config.num_hidden_layers, large.config.num_hidden_layers) == (3, 5)
    assert {layer.mlp.gate_proj.weight.shape[0] for layer in large.model.layers} == {96}


def test_what_cannot_be_inflated() -> None:
    """Other architectures and smaller sizes are refused with what to do."""
    with pytest.raises(UnsupportedError, match="--config"):
        inflate(deep_model("gpt2"), layers=4)
    with pytest.raises(UsageError, match="not cut to 2 layers"):
        inflate(deep_model("llama"), layers=2)
    with pytest.raises(UsageError, match="not cut to 3 layers and 4"):
        check_inflation(deep_model("llama").config, mlp=4)
