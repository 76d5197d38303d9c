"""Fitting a saved mixture to other bases: its last inputs are those of each base, and then a network's score."""

from __future__ import annotations

from typing import NamedTuple

from speculant.core.tree import Array
from speculant.drafters.mix.arrays import BASE_CONTEXTS, BASE_SETS, FREQUENCIES, INPUTS, SETS, STATES, Mixer
from speculant.drafters.mix.base import MAX_BASES
from speculant.drafters.mix.initial import new_mixer


class Inputs(NamedTuple):
    """The inputs of a mixture in addition to those of its own tables.

    Attributes:
        bases: number of bases.
        scored: whether one of them has a network that scores candidates.
    """

    bases: int
    scored: bool


def find_training(weights: Array, states: Array) -> Inputs | None:
    """Return the inputs that a mixture with these arrays was trained with, or None if the shapes fit no mixture."""
    for bases in range(MAX_BASES + 1):
        for scored in (False, True)[: 1 + (bases > 0)]:
            inputs, sets = INPUTS + bases * BASE_CONTEXTS + scored, SETS + FREQUENCIES + (BASE_SETS if bases else 0)
            if weights.shape == (sets, inputs + 1) and states.shape == (3, inputs, STATES):
                return Inputs(bases, scored)
    return None


def fit_mixture(mixer: Mixer, wanted: Inputs) -> Mixer:
    """Return a mixture with the given inputs: rates of inputs that it already has are kept, others are reset.

    Weights are kept if only the number of bases changes. Weights learned without any base or without a network do not
    fit a mixture with one, nor the reverse; in that case all weights are reset.
    """
    held = find_training(mixer.weights, mixer.states)
    if held is None or held == wanted:
        return mixer
    fresh = new_mixer(len(mixer.bands), wanted.bases, scored=wanted.scored)
    weights, states = fresh.weights.copy(), fresh.states.copy()
    inputs = INPUTS + min(held.bases, wanted.bases) * BASE_CONTEXTS
    states[:, :inputs] = mixer.states[:, :inputs]
    if held.scored and wanted.scored:
        states[:, -1] = mixer.states[:, -1]
    if held.bases and wanted.bases and held.scored == wanted.scored:
        weights[:, :inputs] = mixer.weights[:, :inputs]
        weights[:, -1 - wanted.scored :] = mixer.weights[:, -1 - held.scored :]
    return mixer._replace(weights=weights, states=states)
