"""Blockwise heads compute the formula of the paper."""

from __future__ import annotations

import torch

from feed_forward_heads import HIDDEN, new_blockwise, tiny_target
from speculant.drafters.heads.blockwise.head import BlockwiseHead


def test_logits_are_those_of_the_formula() -> None:
    """Guards the hidden layer that all heads share, the residual, and the target's own projection."""
    target, head = tiny_target(), new_blockwise()
    hidden, w = torch.randn(3, 1, HIDDEN), head.state_dict()
    with torch.inference_mode():
        state = head.open(0, target)
        state.extend(hidden, torch.tensor([1, 2, 3]))
        found = [state.start()[0], state.grow([4], [-1])[0], state.grow([5], [0])[0]]
        f = target.norm(hidden[-1, 0])
        change = w["down.weight"] @ (w["up.weight"] @ f + w["up.bias"]).clamp(min=0) + w["down.bias"]
        for depth, logits in enumerate(found):
            wanted = target.projection() @ (f + change[depth * HIDDEN : (depth + 1) * HIDDEN])
            torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


def test_new_heads_predict_what_the_target_does() -> None:
    """Guards the start of training: without a change, every head has the root's distribution."""
    target, f = tiny_target(), torch.randn(HIDDEN)
    with torch.inference_mode():
        states = BlockwiseHead(HIDDEN, 16, 2).states(f, target)
        torch.testing.assert_close(target.project(states), target.project(f).expand(2, -1))
