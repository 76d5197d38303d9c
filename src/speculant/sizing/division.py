"""How the nodes of one pass are divided among its drafts: they go where they gain most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

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
    found: Float64 = falling_fit(values)
    return found


@njit(cache=True)
def best_size(gains, curve, base, room, price, drafting):  # type: ignore[no-untyped-def]
    """Return how many nodes of a pass gain most beyond what their time is worth, and that worth.

    Args:
        gains: Float64[N] of the nodes, falling.
        curve: Float64[R], the cost of passes over 0, 1, ... rows; more cost as much as the most.
        base: rows beside the nodes.
        room: the most nodes.
        price: of a unit of time.
        drafting: the time that each node took to draft.
    """
    last, best, nodes, worth, total = len(curve) - 1, 0.0, 0, 0.0, 0.0
    first = curve[min(base, last)]
    for count in range(1, min(len(gains), room) + 1):
        total += gains[count - 1]
        cost = price * (curve[min(base + count, last)] - first + drafting * count)
        if total - cost > best:
            best, nodes, worth = total - cost, count, cost
    return nodes, worth


@njit(cache=True)
def least_cost(curve, base, few, maximum):  # type: ignore[no-untyped-def]
    """Return the least cost by the node of passes over `few` to `maximum` nodes and `base` rows beside them."""
    last, cheapest = len(curve) - 1, np.inf
    for count in range(few, maximum + 1):
        cheapest = min(cheapest, (curve[min(base + count, last)] - curve[min(base, last)]) / count)
    return max(0.0, cheapest)


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
