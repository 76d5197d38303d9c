"""Drafts that a model grows level by level, with one forward pass per level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from speculant.core.drafter import Budget, Session, SessionRequest, Verified
from speculant.core.tree import ROOT, Ahead, DraftTree, Float64, Proposal
from speculant.drafters.models.shapes import Level, Shape
from speculant.drafters.models.together import Drafting, NodeReading, draft_alone
from speculant.drafters.top_nodes import top_nodes


class LevelText(Protocol):
    """A committed text on the drafting model, such as `DraftText` on a draft model."""

    @property
    def depth(self) -> int:
        """The maximum depth of a draft."""

    @property
    def trees(self) -> bool:
        """Whether a draft may branch."""

    @property
    def unread(self) -> int:
        """Number of committed tokens that `begin` reads first."""
        return 0

    def begin(self) -> Tensor:
        """Drop all rows of the draft; return q [1, V] after the root."""

    def read(self, tokens: Sequence[int], above: Sequence[int]) -> tuple[list[int], Tensor]:
        """Run n nodes below given rows (-1: the root); return their rows and q [n, V] after them."""

    def observe(self, verified: Verified) -> None:
        """Append the committed tokens."""

    def release(self) -> None:
        """End the request."""


class RowText(LevelText, Protocol):
    """A text whose draft nodes may be run in any order; rows are numbered in that order."""

    @property
    def rows(self) -> int:
        """The number of rows of the draft, which is the number of the next row."""


class LevelSession(Session):
    """One request: its text on the drafting model, and the shape of its drafts.

    Attributes:
        text: the text on the drafting model.
    """

    def __init__(self, text: LevelText, start: SessionRequest, shape: Shape) -> None:
        self.text, self._start, self._shape, self._round = text, start, shape, 0
        self._trees = text.trees

    def propose(self, budget: Budget) -> DraftTree:
        """Return a draft. Repeated calls before `observe` draw the same tokens."""
        return draft_alone(self, budget)

    def drafting(self, budget: Budget) -> Drafting:
        """Return a draft in progress."""
        depth = min(budget.nodes, budget.depth, self.text.depth, self._shape.passes)
        if depth < 1:
            return DraftTree.empty()
        self._trees = trees = budget.trees and self.text.trees
        shape, generator = self._shape, torch.Generator()
        sampled = bool(self._start.sampling.temperature) and not shape.choosing
        if sampled:
            generator.manual_seed(self._start.round_seed(self._round))
        tokens, parents, weights, rows = list[int](), list[int](), list[float](), list[int]()
        branches = budget.branches
        level, (_, q) = [ROOT], (yield NodeReading())
        q = self.sharpen(q) if shape.choosing else q
        distributions = {ROOT: q[0]} if sampled else {}
        for d in range(1, depth + 1):
            joint = [1.0 if node == ROOT else weights[node] for node in level]
            room = budget.nodes if shape.choosing else min(budget.nodes - len(tokens), 1 + branches)
            left = depth - d + 1
            prices = budget.level_price, budget.node_price
            found = shape.expand(Level(d, q, joint, room, left, trees, sampled, generator, *prices))
            found = found if trees else found[:1]  # the first one drawn, which does not depend on the others
            branches -= len(found) - len({each.parent for each in found})
            first = len(tokens)
            for each in found:
                tokens.append(each.token)
                parents.append(level[each.parent])
                weights.append(min(1.0, each.probability) * joint[each.parent])
                rows.append(ROOT)
            level = [first + place for place in shape.select(weights[first:])]
            if not level or d == depth or (not shape.choosing and len(tokens) >= budget.nodes):
                break
            above = [ROOT if parents[node] == ROOT else rows[parents[node]] for node in level]
            read, q = yield NodeReading([tokens[node] for node in level], above)
            q = self.sharpen(q) if shape.choosing else q
            for node, row in zip(level, read, strict=True):
                rows[node] = row
            if sampled:
                distributions |= zip(level, q, strict=True)
        if shape.choosing:
            draft = top_nodes(tokens, parents, weights, budget.nodes)
            return draft if tokens else draft.with_levels(1)  # no token was worth drafting
        return build_draft(tokens, parents, weights, distributions, shape.drawn)

    def sharpen(self, q: Tensor) -> Tensor:
        """Return the probabilities [n, V] by which nodes are chosen, given those of the drafter."""
        return q

    def observe(self, verified: Verified) -> None:
        """Learn which nodes were accepted."""
        self.take(verified)
        if len(verified.tree):
            self.learn(verified.tree, verified.path.tolist())

    def take(self, verified: Verified) -> None:
        """Append the committed tokens of a round whose draft came from another drafter."""
        self.text.observe(verified)
        self._round += 1

    def learn(self, drafted: DraftTree, path: Sequence[int]) -> None:
        """Learn which nodes of one of this session's drafts were accepted."""
        self._shape.learn(drafted, path)

    def forecast(self, nodes: int) -> Float64 | None:
        return self._shape.forecast(nodes) if self._trees else None

    def unread(self) -> int:
        return self.text.unread

    def close(self) -> None:
        self.text.release()


def build_draft(
    tokens: list[int],
    parents: list[int],
    weights: list[float],
    distributions: Mapping[int, Tensor],
    drawn: Literal["iid", "distinct"] = "iid",
    chosen: Sequence[bool] | None = None,
    ahead: Callable[[], Ahead | None] | None = None,
) -> DraftTree:
    """Return a draft with its nodes in the order of their creation.

    Args:
        tokens, parents, weights: tokens, parents and weights of N nodes.
        distributions: q [V] after the root and after nodes with children; empty if all nodes were chosen.
        drawn: how siblings were drawn.
        chosen: which nodes were chosen; None if all nodes were drawn.
        ahead: see `Proposal`; ignored if all nodes were chosen.
    """
    proposal = None
    if distributions and tokens:
        q = distributions[ROOT].new_zeros(max(distributions) + 2, len(distributions[ROOT]))
        q[[node + 1 for node in distributions]] = torch.stack(list(distributions.values()))
        proposal = Proposal(q, drawn, None if chosen is None else np.array(chosen), ahead=ahead)
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(weights, np.float32), proposal)
