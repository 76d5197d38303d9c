"""Branches of drafts, for engines that verify each path of a draft as a sequence of its own and limit their number.

A pass without a draft has a single path. Each further child of a row starts a branch, so the number of branches is the
number of leaves minus one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.tree import ROOT, DraftTree


def branches_of(draft: DraftTree) -> int:
    """Return the number of branches of a draft, including its queries."""
    _, parents = draft.rows(0)
    return len(parents) - 1 - len(np.unique(parents[1:]))


def count_fixed_branches(draft: DraftTree) -> int:
    """Return the number of branches that cannot be dropped: those of the queries, or all if the draft was sampled."""
    if draft.proposal is not None:
        return branches_of(draft)
    return branches_of(DraftTree.empty(queries=draft.queries)) if len(draft.queries) else 0


def fit_branches(drafts: Sequence[DraftTree], maximum: int) -> list[DraftTree]:
    """Drop the nodes of lowest weight until the drafts together have at most `maximum` branches.

    Sampled drafts and queries are kept whole, since they were already made to fit `Budget.branches`.
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
