"""Exploration bonus: the gain of a rejected node, from which the drafter still learns the target's next tokens.

Drafters with `needs.top_k` learn the target's most probable tokens at every row of a pass. If only accepted tokens
counted, small drafts would look best, little would be learned, and drafts would stay poor. A bonus per node breaks this
circle: the full bonus for a context (two consecutive tokens) that no pass and no text has contained yet, a quarter of
it for known contexts, whose tokens are only refreshed. So it fades as the memory fills. Its size was tuned on
even-numbered stories of two small models; it is the maximum price paid for learning alone, which bounds the loss. Query
rows, which serve only learning, gain the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from speculant.core.tree import Bool, DraftTree, Float64, Queries

_BITS = 20  # of the hash of a context; each hash takes a byte
_NEW, _KNOWN = 0.02, 0.005  # the bonus of a node in a new context and in a known one, in tokens
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class ExplorationBonus:
    """The contexts that the drafter has learned from; shared by all requests.

    Attributes:
        known: Bool[H], True at the hashes of known contexts.
    """

    def __init__(self) -> None:
        self.known: Bool = np.zeros(1 << _BITS, np.bool_)

    def bonus(self, tree: DraftTree | Queries, root: int) -> Float64:
        """Return Float64[N], the bonus in tokens of each node or query below the token `root`."""
        return find_bonus(tree.tokens, tree.parents, root, self.known)

    def observe(self, tree: DraftTree, text: Sequence[int]) -> None:
        """Mark a round's contexts as known.

        Args:
            tree: the round's draft.
            text: the token before the root, the root, and the committed tokens.
        """
        queries = tree.queries
        _mark(tree.tokens, tree.parents, queries.tokens, queries.parents, np.array(text, np.int64), self.known)


@njit(cache=True)
def find_bonus(tokens, parents, root, known):  # type: ignore[no-untyped-def]
    """Return Float64[N], as `ExplorationBonus.bonus` does."""
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
