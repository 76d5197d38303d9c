"""Isotonic regression: the closest non-decreasing or non-increasing sequence.

Both fits pool adjacent violators (Ayer et al. 1955): neighbours that are out of order are replaced by their mean.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def _repeat(means, widths, pools, length):  # type: ignore[no-untyped-def]
    """Return Float64[length], each pool's mean repeated; `np.repeat` takes seconds to compile."""
    repeated, end = np.empty(length), 0
    for pool in range(pools):
        for place in range(end, end + widths[pool]):
            repeated[place] = means[pool]
        end += widths[pool]
    return repeated


@njit(cache=True)
def rising_fit(values, counts):  # type: ignore[no-untyped-def]
    """Return the closest non-decreasing values Float64[N], each weighted by its number of samples."""
    means, samples, widths, pools = np.empty(len(values)), np.empty(len(values)), np.empty(len(values), np.int64), 0
    for place in range(len(values)):
        mean, sample, width = values[place], float(counts[place]), 1
        while pools and means[pools - 1] > mean:
            pools -= 1
            mean = (mean * sample + means[pools] * samples[pools]) / (sample + samples[pools])
            sample += samples[pools]
            width += widths[pools]
        means[pools], samples[pools], widths[pools] = mean, sample, width
        pools += 1
    return _repeat(means, widths, pools, len(values))


@njit(cache=True)
def falling_fit(values):  # type: ignore[no-untyped-def]
    """Return the closest non-increasing values Float64[N].

    They are the slopes of the least concave majorant of the cumulative sums of `values`. It touches these sums wherever
    their difference to a straight line is largest, so a best number of nodes for the fit is also one for `values`.
    """
    means, widths, pools = np.empty(len(values)), np.empty(len(values), np.int64), 0
    for value in values:
        mean, width = value, 1
        while pools and means[pools - 1] < mean:
            pools -= 1
            mean = (mean * width + means[pools] * widths[pools]) / (width + widths[pools])
            width += widths[pools]
        means[pools], widths[pools] = mean, width
        pools += 1
    return _repeat(means, widths, pools, len(values))
