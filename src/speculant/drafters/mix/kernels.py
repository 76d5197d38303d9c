"""The kernels of `mix`: learn a piece of text, learn the target's top tokens, and find the most probable paths.

Numba takes several microseconds to unbox a named tuple of arrays, but much less for a plain tuple; so the kernels take
plain tuples and rebuild the named ones inside, where it costs nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from speculant.core.tree import Array
from speculant.drafters.aded.search import insert
from speculant.drafters.mix.arrays import LONGEST_ROW, Bases, Mixer, new_features
from speculant.drafters.mix.cells import USED, Cells, blend, find, observe
from speculant.drafters.mix.contexts import (
    CONTEXTS,
    LEARNED,
    SHORTER,
    TARGET_ONE,
    TARGET_TWO,
    WIDE,
    WINDOW,
    hash_contexts,
)
from speculant.drafters.mix.features import gather
from speculant.drafters.mix.history import NEVER, History, add_use
from speculant.drafters.mix.mixer import (
    NO_BOUNDS,
    NO_MINIMUM,
    add_scores,
    combine,
    count_token,
    score_bounds,
    squash,
    train,
)
from speculant.drafters.mix.repetition import NOWHERE, index, seek
from speculant.drafters.mix.scores import DIMENSIONS, Scorer, add_to_topic

Arrays = tuple[Array, ...]

NARROW_ROW = 4
_FEW = 0.03  # if a node's children need more than this to enter, only the latest entries of each row are examined


class Tables(NamedTuple):
    """State shared by requests: rows of 4 entries, rows of 24, the mixture, the frozen bases and their network."""

    narrow: Cells
    wide: Cells
    mixer: Mixer
    bases: Bases
    scorer: Scorer

    def flat(self) -> Arrays:
        """Return all arrays in one plain tuple, the form that the kernels take."""
        return (*self.narrow, *self.wide, *self.mixer, *self.bases, *self.scorer)


def new_request(vocabulary: int, length: int) -> Arrays:
    """Return the arrays of one request with a prompt of about `length` tokens.

    They are Int32[V] and Int32[T], `last_use` and `links` of the `History`; Int32[2 ** h], the index of repetitions;
    Int64[2], the position in the text where the current repetition continues, or NOWHERE, and its length; Float32[64],
    the topic of the text.
    """
    heads = np.zeros(1 << max(12, (2 * length).bit_length()), np.int32)
    uses = np.full(vocabulary, NEVER, np.int32), np.zeros(length, np.int32)
    return *uses, heads, np.array([NOWHERE, 0]), np.zeros(DIMENSIONS, np.float32)


@njit(cache=True, nogil=True, inline="always")
def unflatten(flat: Arrays) -> Tables:
    """Return the named parts of `Tables.flat`."""
    return Tables(
        Cells(flat[0], flat[1]),
        Cells(flat[2], flat[3]),
        Mixer(flat[4], flat[5], flat[6], flat[7], flat[8], flat[9], flat[10], flat[11]),
        Bases(flat[12], flat[13], flat[14], flat[15]),
        Scorer(flat[16], flat[17], flat[18]),
    )


@njit(cache=True, nogil=True)
def learn_text(
    tables: Arrays, request: Arrays, text: Array, start: int, stop: int, trained: int,
    memory: int, narrow_room: int, wide_room: int,
) -> int:  # fmt: skip
    """Learn text[start:stop], Int32, and train the mixture on text[start:trained].

    Return where it stopped: `stop`, or earlier if a table has more cells in use than its room; -1 if an id lies
    outside the vocabulary, in which case nothing was learned.
    """
    narrow, wide, mixer, bases, scorer = unflatten(tables)
    last_use, links, heads, copy, topic = request
    for i in range(start, stop):
        if not 0 <= text[i] < len(mixer.bands):
            return -1
    features, hashes = new_features(len(mixer.weights[0]) - 1), np.empty(CONTEXTS, np.uint64)
    for i in range(start, stop):
        if narrow.facts[USED] > narrow_room or wide.facts[USED] > wide_room:
            return i
        token = text[i]
        hash_contexts(text[max(0, i - WINDOW) : i], min(i, WINDOW), mixer.frequency, hashes)
        if i < trained:
            copied = text[copy[0]] if copy[0] != NOWHERE else NOWHERE
            history, last = History(text, i, last_use, links), np.int64(text[i - 1]) if i > 0 else NEVER
            count = gather(
                narrow, wide, mixer, bases, hashes, copied, copy[1], history, last, i, np.int64(LONGEST_ROW), features
            )
            combine(mixer, features, count)
            add_scores(mixer, scorer, text[max(0, i - WINDOW) : i], topic, features, count, NO_MINIMUM, NO_BOUNDS)
            train(mixer, features, count, token)
        for c in range(LEARNED - 1, -1, -1):
            if hashes[c] == np.uint64(0):
                continue
            if SHORTER[c] >= 0 and find(narrow, hashes[SHORTER[c]]) < 0:
                continue
            observe(wide if WIDE[c] else narrow, hashes[c], token, memory)
        count_token(mixer, token)
        add_to_topic(scorer, topic, token)
        add_use(last_use, links, token, i)
        index(heads, text, i)
        if copy[0] != NOWHERE and text[copy[0]] == token:
            copy[0] += 1
            copy[1] += 1
        else:
            copy[0], copy[1] = seek(heads, text, text[max(0, i + 1 - WINDOW) : i + 1])
    return stop


@njit(cache=True, nogil=True)
def follow(request: Arrays, text: Array, start: int, stop: int) -> Array:
    """Return where the repetition would continue if text[start:stop] were committed, and its length: Int64[2]."""
    heads, copy = request[2], request[3].copy()
    for i in range(start, stop):
        if copy[0] != NOWHERE and copy[0] < start and text[copy[0]] == text[i]:
            copy[0] += 1
            copy[1] += 1
        else:
            copy[0], copy[1] = seek(heads, text, text[max(0, i + 1 - WINDOW) : i + 1])
    return copy


@njit(cache=True, nogil=True)
def learn_top_k(
    tables: Arrays, text: Array, length: int, drafted: Array, parents: Array, ids: Array, logits: Array,
    strength: float, memory: int,
) -> None:  # fmt: skip
    """Learn the target's top tokens at every row of a pass: after text[:length], Int32, and after each drafted token.

    Args:
        tables: see `Tables.flat`.
        text, length: text at the start of the pass; its last token is the root.
        drafted, parents: the draft, Int32[N] each.
        ids, logits: target's top tokens at each row, Int32[N + 1, k] and Float32[N + 1, k], best first.
        strength, memory: weight that a row's distribution adds, and maximum total weight of a row in the table, both
            in eighths of an observation.
    """
    narrow, wide, mixer, _, _ = unflatten(tables)
    hashes, window = np.empty(CONTEXTS, np.uint64), np.empty(2, np.int32)
    tokens, weights = np.empty(LONGEST_ROW + ids.shape[1], np.int64), np.empty(LONGEST_ROW + ids.shape[1], np.int64)
    shares, gains = np.empty(ids.shape[1], np.float32), np.empty(ids.shape[1], np.int64)
    for r in range(len(ids)):
        if r == 0:
            window[0], window[1] = text[length - 2] if length > 1 else -1, text[length - 1]
        else:
            parent = parents[r - 1]
            window[0], window[1] = text[length - 1] if parent < 0 else drafted[parent], drafted[r - 1]
        total = np.float32(0)
        for k in range(len(shares)):
            shares[k] = np.exp(logits[r, k] - logits[r, 0])
            total += shares[k]
        for k in range(len(shares)):  # a padded output layer has ids beyond the vocabulary
            gains[k] = round(shares[k] * (strength / total)) if ids[r, k] < len(mixer.bands) else 0
        hash_contexts(window, len(window), mixer.frequency, hashes)
        blend(wide, hashes[TARGET_ONE], ids[r], gains, memory, tokens, weights)
        if window[0] >= 0:
            blend(narrow, hashes[TARGET_TWO], ids[r], gains, memory, tokens, weights)


@njit(cache=True, nogil=True)
def most_probable(
    tables: Arrays, request: Arrays, text: Array, length: int, limit: int, deepest: int, cut: float
) -> tuple[Array, Array, Array]:
    """Return the most probable tree: tokens Int32[N], parents Int32[N], joint probabilities Float32[N], best first.

    Args:
        tables, request: see `Tables.flat` and `new_request`.
        text: Int32[>= length]; text[:length] is continued.
        length: length of the text.
        limit: maximum number of nodes.
        deepest: maximum depth of a node.
        cut: a node is not expanded if a child would need a conditional probability above this to enter the tree; 1
            makes the search exact.
    """
    order, joints = np.empty(limit, np.int32), np.empty(limit, np.float32)
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)  # by slot; a parent is a rank
    places, lengths = np.empty(limit, np.int64), np.empty(limit, np.int64)  # by slot, of the node's repetition
    window = np.empty(WINDOW, np.int32)
    narrow, wide, mixer, bases, scorer = unflatten(tables)
    last_use, links, heads, copy, topic = request
    features, hashes = new_features(len(mixer.weights[0]) - 1), np.empty(CONTEXTS, np.uint64)
    history, bounds, count = History(text, length, last_use, links), score_bounds(mixer), 0
    for rank in range(-1, limit - 1):
        # 1. Take the best node not yet expanded, the root first; stop if its children cannot enter the tree.
        joint = np.float32(1)
        if rank >= 0:
            if rank >= count or (count == limit and joints[rank] * np.float32(cut) <= joints[limit - 1]):
                break
            joint = joints[rank]
        # 2. Fill the window with the node's last tokens: its path from the root, preceded by the end of the text.
        at, node, depth = WINDOW, rank, 0
        while node >= 0:
            if at > 0:
                at -= 1
                window[at] = tokens[order[node]]
            node = parents[order[node]]
            depth += 1
        if depth >= deepest:
            continue
        back = length
        while at > 0 and back > 0:
            at, back = at - 1, back - 1
            window[at] = text[back]
        hash_contexts(window[at:], WINDOW - at, mixer.frequency, hashes)
        # 3. Follow the repetition that the node continues, or look for one.
        place, agreed = copy[0], copy[1]
        if rank >= 0:
            place, agreed = places[order[rank]], lengths[order[rank]]
            if place == NOWHERE:
                place, agreed = seek(heads, text, window[at:])
        if place >= length:
            place, agreed = NOWHERE, 0
        copied = text[place] if place != NOWHERE else NOWHERE
        # 4. Collect the candidates and compute their logits; those that cannot enter the tree are not scored.
        needed = joints[limit - 1] / joint if count == limit else np.float32(0)
        maximum = LONGEST_ROW if needed < np.float32(_FEW) else NARROW_ROW
        last = np.int64(window[WINDOW - 1])
        found = gather(
            narrow, wide, mixer, bases, hashes, copied, agreed, history, last, length + depth, maximum, features
        )
        minimum = _logit(needed) if needed > 0 else np.float32(-math.inf)
        combine(mixer, features, found)
        add_scores(mixer, scorer, window[at:], topic, features, found, minimum, bounds)
        # 5. Insert the candidates by joint probability.
        for c in range(found):
            z = features.logits[c]
            if z <= minimum:
                continue
            p = joint * squash(mixer, z)
            if count < limit or p > joints[limit - 1]:
                slot = insert(count, limit, p, order, joints)
                tokens[slot], parents[slot] = features.candidates[c], rank
                follows = copied == features.candidates[c]
                places[slot], lengths[slot] = (place + 1, agreed + 1) if follows else (NOWHERE, 0)
                count = min(count + 1, limit)
    return tokens[order[:count]], parents[order[:count]], joints[:count]


@njit(cache=True, nogil=True, inline="always")
def _logit(p: float) -> float:
    """Return a lower bound of the logit of p: reduced by 0.01, because `squash` interpolates."""
    return np.float32(math.log(p / (1 - p)) - 0.01) if p < 0.999 else np.float32(6)
