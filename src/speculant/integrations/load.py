"""Limits of drafting per step: a budget for each request, and a bound for all requests together.

Drafted tokens are verified in the same pass as all requests' next tokens. With few requests, that pass is bound by
reading the weights, and further rows cost almost nothing; with many, every row costs time for all of them (TurboSpec,
Liu et al. 2024, arXiv 2406.14066). So each step drafts a limited number of tokens, those most likely to be accepted,
and none below a minimum probability. The rule counts tokens and reads no clock, so every rank of an engine decides the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from speculant.core.drafter import Budget
from speculant.core.tree import DraftTree

_WIDER = 4  # nodes searched per token of the chain


def chain_budget(maximum: int) -> Budget:
    """Return the budget of a draft for an engine that verifies chains only.

    Drafters that search a tree first and then take its best chain find a longer chain in a larger tree.
    """
    return Budget(nodes=_WIDER * maximum, depth=maximum, trees=False)


def opinion_budget(maximum: int) -> Budget:
    """Return the budget of a tree that is merged with another draft into a chain."""
    return Budget(nodes=_WIDER * maximum, depth=maximum)


def tree_budget(maximum: int) -> Budget:
    """Return the budget of a draft for an engine that verifies trees."""
    return Budget(nodes=maximum, depth=maximum)


def bound_drafts(drafts: Sequence[DraftTree], maximum: int, *, minimum: float = 0.0) -> list[DraftTree]:
    """Return the parts of drafts with the `maximum` nodes of the largest weights, none below `minimum`.

    A node's weight is at most its parent's, and nodes are listed best first, so each part is a draft. Among equal
    weights earlier nodes are kept first, and among those earlier drafts.
    """
    if minimum > 0:
        drafts = [draft.head(int((np.minimum.accumulate(draft.weights) >= minimum).sum())) for draft in drafts]
    if sum(len(draft) for draft in drafts) <= maximum:
        return list(drafts)
    if maximum < 1:
        return [DraftTree.empty() for _ in drafts]
    weights = np.concatenate([np.minimum.accumulate(draft.weights) for draft in drafts])
    places = np.fromiter(chain.from_iterable(range(len(draft)) for draft in drafts), np.int64, len(weights))
    owners = np.repeat(np.arange(len(drafts)), [len(draft) for draft in drafts])
    kept = np.lexsort((owners, places, -weights))[:maximum]
    counts = np.bincount(owners[kept], minlength=len(drafts))
    return [draft.head(int(count)) for draft, count in zip(drafts, counts, strict=True)]
