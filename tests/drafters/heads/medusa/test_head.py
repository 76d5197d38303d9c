"""Medusa heads compute the formula of their authors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from feed_forward_heads import HIDDEN, new_medusa, tiny_target


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"blocks": 1},
        {"shared": False},
        {"bias": False},
        {"projection": "target"},
        {"projection": "one"},
        {"scale": 0.5},
        {"vocabulary": 20, "ids": torch.arange(20) * 3},
    ],
)
def test_logits_are_those_of_the_formula(changes: dict[str, Any]) -> None:
    """Guards every option against x + SiLU(A x + b), repeated, and the projection; head i is that of depth i + 1."""
    target, head = tiny_target(), new_medusa(**changes)
    hidden = torch.randn(3, 1, HIDDEN)
    weights = head.state_dict()
    with torch.inference_mode():
        state = head.open(0, target)
        state.extend(hidden, torch.tensor([1, 2, 3]))
        found = [state.start()[0], state.grow([4], [-1])[0], state.grow([5], [0])[0]]
        for depth, logits in enumerate(found):
            x = target.norm(hidden[-1, 0])
            for block in range(head.shape.blocks):
                name = f"{depth}.{block}.linear"
                bias = weights[f"{name}.bias"] if head.shape.bias else 0.0
                x = x + silu(weights[f"{name}.weight"] @ x + bias)
            own = head.shape.projection != "target"
            projection = weights[f"{depth}.{head.shape.blocks}.weight"] if own else target.projection()
            torch.testing.assert_close(logits, projection @ x * head.shape.scale, atol=1e-5, rtol=1e-5)


def test_blocks_of_a_head_share_their_weights_as_in_the_authors_program() -> None:
    """Guards the number of trained weights: two blocks are one module."""
    head, apart = new_medusa(), new_medusa(shared=False)
    assert sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in head.parameters()) == 3 * 32 * 33
    assert set(head.state_dict()) == set(apart.state_dict())
