"""Draft trees in the forms of engines, written plainly: what the engines' own code is compared with."""

from __future__ import annotations

import numpy as np

from speculant.core.exports import ancestor_mask
from speculant.core.tree import ROOT, Bool, DraftTree


def sequence_sets(tree: DraftTree) -> list[list[int]]:
    """Return, for each row of a pass, the ids of the leaves at or below it (llama.cpp's form).

    One sequence id per leaf, counted from 0 in the order of rows; a root alone has the single sequence 0.
    """
    parents = tree.rows(0)[1].tolist()
    inner = set(parents)
    sets: list[list[int]] = [[] for _ in parents]
    for sequence, leaf in enumerate(row for row in range(len(parents)) if row not in inner):
        row = leaf
        while row != ROOT:
            sets[row].append(sequence)
            row = parents[row]
    return sets


def attention_mask(tree: DraftTree, prefix: int | Bool, *, window: int | None = None) -> Bool:
    """Return Bool[1, 1, R, L + R] of the R = N + 1 + Q rows, True where one may attend (transformers' sdpa form).

    Args:
        prefix: the length L of what is cached, or Bool[L] with False at padding.
        window: for sliding layers, how many positions back a row sees, itself included.
    """
    seen = np.ones(prefix, bool) if isinstance(prefix, int) else prefix
    length, below = len(seen), ancestor_mask(tree)
    rows = len(below)
    mask = np.empty((1, 1, rows, length + rows), bool)
    mask[..., :length] = seen
    mask[..., length:] = below
    if window is not None:
        depths = np.concatenate([tree.depths(), tree.queries.depths()])
        positions = np.concatenate([np.arange(length + 1), length + depths])
        mask &= positions > positions[length:, None] - window
    return mask
