"""The kernel of `mix` for targets that verify only chains: draft the most probable token, then the one after it.

Searching for the best tree and then its best chain (`kernels.most_probable`) expands four or more nodes per token of
the chain. Following the most probable token expands one, and the chain is as long as the limit allows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.mix.arrays import new_features
from speculant.drafters.mix.contexts import CONTEXTS, WINDOW, hash_contexts
from speculant.drafters.mix.features import gather
from speculant.drafters.mix.history import History
from speculant.drafters.mix.kernels import Arrays, unflatten
from speculant.drafters.mix.mixer import NO_BOUNDS, NO_MINIMUM, add_scores, combine, squash
from speculant.drafters.mix.repetition import NOWHERE, seek

EXAMINED = 4  # number of latest entries in each row that become candidates


@njit(cache=True, nogil=True)
def most_probable_chain(tables: Arrays, request: Arrays, text: Array, length: int, limit: int) -> tuple[Array, Array]:
    """Return tokens Int32[N] and joint probabilities Float32[N] of a chain, N <= limit.

    Args:
        tables, request: see `kernels.Tables.flat` and `kernels.new_request`.
        text: Int32[>= length]; text[:length] is continued.
        length: length of the text.
        limit: maximum number of tokens.
    """
    narrow, wide, mixer, bases, scorer = unflatten(tables)
    last_use, links, heads, copy, topic = request
    features, hashes = new_features(len(mixer.weights[0]) - 1), np.empty(CONTEXTS, np.uint64)
    known = min(length, WINDOW)
    window = np.empty(known + limit, np.int32)  # end of the text, followed by the chain
    for n in range(known):
        window[n] = text[length - known + n]
    history = History(text, length, last_use, links)
    joints, joint = np.empty(limit, np.float32), np.float32(1)
    place, agreed = copy[0], copy[1]
    for n in range(limit):
        end = known + n
        recent = window[max(0, end - WINDOW) : end]
        hash_contexts(recent, len(recent), mixer.frequency, hashes)
        if n > 0 and place == NOWHERE:
            place, agreed = seek(heads, text, recent)
        if place >= length:
            place, agreed = NOWHERE, 0
        copied = text[place] if place != NOWHERE else NOWHERE
        last = np.int64(recent[-1])
        found = gather(
            narrow, wide, mixer, bases, hashes, copied, agreed, history, last, length + n, np.int64(EXAMINED), features
        )
        if not found:
            return window[known:end], joints[:n]
        combine(mixer, features, found)
        add_scores(mixer, scorer, recent, topic, features, found, NO_MINIMUM, NO_BOUNDS)
        best = np.argmax(features.logits[:found])
        joint *= squash(mixer, features.logits[best])
        window[end], joints[n] = features.candidates[best], joint
        if copied == window[end]:
            place, agreed = place + 1, agreed + 1
        else:
            place, agreed = NOWHERE, 0
    return window[known:], joints
