"""Branches of drafts: what engines need that keep the paths of a draft apart as sequences, of which there are so many.

A pass over a text without a draft has one path. Every row that follows a row which others follow already begins a
branch, so a pass has as many branches as it has leaves beyond the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.tree import ROOT, DraftTree


def branches_of(draft: DraftTree) -> int:
    """Return how many branches a draft has, its queries included."""
    _, parents = draft.rows(0)
    return len(parents) - 1 - len(np.unique(parents[1:]))


def count_fixed_branches(draft: DraftTree) -> int:
    """Return how many branches of a draft cannot be dropped: those of its queries, and all where it was sampled."""
    if draft.proposal is not None:
        return branches_of(draft)
    return branches_of(DraftTree.empty(queries=draft.queries)) if len(draft.queries) else 0


def fit_branches(drafts: Sequence[DraftTree], maximum: int) -> list[DraftTree]:
    """Return drafts that have at most so many branches together, without the lightest nodes that would begin more.

    Sampled drafts and queries stay as they are, since they were made for what there is (`Budget.branches`).
    """
    rows = sum(len(draft) + len(draft.queries) for draft in drafts)
    if rows <= maximum:
        return list(drafts)
    chosen = [draft.proposal is None for draft in drafts]
    left = maximum - sum(map(count_fixed_branches, drafts))
    nodes = [
        (-float(weight), place, node)
        for place, draft in enumerate(drafts)
        if chosen[place]
        for node, weight in enumerate(draft.weights)
    ]
    allowed = [np.zeros(len(draft), bool) for draft in drafts]
    followed = {(place, ROOT) for place, draft in enumerate(drafts) if (draft.queries.parents == ROOT).any()}
    for _, place, node in sorted(nodes):
        parent = int(drafts[place].parents[node])
        if parent != ROOT and not allowed[place][parent]:
            continue
        if (place, parent) in followed:
            if left < 1:
                continue
            left -= 1
        followed.add((place, parent))
        allowed[place][node] = True
    return [draft.pruned(allow) if cut else draft for draft, allow, cut in zip(drafts, allowed, chosen, strict=True)]
