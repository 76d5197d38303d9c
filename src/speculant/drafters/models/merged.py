"""Merging the trees of several draft models: SpecInfer.

Miao et al., ASPLOS 2024, arXiv 2305.09781, sections 3 and 4.3. Each model draws a tree of its own, and equal paths
become one. When the target samples, every drawn token stays a candidate at its position, including duplicates, and is
tested against the distribution it was drawn from, one after another: multi-step speculative sampling. Dropping a
duplicate would be a decision based on what was drawn, and bias the output. A duplicate is never accepted, since its
equal was rejected before it, so whatever is drawn below it is placed below the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from speculant.core.drafter import Budget, Session, Verified
from speculant.core.tree import ROOT, DraftTree, Float64, Proposal
from speculant.drafters.models.drawn_trees import Widths
from speculant.drafters.models.level_session import LevelSession


class UntaughtSession(LevelSession):
    """One model's part of a request; acceptance is counted on the merged tree instead."""

    def learn(self, drafted: DraftTree, path: Sequence[int]) -> None:
        """Leave the acceptance to the merged session."""


class MergedSession(Session):
    """Session of one request for which several models draft."""

    def __init__(self, sessions: Sequence[LevelSession], shape: Widths) -> None:
        """Combine the models' sessions, each with its own seed, and the common shape of their trees."""
        self._sessions, self._shape, self._trees = sessions, shape, sessions[0].text.trees

    def propose(self, budget: Budget) -> DraftTree:
        """Return the union of the drafts, which share the budget; if it does not fit, the first model's draft."""
        several = len(self._sessions)
        branches = (budget.branches - several + 1) // several
        self._trees = budget.trees and self._sessions[0].text.trees
        if not budget.trees or budget.nodes < several or branches < 0:
            return self._sessions[0].propose(budget)
        trees = list[DraftTree]()
        for place, session in enumerate(self._sessions):
            nodes = budget.nodes // several + (place < budget.nodes % several)
            trees.append(session.propose(replace(budget, nodes=nodes, branches=branches)))
        if any(tree.proposal is not None for tree in trees):
            return merge_drawn(trees)
        return DraftTree.merge(trees, budget.nodes)

    def forecast(self, nodes: int) -> Float64 | None:
        if not self._trees:
            return None
        return self._shape.gains(merged_parents(self._shape.parents, len(self._sessions), nodes))

    def unread(self) -> int:
        return sum([session.unread() for session in self._sessions])

    def observe(self, verified: Verified) -> None:
        if len(verified.tree):
            self._shape.learn(verified.tree, verified.path.tolist())
        for session in self._sessions:
            session.observe(verified)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def merge_drawn(trees: Sequence[DraftTree]) -> DraftTree:
    """Return the union of trees drawn with replacement, each node with the q it was drawn from.

    Args:
        trees: drafts of the models; some may be empty, the others have a proposal.
    """
    tokens, parents, weights, q_rows = list[int](), list[int](), list[float](), list[int]()
    first: dict[tuple[int, int], int] = {}  # by parent and token: the first such node, which takes the children
    rows, count = list[torch.Tensor](), 0
    for tree in trees:
        if tree.proposal is None:
            continue
        q = torch.as_tensor(tree.proposal.q)
        place = {ROOT: ROOT}  # for each node of this tree: the merged node that takes its children
        listed = zip(tree.tokens.tolist(), tree.parents.tolist(), tree.weights.tolist(), strict=True)
        for node, (token, parent, weight) in enumerate(listed):
            above = place[parent]
            place[node] = first.setdefault((above, token), len(tokens))
            tokens.append(token)
            parents.append(above)
            weights.append(weight if above == ROOT else min(weight, weights[above]))
            q_rows.append(count + parent + 1)
        rows.append(q)
        count += len(q)
    if not tokens:
        return DraftTree.empty()
    proposal = Proposal(torch.cat([each.to(rows[0]) for each in rows]), "iid", q_rows=np.array(q_rows, np.int32))
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(weights, np.float32), proposal)


def merged_parents(parents: Sequence[int], trees: int, nodes: int) -> list[int]:
    """Return the parents of up to `nodes` nodes of equal trees that share the root, taken from each tree in turn."""
    found = list[int]()
    for parent in parents:
        for place in range(trees):
            if len(found) == nodes:
                return found
            found.append(ROOT if parent == ROOT else parent * trees + place)
    return found
