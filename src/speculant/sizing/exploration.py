"""Exploration bonus: what a rejected node gains, because the drafter learns the target's tokens after it.

Drafters with `needs.top_k` learn the target's best tokens at every row of a pass. If accepted tokens alone counted, a
small draft would look best, so little would be learned, so drafts would stay poor. A bonus per node breaks that circle:
full for a context (two tokens in a row) that no pass and no text has contained yet, a quarter for others, whose tokens
are only refreshed. So it fades as the memory fills. Its size was chosen on even-numbered stories of two small models;
it is the most that a node may cost for nothing but learning, and so bounds what that can lose. Query rows, which are
there for nothing else, gain the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from speculant.core.tree import DraftTree, Float64, Queries

_BITS = 20  # a byte for each of so many hashed contexts
_NEW, _KNOWN = 0.02, 0.005  # the bonus of a node in a new context and in a known one, in tokens
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class ExplorationBonus:
    """The contexts that the drafter has learned from; all requests share it."""

    def __init__(self) -> None:
        self._known = np.zeros(1 << _BITS, np.bool_)

    def bonus(self, tree: DraftTree | Queries, root: int) -> Float64:
        """Return Float64[N], the bonus of each node, or query, of a draft below the token `root`, in tokens."""
        return _bonus(tree.tokens, tree.parents, root, self._known)

    def observe(self, tree: DraftTree, text: Sequence[int]) -> None:
        """Mark a round's contexts as known: of its draft, and of the token before the root, the root and what came."""
        queries = tree.queries
        _mark(tree.tokens, tree.parents, queries.tokens, queries.parents, np.array(text, np.int64), self._known)


@njit(cache=True)
def _bonus(tokens, parents, root, known):  # type: ignore[no-untyped-def]
    bonuses = np.empty(len(tokens))
    for node, parent in enumerate(parents):
        before = root if parent < 0 else tokens[parent]
        bonuses[node] = _KNOWN if known[_hash(before, tokens[node])] else _NEW
    return bonuses


@njit(cache=True)
def _mark(tokens, parents, asked, above, text, known):  # type: ignore[no-untyped-def]
    for at in range(1, len(text)):
        known[_hash(text[at - 1], text[at])] = True
    for node, parent in enumerate(parents):
        before = text[1] if parent < 0 else tokens[parent]
        known[_hash(before, tokens[node])] = True
    for query, parent in enumerate(above):
        before = text[1] if parent < 0 else asked[parent]
        known[_hash(before, asked[query])] = True


@njit(cache=True)
def _hash(before, token):  # type: ignore[no-untyped-def]
    pair = np.uint64(before) * _MULTIPLIERS[0] + np.uint64(token) + np.uint64(1)
    return np.int64(pair * _MULTIPLIERS[1] >> np.uint64(64 - _BITS))
