"""Isotonic fits: the nearest sequence that never falls, or never rises.

Both pool adjacent violators (Ayer et al. 1955): neighbours that are out of order are replaced by their mean.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def rising_fit(values, counts):  # type: ignore[no-untyped-def]
    """Return the nearest values Float64[N] that never fall, each weighted by how many samples it has."""
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
    return np.repeat(means[:pools], widths[:pools])


@njit(cache=True)
def falling_fit(values):  # type: ignore[no-untyped-def]
    """Return the nearest values Float64[N] that never rise.

    They are the slopes of the least concave curve above the sums of `values`, which touches the sums where their
    maximum less any straight line lies; so a best number of nodes found with them is one for `values` too.
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
    return np.repeat(means[:pools], widths[:pools])
