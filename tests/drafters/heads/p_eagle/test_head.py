"""P-EAGLE: all depths from mask tokens in one pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagles import (
    HIDDEN,
    compare_histories,
    eagle3_features,
    eagle3_formula,
    p_eagle_head,
    plain_text,
    replayed,
    states,
)
from models import deep_model
from speculant import Speculator
from speculant.drafters.heads.eagle3 import checkpoint as eagle3
from speculant.engines.hf.views.target_parts import HFTargetParts

PROMPT = [5, 7, 9, 11, 13]


@pytest.mark.parametrize("fc_norm", [False, True])
def test_all_depths_are_one_pass_of_the_formula(target: HFTargetParts, *, fc_norm: bool) -> None:
    """Guards mask rows: positions after the anchor, the mask's embedding, and `mask_hidden` through fc."""
    head, (hidden, following) = p_eagle_head(fc_norm=fc_norm), states(6)
    state, weights = replayed(head, target, hidden, following), head.state_dict()
    masks = head.mask_hidden.detach().reshape(1, 3, HIDDEN).expand(3, -1, -1)
    with torch.inference_mode():
        features = eagle3_features(weights, head.shape, torch.cat([hidden, masks]))
        tokens = torch.cat([following, torch.full((3,), head.mask_token)])
        causal = torch.ones(9, 9, dtype=torch.bool).tril()
        wanted, _ = eagle3_formula(weights, head.shape, target, features, tokens, range(9), causal)
        found = torch.cat([state.start(), state.grow([11], [-1]), state.grow([12], [0]), state.grow([13], [1])])
    assert torch.allclose(found, wanted[5:], atol=1e-5, rtol=1e-4)


def test_depths_do_not_depend_on_tokens(target: HFTargetParts) -> None:
    """Guards trees: all nodes of a level have the same distribution, whatever tokens were drafted."""
    state = replayed(p_eagle_head(), target, *states(6))
    with torch.inference_mode():
        level = state.grow([1, 2], [-1, -1])
        assert torch.equal(level[0], level[1])
        below = state.grow([3, 4], [0, 1])
        state.drop()
        state.grow([7], [-1])
        assert torch.equal(state.grow([9], [0])[0], below[1])


@pytest.mark.parametrize("seed", range(2))
def test_cached_rows_equal_rows_read_at_once(target: HFTargetParts, seed: int) -> None:
    """Guards the cache: mask rows are dropped before the next rows are read."""
    compare_histories(p_eagle_head(), target, 3, seed)


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_greedy_text_is_the_targets(tmp_path: Path, tree: str) -> None:
    """Guards losslessness with a random head, to no more than its depth."""
    model = deep_model("llama")
    eagle3.save(p_eagle_head(taps=(0, 1, 2), depth=3), tmp_path, HFTargetParts(model))
    speculator = Speculator.from_transformers(model, head=str(tmp_path), nodes=8, settings={"tree": tree})
    assert speculator.method == "p-eagle"
    result = speculator.generate(PROMPT, max_new_tokens=16, temperature=0)
    assert list(result.ids) == plain_text(model, PROMPT, 16)
