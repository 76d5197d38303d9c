"""What `mix` does in one call: learn a piece of text, learn the target's own answers, find the most probable paths.

A named tuple of arrays takes numba several microseconds to unpack on its way in, a plain one much less; so calls take
plain tuples, and name the parts inside, where that is free.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from speculant.drafters.aded.search import insert
from speculant.drafters.mix.cells import USED, Cells, blend, find, observe
from speculant.drafters.mix.contexts import (
    CONTEXTS,
    ECHO_ONE,
    ECHO_TWO,
    LEARNED,
    SHORTER,
    WIDE,
    WINDOW,
    hash_contexts,
)
from speculant.drafters.mix.features import LONGEST_ROW, gather, new_evidence
from speculant.drafters.mix.mixer import Mixer, combine, correct, remember, squash
from speculant.drafters.mix.repetition import NOWHERE, index, seek

Array = npt.NDArray[Any]
Arrays = tuple[Array, ...]

NARROW_ROW = 4
_FEW = 0.03  # where a node's children need more than this to enter, only the latest of each row are looked at


class Tables(NamedTuple):
    """Everything that requests share: rows of four, rows of 24, and the mixture."""

    narrow: Cells
    wide: Cells
    mixer: Mixer

    def flat(self) -> Arrays:
        """Return all arrays in one plain tuple, as the calls want them."""
        return (*self.narrow, *self.wide, *self.mixer)


def new_request(vocabulary: int, length: int) -> Arrays:
    """Return what belongs to one request, with a prompt of about `length` tokens.

    Int32[V], where each token was last used, -1 if nowhere; Int32[2 ** h], the index of repetitions; Int64[2], where
    the repetition that the text is in goes on, or NOWHERE, and its length.
    """
    heads = np.zeros(1 << max(12, (2 * length).bit_length()), np.int32)
    return np.full(vocabulary, -1, np.int32), heads, np.array([NOWHERE, 0])


@njit(cache=True, nogil=True, inline="always")
def _named(flat: Arrays) -> Tables:
    return Tables(
        Cells(flat[0], flat[1]),
        Cells(flat[2], flat[3]),
        Mixer(flat[4], flat[5], flat[6], flat[7], flat[8], flat[9], flat[10]),
    )


@njit(cache=True, nogil=True)
def learn_text(
    tables: Arrays, request: Arrays, text: Array, start: int, stop: int, weigh: bool,
    memory: int, narrow_room: int, wide_room: int,
) -> int:  # fmt: skip
    """Learn text[start:stop], Int32; with `weigh` also what the contexts' evidence was worth.

    Return where it stopped: `stop`, or earlier if a table has more cells in use than its room; -1 if an id lies
    outside the vocabulary, and then nothing was learned.
    """
    narrow, wide, mixer = _named(tables)
    last_use, heads, copy = request
    for i in range(start, stop):
        if not 0 <= text[i] < len(mixer.bands):
            return -1
    evidence, hashes = new_evidence(), np.empty(CONTEXTS, np.uint64)
    for i in range(start, stop):
        if narrow.facts[USED] > narrow_room or wide.facts[USED] > wide_room:
            return i
        token = text[i]
        hash_contexts(text[max(0, i - WINDOW) : i], min(i, WINDOW), mixer.frequency, hashes)
        if weigh:
            copied = text[copy[0]] if copy[0] != NOWHERE else NOWHERE
            count = gather(narrow, wide, mixer, hashes, copied, copy[1], last_use, i, LONGEST_ROW, evidence)
            combine(mixer, evidence, count)
            correct(mixer, evidence, count, token)
        for c in range(LEARNED - 1, -1, -1):
            if hashes[c] == np.uint64(0):
                continue
            if SHORTER[c] >= 0 and find(narrow, hashes[SHORTER[c]]) < 0:
                continue
            observe(wide if WIDE[c] else narrow, hashes[c], token, memory)
        remember(mixer, token)
        last_use[token] = i
        index(heads, text, i)
        if copy[0] != NOWHERE and text[copy[0]] == token:
            copy[0] += 1
            copy[1] += 1
        else:
            copy[0], copy[1] = seek(heads, text, text[max(0, i + 1 - WINDOW) : i + 1])
    return stop


@njit(cache=True, nogil=True)
def learn_echoes(tables: Arrays, windows: Array, ids: Array, gains: Array, memory: int) -> None:
    """Learn the target's best tokens, ids Int32[R, k], gains Int64[R, k], after windows Int32[R, 2]; -1 for none."""
    narrow, wide, mixer = _named(tables)
    hashes = np.empty(CONTEXTS, np.uint64)
    tokens, weights = np.empty(LONGEST_ROW + ids.shape[1], np.int64), np.empty(LONGEST_ROW + ids.shape[1], np.int64)
    for r in range(len(windows)):
        hash_contexts(windows[r], 2, mixer.frequency, hashes)
        blend(wide, hashes[ECHO_ONE], ids[r], gains[r], memory, tokens, weights)
        if windows[r, 0] >= 0:
            blend(narrow, hashes[ECHO_TWO], ids[r], gains[r], memory, tokens, weights)


