"""MLP speculators compute the formula of their authors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import gelu

from feed_forward_heads import HEADS, HIDDEN, new_mlp, tiny_target


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_logits_are_those_of_the_formula(*, tied: bool, scaled: bool) -> None:
    """Guards the weight of the state, the scaling of the input, the norm with a bias, and shared steps."""
    target, head = tiny_target(), new_mlp(tied=tied, scaled=scaled)
    hidden, tokens, w = torch.randn(3, 1, HIDDEN), [4, 5, 6], head.state_dict()
    weight = 0.5 ** (0.5 / HEADS)
    factor = math.sqrt((1 - weight**2) * 24 / 2)
    with torch.inference_mode():
        state = head.open(0, target)
        state.extend(hidden, torch.tensor([1, 2, 4]))
        found = [state.start()[0], state.grow([5], [-1])[0], state.grow([6], [0])[0]]
        s = target.norm(hidden[-1, 0])
        if scaled:
            s = s / (s.pow(2).mean() + 1e-6).sqrt() / math.sqrt(2)
        for i, token in enumerate(tokens):
            s = w[f"proj.{i}.weight"] @ s + factor / weight * w[f"emb.{i}.weight"][token]
            s = gelu(w[f"ln.{i}.weight"] * (s / (s.pow(2).mean() + 1e-6).sqrt()) + w[f"ln.{i}.bias"])
            torch.testing.assert_close(found[i], w[f"head.{i}.weight"] @ s, atol=1e-4, rtol=1e-4)


def test_tied_steps_have_one_set_of_weights_but_for_the_first_projection() -> None:
    """Guards the number of weights, and a single step, which has no other projection."""
    names = {name for name, _ in new_mlp(tied=True).named_parameters()}
    assert names == {"emb.0.weight", "proj.0.weight", "proj.1.weight", "head.0.weight", "ln.0.weight", "ln.0.bias"}
    assert len(new_mlp(tied=True, steps=1).state_dict()) == 5
