"""How often the nodes of draft trees are accepted, by depth and by their order among siblings.

The acceptance of a sampled node cannot be predicted from its own probability: it was drawn from q, and dropping it for
being unlikely would bias the output. What is known before anything is drawn is how often the first, second, ... sibling
at a position has been accepted: the positional acceptance of Sequoia (Chen et al. 2024, arXiv 2402.12374, section 3.1).
Theirs is measured once and the same at all depths; here it adapts to the text and differs by depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculant.core.tree import ROOT, DraftTree, Float64

DEPTHS = 16  # deeper nodes count as this depth
SIBLINGS = 16
MAX_LEVELS = 64
_DECAY = 0.998  # per round
_LEVEL_DECAY = 0.99
_FIRST, _NEXT = 0.7, 0.3  # prior acceptance of the first sibling and of each further one
_PRIOR_TRIALS = 2.0
_OVERALL_TRIALS = 8.0  # number of trials at a depth that the rate over all depths counts as


class SiblingAcceptance:
    """Acceptance by depth and order among siblings, over all requests of a drafter."""

    def __init__(self) -> None:
        self._tried, self._accepted = np.zeros((DEPTHS, SIBLINGS)), np.zeros((DEPTHS, SIBLINGS))

    def observe(self, draft: DraftTree, path: Sequence[int]) -> None:
        """Count the outcome at each depth of a non-empty draft: which sibling was accepted, or that none was."""
        self._tried *= _DECAY
        self._accepted *= _DECAY
        for depth, node in enumerate([ROOT, *path]):
            siblings, d = draft.children(node)[:SIBLINGS], min(depth, DEPTHS - 1)
            taken = siblings.index(path[depth]) if depth < len(path) and path[depth] in siblings else None
            self._tried[d, : len(siblings) if taken is None else taken + 1] += 1
            if taken is not None:
                self._accepted[d, taken] += 1

    def probabilities(self) -> Float64:
        """Return Float64[DEPTHS, SIBLINGS]: the probability that exactly this sibling is accepted if its parent was."""
        prior = np.full(SIBLINGS, _NEXT)
        prior[0] = _FIRST
        tried, accepted = self._tried.sum(0), self._accepted.sum(0)
        overall = (accepted + _PRIOR_TRIALS * prior) / (tried + _PRIOR_TRIALS)
        rates = (self._accepted + _OVERALL_TRIALS * overall) / (self._tried + _OVERALL_TRIALS)
        left = np.cumprod(1 - rates, axis=1)
        return np.asarray(rates * np.column_stack([np.ones(DEPTHS), left[:, :-1]]), np.float64)


class LevelAcceptance:
    """Acceptance by depth only, for drafts whose levels are accepted or rejected as a whole."""

    def __init__(self) -> None:
        self._grown, self._accepted = np.zeros(MAX_LEVELS), np.zeros(MAX_LEVELS)

    def observe(self, grown: int, accepted: int) -> None:
        """Count a draft that was grown to depth `grown` and accepted to depth `accepted`."""
        self._grown *= _LEVEL_DECAY
        self._accepted *= _LEVEL_DECAY
        self._grown[:grown] += 1
        self._accepted[: min(grown, accepted)] += 1

    def gains(self, depth: int) -> Float64:
        """Return Float64[depth], the expected accepted tokens of drafts of depth 1, 2, ..."""
        prior = _PRIOR_TRIALS * _FIRST ** np.arange(1, MAX_LEVELS + 1)
        rates = np.minimum.accumulate((self._accepted + prior) / (self._grown + _PRIOR_TRIALS))
        return np.asarray(np.cumsum(rates[:depth]), np.float64)

    def chain_gains(self, nodes: int) -> Float64:
        """Return the same for chains of 1, 2, ... nodes, Float64[D, nodes], in the form of `Session.forecast`."""
        places = np.arange(min(nodes, MAX_LEVELS))
        return np.asarray(self.gains(nodes)[np.minimum(places, places[:, None])], np.float64)


class LevelGains:
    """What a further level gains, for drafts that choose which nodes a level extends.

    Drafters' probabilities are too low or too high, increasingly so with depth. So the gains of levels are divided by
    the probability of the nodes that they extended: for each depth, the ratio of the sums over all drafts.
    """

    def __init__(self) -> None:
        self._extended, self._gained = np.zeros(MAX_LEVELS), np.zeros(MAX_LEVELS)

    def observe(self, extended: Sequence[float], accepted: int) -> None:
        """Count a draft.

        Args:
            extended: for levels 2, 3, ..., the joint probability of all nodes that the level extended.
            accepted: depth to which the draft was accepted.
        """
        self._extended *= _LEVEL_DECAY
        self._gained *= _LEVEL_DECAY
        self._extended[: len(extended)] += extended
        self._gained[: max(0, min(len(extended), accepted - 1))] += 1

    def ratios(self, depth: int) -> list[float]:
        """Return the gains of levels 2, 3, ... depth + 1, in tokens per joint probability of the nodes they extend.

        A level with little data counts like the one above it.
        """
        found, ratio = list[float](), _FIRST
        counts = zip(self._extended[:depth].tolist(), self._gained[:depth].tolist(), strict=True)
        for extended, gained in counts:
            ratio = (gained + _PRIOR_TRIALS * ratio) / (extended + _PRIOR_TRIALS)
            found.append(ratio)
        return found + [ratio] * (depth - len(found))


def expected_gains(parents: Sequence[int], acceptance: Float64) -> Float64:
    """Return Float64[D, N], the expected accepted tokens of the first n of N nodes, counting those at most d deep.

    Args:
        parents: parents of the nodes, parents first, siblings in the order in which they are tested; D is their depth.
        acceptance: see `SiblingAcceptance.probabilities`.
    """
    depths, reached = np.zeros(len(parents), np.int64), np.zeros(len(parents))
    siblings = [0] * (len(parents) + 1)
    for node, parent in enumerate(parents):
        depths[node] = 0 if parent == ROOT else depths[parent] + 1
        above = 1.0 if parent == ROOT else reached[parent]
        reached[node] = above * acceptance[min(depths[node], DEPTHS - 1), min(siblings[parent], SIBLINGS - 1)]
        siblings[parent] += 1
    allowed = depths <= np.arange(depths.max(initial=0) + 1)[:, None]
    return np.asarray(np.cumsum(np.where(allowed, reached, 0.0), axis=1), np.float64)
