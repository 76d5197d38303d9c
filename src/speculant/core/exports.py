"""The attention mask of a draft tree, for engines that take a mask per row.

Tree attention, in which a row attends to its ancestors only, is from SpecInfer (Miao et al., ASPLOS 2024, arXiv
2305.09781). Row 0 is the root, row i + 1 is node i, queries come last.
"""

from __future__ import annotations

import numpy as np

from speculant.core.tree import Bool, DraftTree


def ancestor_mask(tree: DraftTree, width: int | None = None) -> Bool:
    """Return Bool[width, width]: row i may attend to column j; row 0 is the root, queries come last.

    `width` defaults to N + 1 + Q. Further rows are padding, attached directly to the root (SGLang's convention).

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
