"""What rejected nodes are worth all the same: the target's answer at each of them is learned, and pays later.

Drafters with `needs.top_k` learn the target's best tokens at every row of a pass. Counting accepted tokens alone, a
small draft looks best, so little is learned, so drafts stay poor, so a small draft looks best. A bonus per node breaks
the circle: full for a context (two tokens in a row) that no pass and no text has shown yet, a quarter for others, whose
answers are only refreshed. So it fades by itself as memory fills. Its size was chosen on even-numbered stories of two
small models; it is what a node may cost for nothing but learning, and so bounds what that can lose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.core.tree import DraftTree

Float64 = npt.NDArray[np.float64]

_BITS = 20  # a byte for each of so many hashed contexts
_LESSON, _REPEATED = 0.02, 0.005  # tokens that a node in a new context, and in a known one, is worth
_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class Lessons:
    """Which contexts the drafter has been told of; all requests share it."""

    def __init__(self) -> None:
        self._known = np.zeros(1 << _BITS, np.bool_)

    def worth(self, tree: DraftTree, root: int) -> Float64:
        """Return Float64[N], what each node of a draft below the token `root` would teach, in tokens."""
        return _worth(tree.tokens, tree.parents, root, self._known)

    def learn(self, tree: DraftTree, text: Sequence[int]) -> None:
        """Take in a round: its draft, and the token before the root, the root, and what was committed."""
        _learn(tree.tokens, tree.parents, np.array(text, np.int64), self._known)


@njit(cache=True)
def _worth(tokens, parents, root, known):  # type: ignore[no-untyped-def]
    worths = np.empty(len(tokens))
    for node, parent in enumerate(parents):
        before = root if parent < 0 else tokens[parent]
        worths[node] = _REPEATED if known[_place(before, tokens[node])] else _LESSON
    return worths


@njit(cache=True)
def _learn(tokens, parents, text, known):  # type: ignore[no-untyped-def]
    for at in range(1, len(text)):
        known[_place(text[at - 1], text[at])] = True
    for node, parent in enumerate(parents):
        before = text[1] if parent < 0 else tokens[parent]
        known[_place(before, tokens[node])] = True


@njit(cache=True)
def _place(before, token):  # type: ignore[no-untyped-def]
    pair = np.uint64(before) * _MULTIPLIERS[0] + np.uint64(token) + np.uint64(1)
    return np.int64(pair * _MULTIPLIERS[1] >> np.uint64(64 - _BITS))
