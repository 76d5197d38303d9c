"""Fitting a saved mixture to another number of bases: each base has inputs of its own, which come last."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from speculant.drafters.mix.arrays import BASE_SETS, FREQUENCIES, INPUTS, SETS, STATES, Mixer
from speculant.drafters.mix.base import BASE_CONTEXTS, MOST_BASES
from speculant.drafters.mix.mixer import new_mixer

Array = npt.NDArray[Any]


def base_count(weights: Array, states: Array) -> int:
    """Return how many bases a mixture with these arrays was trained with, or -1 if no mixture has such shapes."""
    for bases in range(MOST_BASES + 1):
        inputs, sets = INPUTS + bases * BASE_CONTEXTS, SETS + FREQUENCIES + (BASE_SETS if bases else 0)
        if weights.shape == (sets, inputs + 1) and states.shape == (3, inputs, STATES):
            return bases
    return -1


def fitted(mixer: Mixer, bases: int) -> Mixer:
    """Return a mixture with inputs for that many bases: those that it has stay, further ones begin anew.

    Weights that were learned without any base fit no mixture with one, nor the reverse; then all of them begin anew.
    """
    held = base_count(mixer.weights, mixer.states)
    if held == bases:
        return mixer
    fresh = new_mixer(len(mixer.bands), bases)
    weights, states = fresh.weights.copy(), fresh.states.copy()
    inputs = INPUTS + min(held, bases) * BASE_CONTEXTS
    sets = min(len(weights), len(mixer.weights))
    if held and bases:
        weights[:sets, :inputs], weights[:sets, -1] = mixer.weights[:sets, :inputs], mixer.weights[:sets, -1]
    states[:, :inputs] = mixer.states[:, :inputs]
    return mixer._replace(weights=weights, states=states)