@njit(cache=True, nogil=True)
def most_probable(
    tables: Arrays, request: Arrays, text: Array, length: int, limit: int, cut: float
) -> tuple[Array, Array, Array]:
    """Return tokens Int32[N], parents Int32[N] and joint probabilities Float32[N], N <= limit, best first."""
    order, joints = np.empty(limit, np.int32), np.empty(limit, np.float32)
    tokens, parents = np.empty(limit, np.int32), np.empty(limit, np.int32)  # by slot; a parent is a rank
    places, lengths = np.empty(limit, np.int64), np.empty(limit, np.int64)  # by slot, of its repetition
    window = np.empty(WINDOW, np.int32)
    narrow, wide, mixer = _named(tables)
    last_use, heads, copy = request
    evidence, hashes = new_evidence(), np.empty(CONTEXTS, np.uint64)
    count = 0
    for rank in range(-1, limit - 1):
        joint = np.float32(1)
        if rank >= 0:
            if rank >= count or (count == limit and joints[rank] * np.float32(cut) <= joints[limit - 1]):
                break
            joint = joints[rank]
        at, node, depth = WINDOW, rank, 0
        while node >= 0:
            if at > 0:
                at -= 1
                window[at] = tokens[order[node]]
            node = parents[order[node]]
            depth += 1
        back = length
        while at > 0 and back > 0:
            at, back = at - 1, back - 1
            window[at] = text[back]
        hash_contexts(window[at:], WINDOW - at, mixer.frequency, hashes)
        place, agreed = copy[0], copy[1]
        if rank >= 0:
            place, agreed = places[order[rank]], lengths[order[rank]]
            if place == NOWHERE:
                place, agreed = seek(heads, text, window[at:])
        if place >= length:
            place, agreed = NOWHERE, 0
        copied = text[place] if place != NOWHERE else NOWHERE
        needed = joints[limit - 1] / joint if count == limit else np.float32(0)
        most = LONGEST_ROW if needed < np.float32(_FEW) else NARROW_ROW
        found = gather(narrow, wide, mixer, hashes, copied, agreed, last_use, length + depth, most, evidence)
        combine(mixer, evidence, found)
        least = _logit(needed) if needed > 0 else np.float32(-math.inf)
        for c in range(found):
            z = evidence.logits[c]
            if z <= least:
                continue
            p = joint * squash(mixer, z)
            if count < limit or p > joints[limit - 1]:
                slot = insert(count, limit, p, order, joints)
                tokens[slot], parents[slot] = evidence.candidates[c], rank
                follows = copied == evidence.candidates[c]
                places[slot], lengths[slot] = (place + 1, agreed + 1) if follows else (NOWHERE, 0)
                count = min(count + 1, limit)
    return tokens[order[:count]], parents[order[:count]], joints[:count]


@njit(cache=True, nogil=True, inline="always")
def _logit(p: float) -> float:
    """Return a logit that a candidate of probability p reaches for certain; a little less, for interpolation's sake."""
    return np.float32(math.log(p / (1 - p)) - 0.01) if p < 0.999 else np.float32(6)
