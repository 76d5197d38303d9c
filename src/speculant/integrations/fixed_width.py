"""Drafts in the form of SGLang's verification: the same number of tokens for each request, and their visibility.

Row 0 is the root, the last committed token; nodes follow; the remaining rows are padding. SGLang pads with token 0
below the root. Its sampling goes through the children of a node, adding up their probabilities until they exceed a
random number, so children with equal tokens count twice: token 0 would be sampled too often. Here padding tokens are
distinct, and none is a drafted child of the root, which makes them candidates like any other and keeps the rule exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from speculant.core.exports import ancestor_mask
from speculant.core.tree import ROOT, DraftTree

Int64 = npt.NDArray[np.int64]


def pad_to_width(roots: Sequence[int], drafts: Sequence[DraftTree], width: int) -> tuple[Int64, Int64]:
    """Return the drafts of B requests in the form of SGLang's n-gram corpus.

    Args:
        roots: last committed token of each request.
        drafts: drafts of at most `width` - 1 nodes.
        width: W, tokens per request.

    Returns:
        Int64[B * W], tokens; Int64[B * W * W], 1 if the row's token sees the column's.

    Raises:
        ValueError: a draft does not fit the width.
    """
    tokens = np.empty((len(drafts), width), np.int64)
    masks = np.empty((len(drafts), width, width), np.int64)
    for i, (root, draft) in enumerate(zip(roots, drafts, strict=True)):
        masks[i] = ancestor_mask(draft, width)
        used = 1 + len(draft)
        tokens[i, 0], tokens[i, 1:used] = root, draft.tokens
        tokens[i, used:] = _find_unused(draft, width - used)
    return tokens.reshape(-1), masks.reshape(-1)


def _find_unused(draft: DraftTree, count: int) -> Int64:
    """Return the smallest token ids that are not children of the root."""
    children = draft.tokens[draft.parents == ROOT]
    candidates = np.arange(count + len(children))
    return candidates[~np.isin(candidates, children)][:count].astype(np.int64)
