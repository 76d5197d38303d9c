"""A readable view of what `mix` has learned: the most used phrases, and how much of a text it has seen.

Contexts are stored as hashes, so phrases are found from their start: frequent tokens first, then what followed each.
Only the last 24 successors of a token are known, so the count of a pair is that of its first token times the share of
the second. A phrase is a pair, extended by the most frequent successor while it makes up more than half of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container

import numpy as np

from speculant.core.drafter import LearnedPhrase
from speculant.core.tree import Int32
from speculant.drafters.mix.cells import Cells, look_up
from speculant.drafters.mix.contexts import CONTEXTS, hash_contexts
from speculant.drafters.mix.kernels import Tables

_FIRST = 256  # number of most frequent tokens at which phrases may start
_PAIRS = 3  # pairs examined per phrase, since many are parts of others
_LONGEST = 8  # maximum tokens of a phrase
_FOLLOWING = 3
ONE, TWO = 0, 1  # contexts of one and of two tokens
_LONGER = ((6, 4), (4, 3), (3, 2), (2, TWO))  # lengths of contexts in narrow rows, and their indices


def top_phrases(tables: Tables, count: int, without: Container[int] = ()) -> list[LearnedPhrase]:
    """Return up to `count` distinct phrases, most used first, that contain no token of `without`."""
    frequency = tables.mixer.frequency[:-1]
    first = np.argsort(-frequency, kind="stable")[:_FIRST]
    pairs = [
        (share * int(frequency[token]), (int(token), after))
        for token in first[frequency[first] > 0].tolist()
        if token not in without
        for after, share in _followers(tables, tables.wide, [token], ONE)
        if after not in without
    ]
    found: list[LearnedPhrase] = []
    for uses, pair in heapq.nlargest(_PAIRS * count, pairs):
        tokens, following = _extend(tables, pair, without)
        parts = [other for other in found if _is_part(other.tokens, tokens)]
        others = [other for other in found if other not in parts]
        if any(2 * uses < part.uses for part in parts) or 2 * _count_shared(tokens, others) >= len(tokens) - 1:
            continue  # a rare extension of a frequent phrase, or mostly made of other phrases
        kept = tuple(each for each in following if each[0] not in without)
        found = others
        found.append(LearnedPhrase(tokens, round(uses), kept[:_FOLLOWING]))
    return sorted(found, key=lambda phrase: -phrase.uses)[:count]


def seen_share(tables: Tables, tokens: Int32, start: int) -> float:
    """Return the share of tokens[start:] that were seen earlier after the same two preceding tokens; 0 if empty."""
    places = range(max(2, start), len(tokens))
    seen = sum(
        int(tokens[i]) in dict(_followers(tables, tables.narrow, tokens[i - 2 : i].tolist(), TWO)) for i in places
    )
    return seen / max(1, len(places))


def _extend(
    tables: Tables, pair: tuple[int, int], without: Container[int]
) -> tuple[tuple[int, ...], list[tuple[int, float]]]:
    """Extend a pair by its most frequent successors; return the phrase, and the tokens seen after it with shares."""
    tokens: tuple[int, ...] = pair
    following = _likely(tables, tokens)
    while following and following[0][1] > 0.5 and following[0][0] not in without and len(tokens) < _LONGEST:
        tokens += (following[0][0],)
        following = _likely(tables, tokens)
    return tokens, following


def _likely(tables: Tables, tokens: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return the tokens seen after `tokens` and their shares, from the longest context that has a row."""
    for length, kind in _LONGER:
        following = _followers(tables, tables.narrow, list(tokens[-length:]), kind) if len(tokens) >= length else []
        if following:
            return following
    return []


def _is_part(tokens: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether `tokens` is a contiguous part of `other`."""
    return any(other[i : i + len(tokens)] == tokens for i in range(len(other) - len(tokens) + 1))


def _count_shared(tokens: tuple[int, ...], others: list[LearnedPhrase]) -> int:
    """Return how many of a phrase's pairs of adjacent tokens also occur in other phrases."""
    known = {pair for other in others for pair in itertools.pairwise(other.tokens)}
    return sum(pair in known for pair in itertools.pairwise(tokens))


def _followers(tables: Tables, cells: Cells, context: list[int], kind: int) -> list[tuple[int, float]]:
    """Return the tokens seen after a context and their shares, most frequent first."""
    window: Int32 = np.array(context, np.int32)
    hashes = np.zeros(CONTEXTS, np.uint64)
    hash_contexts(window, len(window), tables.mixer.frequency, hashes)
    width = cells.entries.shape[2]
    tokens, weights = np.zeros((1, width), np.int64), np.zeros((1, width), np.int64)
    length = look_up(cells, hashes[kind], tokens, weights, 0)
    total = int(weights[0, :length].sum())
    order = np.argsort(-weights[0, :length], kind="stable")
    return [(int(tokens[0, place]), int(weights[0, place]) / total) for place in order]
