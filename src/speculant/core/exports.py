"""The forms in which engines take draft trees: masks of who attends to whom, and sets of sequences.

Tree attention, in which a row attends to its ancestors only, is from SpecInfer (Miao et al., ASPLOS 2024, arXiv
2305.09781). Row 0 is the root, row i + 1 is node i, queries come last.
"""

from __future__ import annotations

import numpy as np

from speculant.core.tree import ROOT, Bool, DraftTree, Float32


def ancestor_mask(tree: DraftTree, width: int | None = None) -> Bool:
    """Return Bool[width, width]: row i may attend to column j; row 0 is the root, queries come last.

    `width` defaults to N + 1 + Q. Rows beyond are padding: they hang directly below the root (SGLang's form).

    Raises:
        ValueError: the draft does not fit the width.
    """
    parents = tree.rows(0)[1].tolist()
    rows = len(parents)
    width = rows if width is None else width
    if rows > width:
        raise ValueError(f"{rows} rows do not fit a mask of width {width}; draft at most {width - 1} nodes")
    mask = np.eye(width, dtype=bool)
    mask[:, 0] = True
    for row in range(1, rows):
        mask[row] |= mask[parents[row]]
    return mask


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


def additive(mask: Bool, minimum: float) -> Float32:
    """Return the mask as a float to be added to attention scores: 0 where True, else `minimum`.

    Eager attention adds whatever it is given, so a bool mask is silently wrong there. `minimum` is the
    smallest number of the model's dtype.
    """
    return np.where(mask, np.float32(0), np.float32(minimum))
