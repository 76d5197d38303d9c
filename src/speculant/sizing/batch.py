"""How the nodes of one pass are shared between the drafts of several sequences: each goes where it gains most.

With the trees of all sequences in hand, best nodes first, a node's gain is the probability that it is accepted, as
nodes of its weight have turned out lately in its own request. A pass takes the nodes of the largest gains over all
sequences: a request that repeats itself gets many, one that nothing is known of none (Liu et al. 2024, TurboSpec, arXiv
2406.14066, share by request in the same way, with one length for all).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speculant.core.tree import DraftTree
from speculant.sizing.acceptance import Values
from speculant.sizing.latency import RoundCost

_LATE = 0.97


class BatchSizing(Protocol):
    """What the batch asks about sizes."""

    def budget(self) -> int:
        """Return the most nodes to ask the drafter for, for each sequence."""

    def cut(self, trees: Sequence[DraftTree], values: Sequence[Values]) -> list[DraftTree]:
        """Return the parts of the drafts that one pass takes; `values` are the requests' own."""

    def learn(self, trees: Sequence[DraftTree], tokens: int, *, target: float, draft: float) -> None:
        """Take in what a round with these drafts gave, and its seconds: of the target's pass and of drafting."""


class FixedBudget:
    """The same most nodes in every pass, over all its sequences."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def budget(self) -> int:
        return self._nodes

    def cut(self, trees: Sequence[DraftTree], values: Sequence[Values]) -> list[DraftTree]:
        worths = gains(trees, values)
        return _heads(trees, share(worths, min(self._nodes, sum(len(worth) for worth in worths))))

    def learn(self, trees: Sequence[DraftTree], tokens: int, *, target: float, draft: float) -> None:
        pass


class BestBudget:
    """As many nodes as pay in each pass, by what passes cost and what time is worth (see `sizing`)."""

    def __init__(self, cost: RoundCost, *, most: int) -> None:
        """Begin a batch.

        Args:
            cost: of passes over so many rows beside the first.
            most: nodes of one draft.
        """
        self._cost, self._most = cost, most
        self._tokens, self._passes = 0.0, 0.0

    def budget(self) -> int:
        return self._most

    def cut(self, trees: Sequence[DraftTree], values: Sequence[Values]) -> list[DraftTree]:
        worths = gains(trees, values)
        sums = np.append(0, np.cumsum(np.sort(np.concatenate([*worths, np.empty(0)]))[::-1]))
        sums = sums[: max(1, self._cost.most - len(trees) + 2)]
        paid = sums - self._rate(len(trees)) * self._cost.curve[len(trees) - 1 + np.arange(len(sums))]
        return _heads(trees, share(worths, int(np.argmax(paid))))

    def learn(self, trees: Sequence[DraftTree], tokens: int, *, target: float, draft: float) -> None:
        rows = sum(len(tree) + 1 for tree in trees)
        self._cost.learn(rows - 1, target)
        passes = float(self._cost.curve[min(rows, len(self._cost.curve)) - 1]) + draft / self._cost.level
        self._tokens, self._passes = _LATE * self._tokens + tokens, _LATE * self._passes + passes

    def _rate(self, sequences: int) -> float:
        """Return tokens per plain pass's time of late; plain decoding's at the least: no round need be slower."""
        plain = sequences / float(self._cost.curve[sequences - 1])
        return max(plain, self._tokens / self._passes) if self._passes else plain


def gains(trees: Sequence[DraftTree], values: Sequence[Values]) -> list[npt.NDArray[np.float64]]:
    """Return what each node of each draft is expected to gain, never more than one before it: only heads are kept.

    Sampled drafts gain nothing here: dropping their nodes by value would bias the output, so they are kept whole.
    """
    return [
        np.empty(0) if tree.proposal is not None else np.minimum.accumulate(own.of(tree))
        for tree, own in zip(trees, values, strict=True)
    ]


def share(worths: Sequence[npt.NDArray[np.float64]], nodes: int) -> list[int]:
    """Return how many of each draft's first nodes belong to the `nodes` that gain most over all.

    Args:
        worths: Float64[N] of each draft, falling; nodes: at most as many as there are.
    """
    owners = np.repeat(np.arange(len(worths)), [len(worth) for worth in worths])
    best = np.argsort(-np.concatenate([*worths, np.empty(0)]), kind="stable")[:nodes]
    return np.bincount(owners[best], minlength=len(worths)).tolist() if len(worths) else []


def _heads(trees: Sequence[DraftTree], kept: Sequence[int]) -> list[DraftTree]:
    return [tree if tree.proposal is not None else tree.head(n) for tree, n in zip(trees, kept, strict=True)]
