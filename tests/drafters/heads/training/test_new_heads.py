"""New heads of feed-forward blocks begin with what the target predicts."""

from __future__ import annotations

import torch

from feed_forward_heads import HEADS, HIDDEN, tiny_target
from speculant.drafters.heads.blockwise.recipe import new_blockwise
from speculant.drafters.heads.hydra.recipe import new_hydra
from speculant.drafters.heads.medusa.recipe import new_medusa
from speculant.drafters.heads.mlp.recipe import new_mlp


def test_new_heads_begin_with_the_targets_output() -> None:
    """Guards copies of the output projection and blocks that are the identity; Hydra's reads embeddings a little."""
    target, f = tiny_target(), torch.randn(2, HIDDEN)
    with torch.no_grad():
        wanted = target.project(f)
        for own in (False, True):
            head = new_medusa(target, heads=HEADS, own=own, blocks=2)
            assert head.depth == HEADS
            for index in range(HEADS):
                torch.testing.assert_close(head.project(f, index, target), wanted, atol=1e-5, rtol=1e-5)
        states = new_blockwise(target).states(f, target)
        torch.testing.assert_close(target.project(states[:, 3]), wanted, atol=1e-5, rtol=1e-5)
        hydra = new_hydra(target)
        zeros = torch.zeros(2, HIDDEN)
        found = hydra.project(torch.cat([f, zeros], dim=-1), 0, target)
        assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.95


def test_sizes() -> None:
    """Guards the sizes that options choose."""
    target = tiny_target()
    assert new_mlp(target, steps=5, inner=16, tied=True).shape.inner == 16
    assert new_mlp(target).shape.inner == HIDDEN
    assert new_blockwise(target, heads=2, inner=8).up.weight.shape == (16, HIDDEN)
