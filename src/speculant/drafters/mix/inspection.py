"""What the memory of `mix` holds, for people: its most used contexts.

Contexts are kept as hashes, so they are found from the front: tokens by their counts, then what followed each of them.
The last 24 successors of a token are known, so the count of a pair is that of its first token times its share there.
"""

from __future__ import annotations

import heapq

import numpy as np

from speculant.core.drafter import LearnedContext
from speculant.core.tree import Int32
from speculant.drafters.mix.cells import Cells, look_up
from speculant.drafters.mix.contexts import CONTEXTS, hash_contexts
from speculant.drafters.mix.kernels import Tables

_FIRST = 256  # most frequent tokens that contexts are looked for behind
_FOLLOWING = 3
ONE, TWO = 0, 1  # contexts of one token, and of two


def top_contexts(tables: Tables, count: int) -> list[LearnedContext]:
    """Return up to `count` contexts of two tokens, the most used first."""
    frequency = tables.mixer.frequency[:-1]
    first = np.argsort(-frequency, kind="stable")[:_FIRST]
    pairs = [
        (share * int(frequency[token]), int(token), after)
        for token in first[frequency[first] > 0].tolist()
        for after, share in _followers(tables, tables.wide, [token], ONE)
    ]
    found = []
    for uses, token, after in heapq.nlargest(count, pairs):
        following = _followers(tables, tables.narrow, [token, after], TWO)
        found.append(LearnedContext((token, after), round(uses), tuple(following[:_FOLLOWING])))
    return found


def _followers(tables: Tables, cells: Cells, context: list[int], kind: int) -> list[tuple[int, float]]:
    """Return the tokens that were seen after a context and their shares, the most frequent first."""
    window: Int32 = np.array(context, np.int32)
    hashes = np.zeros(CONTEXTS, np.uint64)
    hash_contexts(window, len(window), tables.mixer.frequency, hashes)
    width = cells.entries.shape[2]
    tokens, weights = np.zeros((1, width), np.int64), np.zeros((1, width), np.int64)
    length = look_up(cells, hashes[kind], tokens, weights, 0)
    total = int(weights[0, :length].sum())
    order = np.argsort(-weights[0, :length], kind="stable")
    return [(int(tokens[0, place]), int(weights[0, place]) / total) for place in order]
