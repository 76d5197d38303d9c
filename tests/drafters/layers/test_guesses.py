"""The tree of guesses."""

from __future__ import annotations

import torch

from speculant.drafters.layers.guesses import Guesses
from speculant.drafters.models.shapes import Level
from speculant.drafters.models.tree_acceptance import LevelAcceptance


def test_guesses_and_their_continuations() -> None:
    """Guards the tree: the top k below the root, then one child a node."""
    shape, generator = Guesses(LevelAcceptance(), top_k=2, depth=3), torch.Generator()
    first = shape.expand(Level(1, torch.tensor([[0.1, 0.6, 0.3]]), [1.0], 9, 3, True, False, generator))
    assert [(each.parent, each.token) for each in first] == [(0, 1), (0, 2)]
    assert shape.select([0.6, 0.3]) == [0, 1]
    q = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    second = shape.expand(Level(2, q, [0.6, 0.3], 9, 2, True, False, generator))
    assert [(each.parent, each.token) for each in second] == [(0, 0), (1, 2)]
