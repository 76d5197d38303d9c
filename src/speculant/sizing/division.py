"""Division of a pass's nodes among its drafts: nodes go where they gain most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import njit

from speculant.core.tree import Bool, DraftTree, Float64
from speculant.sizing.acceptance import correct_weights
from speculant.sizing.exploration import ExplorationBonus, find_bonus
from speculant.sizing.isotonic import falling_fit
from speculant.sizing.state import SequenceSizing

_NONE_KNOWN: Bool = np.empty(0, np.bool_)
_GROWTH, _STEP = 1.25, 0.1  # growth per round: factor of nodes, or of their cost in a pass and plain passes beyond that


def gains_of(state: SequenceSizing, draft: DraftTree, exploration: ExplorationBonus | None) -> Float64:
    """Return Float64[N], the gain of each node of a draft, made non-increasing since only prefixes of a draft are kept.

    Empty for sampled drafts: they are kept whole, so there is nothing to compare.
    """
    if draft.proposal is not None or not len(draft):
        return np.empty(0)
    known = _NONE_KNOWN if exploration is None else exploration.known
    nodes = draft.tokens, draft.parents, draft.weights
    found: Float64 = _gains(*nodes, state.acceptance.bands, known, state.text[1])
    return found


@njit(cache=True)
def _gains(tokens, parents, weights, bands, known, root):  # type: ignore[no-untyped-def]
    gains = correct_weights(parents, weights, bands)
    if len(known):
        gains += find_bonus(tokens, parents, root, known)
    return falling_fit(gains)


@njit(cache=True)
def best_size(gains, curve, base, room, price, drafting):  # type: ignore[no-untyped-def]
    """Return the number of nodes with the largest gain net of the price of their time, and that price.

    Args:
        gains: Float64[N], gains of the nodes, non-increasing.
        curve: Float64[R], cost of passes over 0, 1, ... draft rows; larger passes cost as much as the last.
        base: number of draft rows besides the nodes.
        room: maximum number of nodes.
        price: price of a unit of time, in tokens.
        drafting: drafting time per node.
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
    """Return the lowest cost per node of adding `few` to `maximum` nodes to a pass over `base` draft rows."""
    last, cheapest = len(curve) - 1, np.inf
    for count in range(few, maximum + 1):
        cheapest = min(cheapest, (curve[min(base + count, last)] - curve[min(base, last)]) / count)
    return max(0.0, cheapest)


@njit(cache=True)
def limit_growth(curve, base, wanted):  # type: ignore[no-untyped-def]
    """Return the nodes up to which a draft may grow in a round: a quarter more, up to twice if that costs little more.

    Drafters overestimate most the drafts that look best, so a draft may not cost far more than recent ones did.

    Args:
        curve: Float64[R], cost of passes over 0, 1, ... draft rows.
        base: number of draft rows besides the nodes.
        wanted: largest recent number of nodes, Float64.
    """
    last, most = len(curve) - 1, int(2 * wanted)
    plain = curve[min(base, last)]
    recent = curve[min(base + math.ceil(wanted), last)] - plain
    allowed = 0
    while allowed < most and base + allowed < last and curve[base + allowed + 1] <= plain + _GROWTH * recent + _STEP:
        allowed += 1
    return min(most, max(math.ceil(_GROWTH * wanted) + 1, allowed))


def divide_nodes(gains: Sequence[Float64], nodes: int) -> list[int]:
    """Return how many first nodes of each draft are among the `nodes` nodes with the largest gains of all drafts.

    Args:
        gains: Float64[N] for each draft, gains of its nodes, non-increasing.
        nodes: number of nodes to keep in total; all if there are fewer.
    """
    if len(gains) == 1:
        return [min(nodes, len(gains[0]))]
    owners = np.repeat(np.arange(len(gains)), [len(each) for each in gains])
    best = np.argsort(-np.concatenate([*gains, np.empty(0)]), kind="stable")[:nodes]
    kept: list[int] = np.bincount(owners[best], minlength=len(gains)).tolist()
    return kept


def cut_drafts(drafts: Sequence[DraftTree], kept: Sequence[int]) -> list[DraftTree]:
    """Return each draft cut to its first `kept` nodes; sampled drafts are kept whole."""
    return [draft if draft.proposal is not None else draft.head(n) for draft, n in zip(drafts, kept, strict=True)]
