"""One compiled update of what passes cost; see `latency`, which holds the state.

It runs in every round. A pass leaves the interpreter's objects outside the processor's caches, where many small steps
in Python take long beside the pass of a small model.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from speculant.sizing.isotonic import rising_fit

# Rows of the state by size: log cost relative to the base curve; mean rows of its passes; number of all its passes, and
# of those since its cost was forgotten; log error of the last one; the turn in which it is forgotten unless it is tried
# before, and the number of turns until then; the factor that the curve was computed from; twice the mean size of
# the log error of passes that were faster than predicted, up to a limit.
FACTOR, ROWS, TRIED, EVIDENCE, LAST, DUE, PATIENCE, FITTED, NOISE = range(9)
# The rest of the state: seconds of a unit, turns so far, number of sizes tried, a turn before which no size is due.
LEVEL, TURN, SIZES_TRIED, FIRST_DUE = range(4)

TRIES = 2  # passes of a size before the next larger one may be tried
FORGET = 64  # rounds without a try after which the cost of a size is lowered; doubles each time
_WINDOW = 15  # passes of a size after which its mean rows follow the recent ones, and its cost counts in full
_KNOWN = 2  # weight of a measured curve, in passes of each size
_UNTRIED = 1.05  # assumed cost of a size that was never tried, relative to the largest size tried
_STEEP = 0.5  # assumed cost of each further row, relative to a row's average cost among the sizes tried
_FOLLOW = 0.3  # share of a pass's error that moves the level
_LEARN = 0.06  # share that moves the cost of its size, once that is known
_JUMP = math.log(2)  # errors are clipped to this
_READABLE = 1e-6  # seconds: shorter passes are readings of a coarse clock, which set no level at once
_NOISE_FOLLOW, _NOISE = 0.1, 0.15  # share by which NOISE follows an error, and its maximum
_SAME = 0.004  # smaller changes of a size's cost do not recompute the curve


@njit(cache=True)
def observe_pass(by_size, now, curve, base, ends, climbed, known, i, rows, seconds):  # type: ignore[no-untyped-def]
    """Add the seconds of a pass to the state.

    Args:
        by_size: Float64[9, S], the state by size, changed.
        now: Float64[4], the rest of the state, changed.
        curve: Float64[N], cost of passes over 0, 1, ... draft rows, changed.
        base: Float64[N], the measured curve that costs are relative to, or ones.
        ends: Int64[S], maximum rows of each size.
        climbed: Int64[C], the sizes that are tried in ascending order; only these are forgotten.
        known: whether `base` was measured.
        i: size of the pass.
        rows: draft rows of the pass.
        seconds: its duration, above 0.
    """
    # 1. The error of the predicted seconds. A stall makes one pass slow, so a slow pass counts as far as the last one,
    # or as far as fast ones do: if noise counted in one direction only, costs would come out too low.
    if not now[SIZES_TRIED]:
        now[LEVEL] = seconds / base[rows]
    tried, evidence, factor = by_size[TRIED, i], by_size[EVIDENCE, i], by_size[FACTOR, i]
    if not tried:
        now[SIZES_TRIED] += 1
        factor = math.log(curve[rows] / base[rows]) if _below(by_size, i) >= 0 else 0.0
    error = math.log(seconds / (now[LEVEL] * base[rows])) - factor
    counted = min(error, max(by_size[NOISE, i], by_size[LAST, i]))
    counted = min(max(counted, -_JUMP), _JUMP)
    if error < 0 and evidence >= TRIES:
        by_size[NOISE, i] += _NOISE_FOLLOW * (min(-2 * counted, _NOISE) - by_size[NOISE, i])
    by_size[LAST, i] = error
    by_size[TRIED, i], by_size[EVIDENCE, i] = tried + 1, evidence + 1
    by_size[ROWS, i] += (rows - by_size[ROWS, i]) / min(tried + 1, _WINDOW)

    # 2. Part of it moves the cost of the size, at most to that of computing its rows one by one, and part the level. If
    # a size has few passes, the error may be in its cost rather than in the level; while there is nothing to compare it
    # with, it is in the level, which a far faster pass sets at once: a first pass may take 100 times as long.
    begun = now[SIZES_TRIED] > 1 and now[TURN] > 1
    if begun:
        factor += counted * max(_LEARN, 1 / max(1, evidence + _KNOWN * known))
    if i:
        mean = by_size[ROWS, i]
        factor = min(factor, by_size[FACTOR, 0] + math.log((mean + 1) / base[round(mean)]) + 2 * _SAME)
    by_size[FACTOR, i] = factor
    if not begun and error < -_JUMP and seconds > _READABLE:
        now[LEVEL] *= math.exp(error)
    elif evidence >= TRIES or not begun:
        now[LEVEL] *= math.exp(_FOLLOW * counted)

    # 3. Sizes that were not tried for long lose half of their excess cost; the curve follows what changed.
    now[TURN] += 1
    by_size[DUE, i] = now[TURN] + by_size[PATIENCE, i]
    now[FIRST_DUE] = min(now[FIRST_DUE], by_size[DUE, i])
    forgotten = now[TURN] >= now[FIRST_DUE] and _forget(by_size, now, climbed, known)
    if forgotten or not tried or abs(factor - by_size[FITTED, i]) > _SAME:
        _fit(by_size, curve, base, ends, known)


@njit(cache=True)
def _below(by_size, i):  # type: ignore[no-untyped-def]
    """Return the largest size below size i that was tried; -1 if there is none."""
    below = i - 1
    while below >= 0 and not by_size[TRIED, below]:
        below -= 1
    return below


@njit(cache=True)
def _forget(by_size, now, climbed, known):  # type: ignore[no-untyped-def]
    """Halve the excess cost over the next smaller size of sizes not tried for long; return whether any changed.

    Row counts between the sizes of `latency.SIZES` need not be tried for climbing, and count as smaller sizes only if
    they were tried lately. What they cost is forgotten as far as it exceeds the cost of the next larger size, which a
    stall in their last passes would keep from being tried.
    """
    forgotten, first, below = False, np.inf, -1
    for i in climbed:
        if not by_size[TRIED, i]:
            continue
        if now[TURN] >= by_size[DUE, i]:
            by_size[PATIENCE, i] *= 2
            by_size[DUE, i] = now[TURN] + by_size[PATIENCE, i]
            by_size[LAST, i] = 0.0
            smaller = i - 1
            while smaller > below and not (by_size[TRIED, smaller] and now[TURN] < by_size[DUE, smaller]):
                smaller -= 1
            excess = 0.0
            if smaller >= 0:
                excess = by_size[FACTOR, i] - by_size[FACTOR, smaller] - (0.0 if known else math.log(_UNTRIED))
            if excess > 0:
                by_size[FACTOR, i] -= excess / 2
                by_size[EVIDENCE, i] = 0  # so that the next passes set its cost at once
                forgotten = True
                for j in range(below + 1, i):
                    if by_size[FACTOR, j] > by_size[FACTOR, i] and now[TURN] >= by_size[DUE, j]:
                        by_size[FACTOR, j], by_size[EVIDENCE, j] = by_size[FACTOR, i], 0
        below = i
        first = min(first, by_size[DUE, i])
    now[FIRST_DUE] = now[TURN] if first == np.inf else first
    return forgotten


@njit(cache=True)
def _fit(by_size, curve, base, ends, known):  # type: ignore[no-untyped-def]
    """Recompute the curve from the sizes that were tried."""
    at, costs, counts = np.empty(by_size.shape[1]), np.empty(by_size.shape[1]), np.empty(by_size.shape[1])
    count, largest = 0, 0
    for i in range(by_size.shape[1]):
        by_size[FITTED, i] = by_size[FACTOR, i]
        if by_size[TRIED, i]:
            at[count], costs[count] = by_size[ROWS, i], math.exp(by_size[FACTOR, i])
            counts[count] = min(by_size[TRIED, i], _WINDOW)
            count, largest = count + 1, i
    at, costs = at[:count], costs[:count]
    if known:
        _interpolate(curve, at, costs)
        curve *= base
        return
    fit = rising_fit(costs, counts[:count])
    _interpolate(curve, at, fit)
    drafts = min(1, count - 1) if at[0] == 0 else 0  # start at the first size with nodes: the step to it is atypical
    each = (fit[-1] - fit[drafts]) / max(1.0, at[-1] - at[drafts])
    for row in range(ends[largest] + 1, len(curve)):
        curve[row] = _UNTRIED * fit[-1] + _STEEP * each * (row - at[-1])


@njit(cache=True)
def _interpolate(curve, at, values):  # type: ignore[no-untyped-def]
    """Set `curve` to `np.interp` of 0, 1, ..., which takes seconds to compile, for rising `at`."""
    left = 0
    for row in range(len(curve)):
        while left < len(at) - 1 and at[left + 1] <= row:
            left += 1
        curve[row] = values[left]
        if left < len(at) - 1 and row > at[left]:
            curve[row] += (values[left + 1] - values[left]) / (at[left + 1] - at[left]) * (row - at[left])
