"""Parts of decoder layers against transformers' Llama and Qwen3, whose weights they take by name."""

from __future__ import annotations

import pytest
import torch

from models import tiny_model
from speculant.drafters.heads.layers import DecoderLayer, LayerShape, Rotary


@pytest.mark.parametrize(("name", "norms"), [("llama", False), ("qwen3", True)])
def test_a_layer_equals_that_of_transformers(name: str, norms: bool) -> None:
    """Guards grouped-query attention, rotary embedding, norms of queries and keys, and the MLP."""
    model = tiny_model(name)
    theirs = model.model.layers[0]
    mine = DecoderLayer(LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, norms=norms))
    mine.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(1, 9, 32), torch.arange(5, 14)
    rotary = Rotary(mine.self_attn.shape)
    rotated = model.model.rotary_emb(x, positions[None])
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    with torch.no_grad():
        wanted = theirs(x, attention_mask=causal[None, None], position_embeddings=rotated)
        angles, given = rotary.angles(positions, x[0]), mine.attention_input(x[0])
        keys, values = mine.self_attn.keys_values(given, angles)
        found = mine.finish(x[0], mine.self_attn.attend(mine.self_attn.queries(given, angles), keys, values, causal))
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert torch.allclose(found, wanted.reshape(9, 32), atol=1e-5)


def test_frequencies_stay_in_float32() -> None:
    """Guards long texts in half precision: positions times rounded frequencies would be far off."""
    shape = LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, theta=1e6)
    rotary = Rotary(shape)
    wanted = rotary.frequencies.clone()
    rotary.to(torch.bfloat16)
    assert rotary.frequencies.dtype == torch.float32
    assert torch.equal(rotary.frequencies, wanted)
    cos, _ = rotary.angles(torch.tensor([4000]), torch.zeros(1, dtype=torch.bfloat16))
    assert cos.dtype == torch.bfloat16
    assert torch.equal(cos[0, :4], (4000 * wanted).cos().bfloat16())


def test_scaled_frequencies_and_scale_are_used() -> None:
    """Guards scaled rotary embeddings: frequencies and the factor of cos and sin come from the shape."""
    given = torch.tensor([1.0, 0.5, 0.25, 0.125])
    rotary = Rotary(LayerShape(hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, frequencies=given, scale=2.0))
    cos, sin = rotary.angles(torch.tensor([3]), torch.zeros(1))
    assert torch.allclose(cos[0], 2 * torch.cat([3 * given, 3 * given]).cos())
    assert torch.allclose(sin[0], 2 * torch.cat([3 * given, 3 * given]).sin())
