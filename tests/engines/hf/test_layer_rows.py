"""Keys of single layers, and passes that read embeddings of the drafter's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from block_heads import lent_cache
from models import VOCABULARY, tiny_model
from speculant.core.errors import UnsupportedError, UsageError
from speculant.engines.hf.engine import HFEngine

TEXT = torch.tensor([5, 7, 9, 11, 13])


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_rows_are_those_of_committed_tokens(name: str) -> None:
    """Guards which rows are read: committed tokens of a layer, not those of a draft."""
    model = tiny_model(name)
    cache = lent_cache(model, TEXT)
    cache.forward(np.array([3, 4], np.int32), np.array([-1, 0], np.int32))
    cache.keep([0])
    keys, values = cache.layer_rows(-1)
    with torch.no_grad():
        held = model(torch.cat([TEXT, torch.tensor([3])])[None], use_cache=True).past_key_values.layers[-1]
    torch.testing.assert_close(keys, held.keys[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(values, held.values[0], atol=1e-4, rtol=1e-4)
    with pytest.raises(UnsupportedError, match="layer 9"):
        cache.layer_rows(9)


def test_padding_is_left_out() -> None:
    """Guards padded prompts: rows are the tokens'."""
    model = tiny_model("llama")
    padded = torch.cat([torch.zeros(2, dtype=torch.long), TEXT])[None]
    cache = HFEngine(model).open(padded, padding=(torch.arange(7) >= 2).long()[None])
    cache.prefill()
    for got, want in zip(cache.layer_rows(0), lent_cache(model, TEXT).layer_rows(0), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_further_embeddings(name: str) -> None:
    """Guards the view: rows of further tokens read the given embeddings, in trees too, and cannot be kept."""
    model = tiny_model(name)
    cache, further = lent_cache(model, TEXT), torch.randn(2, 32)
    tokens, parents = np.array([3, VOCABULARY, VOCABULARY + 1], np.int32), np.array([-1, 0, 0], np.int32)
    got = cache.forward(tokens, parents, embeddings=further).logits
    with pytest.raises(UsageError, match="cannot be kept"):
        cache.keep([0])
    cache.rollback()
    embed = model.get_input_embeddings()
    with torch.no_grad():
        text = embed(torch.cat([TEXT, torch.tensor([3])]))
        for row in (0, 1):
            want = model(inputs_embeds=torch.cat([text, further[row : row + 1]])[None]).logits[0, -1]
            torch.testing.assert_close(got[row + 1], want, atol=1e-4, rtol=1e-4)
    with pytest.raises(UsageError, match=f"token {VOCABULARY}"):
        cache.forward(tokens, parents)
    cache.forward(tokens[:1], parents[:1])
    cache.keep([0])
