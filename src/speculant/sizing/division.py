"""How the nodes of one pass are divided among its drafts: they go where they gain most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.tree import DraftTree, Float64
from speculant.sizing.exploration import ExplorationBonus
from speculant.sizing.isotonic import falling_fit
from speculant.sizing.state import SequenceSizing


def gains_of(state: SequenceSizing, draft: DraftTree, exploration: ExplorationBonus | None) -> Float64:
    """Return Float64[N], what each node of a draft gains, made to fall: only heads of a draft are kept.

    Sampled drafts, which are kept whole, have no gains to compare.
    """
    if draft.proposal is not None or not len(draft):
        return np.empty(0)
    values = state.acceptance.probabilities(draft)
    if exploration is not None:
        values += exploration.bonus(draft, state.text[1])
    return np.asarray(falling_fit(values), np.float64)


def share(gains: Sequence[Float64], nodes: int) -> list[int]:
    """Return how many of each draft's first nodes are among the `nodes` that gain most over all drafts.

    Args:
        gains: Float64[N] of each draft, falling.
        nodes: how many to keep; all if there are fewer.
    """
    if len(gains) == 1:
        return [min(nodes, len(gains[0]))]
    owners = np.repeat(np.arange(len(gains)), [len(each) for each in gains])
    best = np.argsort(-np.concatenate([*gains, np.empty(0)]), kind="stable")[:nodes]
    kept: list[int] = np.bincount(owners[best], minlength=len(gains)).tolist()
    return kept


def heads(drafts: Sequence[DraftTree], kept: Sequence[int]) -> list[DraftTree]:
    """Return the first nodes of each draft, as many as are to be kept; sampled drafts are kept whole."""
    return [draft if draft.proposal is not None else draft.head(n) for draft, n in zip(drafts, kept, strict=True)]
